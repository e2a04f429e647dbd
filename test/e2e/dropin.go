package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

//go:embed testdata/nodelocaldns.yaml
var officialManifest string

//go:embed testdata/asker.yaml
var askerYAML string

const (
	// agentImageRef is the image that `make image` makes, and officialName what it replaces.
	agentImageRef, officialImageRef = "nodens:0.1.0", "k8s-dns-node-cache:1.26.4"
	// askerNamespace has the client pods, one on each node.
	askerNamespace = "drop-in"
)

// dropIn returns the checks of the part drop-in: NodeLocal DNSCache's own manifest runs nodens, and
// `nodens migrate` converts it to nodens' manifest.
func dropIn() []check {
	var d dropInState
	checks := []check{
		{"NodeLocal DNSCache's manifest runs nodens, only the image replaced", d.installOfficial},
		{"the agents answer pods at both addresses", d.checkForwarded},
		{"metrics and health endpoints keep their ports", d.checkMetrics},
		{"`kubernetes` and a ClusterRole enable local answers", d.enableLocal},
		{"deleting it removes interface and rules; kube-dns answers", d.checkDeleted},
		{"nodens migrate, step 1: rollout without handover", d.migrateFirst},
		{"nodens migrate, step 2: local answers and handover", d.migrateSecond},
	}
	for i, c := range checks {
		checks[i].run = func(ctx context.Context, s *suite) (string, error) {
			if d.failed {
				return "", errors.New("skipped: an earlier check failed")
			}
			seen, err := c.run(ctx, s)
			d.failed = err != nil
			return seen, err
		}
	}
	return append(checks, check{"cleanup restores the nodes", d.checkCleanup})
}

// dropInState is the state of the part drop-in.
type dropInState struct {
	// manifest is the official one with nodens' image.
	manifest string
	// binary is nodens, for its commands.
	binary string
	// pods are those that ask, by the node they are on.
	pods map[string]string
	// migrated is what migrate printed last.
	migrated string
	// failed is set when a check fails; later checks that depend on it are skipped.
	failed bool
}

// applyAndWait applies a manifest and waits for the agents.
func (d *dropInState) applyAndWait(ctx context.Context, s *suite, manifest string) error {
	if _, err := s.cluster.Kubectl(ctx, manifest, "apply", "--filename=-"); err != nil {
		return err
	}
	return d.waitServing(ctx, s)
}

// waitServing waits until the agents serve. The official manifest has no probe that a
// rollout waits for.
func (d *dropInState) waitServing(ctx context.Context, s *suite) error {
	if _, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace="+agentNamespace, "daemonset/"+agentDaemonSet, "--timeout=1m"); err != nil {
		return err
	}
	return peer.Await(ctx, "the agents to serve", func(ctx context.Context) error {
		for _, n := range s.cluster.Nodes() {
			if out, err := n.Command(ctx, "dig", "+time=1", "+tries=1", "@"+localDNS, dropInNames[1].name).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		_, err := d.metricSum(ctx, s, metricsPort, requestsMetric)
		return err
	})
}

func (d *dropInState) installOfficial(ctx context.Context, s *suite) (string, error) {
	d.manifest = strings.ReplaceAll(officialManifest, officialImageRef, agentImageRef)
	if _, err := s.cluster.Kubectl(ctx, askerYAML, "apply", "--filename=-"); err != nil {
		return "", err
	}
	if err := d.applyAndWait(ctx, s, d.manifest); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace="+askerNamespace, "daemonset/asker", "--timeout=1m"); err != nil {
		return "", err
	}
	out, err := s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace="+askerNamespace, "--output=jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name}{\"\\n\"}{end}")
	if err != nil {
		return "", err
	}
	d.pods = make(map[string]string)
	for line := range strings.Lines(out) {
		node, pod, _ := strings.Cut(strings.TrimSpace(line), " ")
		d.pods[node] = pod
	}
	if len(d.pods) != len(s.cluster.Nodes()) {
		return "", fmt.Errorf("pods that ask are on %d nodes of %d", len(d.pods), len(s.cluster.Nodes()))
	}
	return "one line of 190 changed", nil
}

// dropInNames are what pods ask for, and the address they have to get.
var dropInNames = []struct{ name, want string }{
	{"kubernetes.default.svc." + cluster.Domain, "10.96.0.1"},
	{"www.outside.test", cluster.Outside4},
}

// ask has each pod ask each of the servers for every name.
func (d *dropInState) ask(ctx context.Context, s *suite, servers ...string) (asked int, err error) {
	for _, pod := range d.pods {
		for _, server := range servers {
			for _, n := range dropInNames {
				out, err := s.cluster.Exec(ctx, askerNamespace, pod, "nslookup", "-type=a", n.name, server)
				if err == nil && !regexp.MustCompile(`(?m)^Address: `+regexp.QuoteMeta(n.want)+`$`).MatchString(out) {
					err = errors.New("another answer")
				}
				if err != nil {
					return asked, fmt.Errorf("%s asks %s for %s: %w\n%s", pod, server, n.name, err, out)
				}
				asked++
			}
		}
	}
	return asked, nil
}

// metricSum is the sum over all nodes.
func (d *dropInState) metricSum(ctx context.Context, s *suite, port int, metric string, labels ...string) (sum float64, err error) {
	for _, n := range s.cluster.Nodes() {
		count, err := s.cluster.MetricSum(ctx, n, port, metric, labels...)
		if err != nil {
			return 0, err
		}
		sum += count
	}
	return sum, nil
}

func (d *dropInState) checkForwarded(ctx context.Context, s *suite) (string, error) {
	servers := []string{localDNS, cluster.DNS}
	before, err := d.queriesPerServer(ctx, s, servers)
	if err != nil {
		return "", err
	}
	asked, err := d.ask(ctx, s, servers...)
	if err != nil {
		return "", err
	}
	after, err := d.queriesPerServer(ctx, s, servers)
	if err != nil {
		return "", err
	}
	for i, server := range servers {
		if got, want := after[i]-before[i], float64(asked/len(servers)); got < want {
			return "", fmt.Errorf("of %v questions to %s agents count %v: others got their answer elsewhere", want, server, got)
		}
	}
	own, err := d.metricSum(ctx, s, metricsPort, responsesMetric, viewLabel)
	if err == nil && own > 0 {
		err = fmt.Errorf("%v replies are from a view of the cluster, without `kubernetes` in the Corefile", own)
	}
	return fmt.Sprintf("%d of %d correct, all from the agents", asked, asked), err
}

// queriesPerServer is how many questions came to each server's address.
func (d *dropInState) queriesPerServer(ctx context.Context, s *suite, servers []string) ([]float64, error) {
	counts := make([]float64, len(servers))
	var err error
	for i, server := range servers {
		if counts[i], err = d.metricSum(ctx, s, metricsPort, requestsMetric, `server="dns://`+server+`:53"`); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func (d *dropInState) checkMetrics(ctx context.Context, s *suite) (string, error) {
	for _, want := range []struct {
		port         int
		metric       string
		labels       []string
		least, above float64
	}{
		{metricsPort, "coredns_cache_entries", []string{`type="success"`}, 1, 1e6},
		{metricsPort, "coredns_forward_requests_total", nil, 1, 1e6},
		{9353, "coredns_nodecache_setup_errors_total", nil, 0, 0},
	} {
		got, err := d.metricSum(ctx, s, want.port, want.metric, want.labels...)
		if err != nil {
			return "", err
		}
		if got < want.least || got > want.above {
			return "", fmt.Errorf("%s at port %d adds up to %v", want.metric, want.port, got)
		}
	}
	for _, n := range s.cluster.Nodes() {
		if out, err := n.Command(ctx, "curl", "-sSf", "--max-time", "5", "http://"+localDNS+":8080/health").CombinedOutput(); err != nil || string(out) != "OK" {
			return "", fmt.Errorf("health on %s: %w, %s", n.Name, err, out)
		}
	}
	return "ports 9253 and 9353, and health at 8080", nil
}

// clusterRole are nodens' ClusterRole and its binding, from the manifest that users have.
func clusterRole(s *suite) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.root, "daemonset", "nodens.yaml"))
	if err != nil {
		return "", err
	}
	var docs []string
	for _, doc := range strings.Split(string(text), "\n---\n") {
		if strings.Contains(doc, "\nkind: ClusterRole") {
			docs = append(docs, doc)
		}
	}
	if len(docs) != 2 {
		return "", fmt.Errorf("daemonset/nodens.yaml has %d objects of rights, want a ClusterRole and its binding", len(docs))
	}
	return strings.Join(docs, "\n---\n"), nil
}

func (d *dropInState) enableLocal(ctx context.Context, s *suite) (string, error) {
	roles, err := clusterRole(s)
	if err != nil {
		return "", err
	}
	const block = "    cluster.local:53 {\n"
	with := strings.Replace(d.manifest, block, block+"        kubernetes cluster.local {\n            pods insecure\n            ttl 30\n        }\n", 1)
	if with == d.manifest {
		return "", errors.New("the manifest has no block of the cluster's domain")
	}
	if _, err := s.cluster.Kubectl(ctx, roles+"\n---\n"+with, "apply", "--filename=-"); err != nil {
		return "", err
	}
	// A kubelet brings a changed ConfigMap within two minutes; a new pod has it at once.
	if _, err := s.cluster.Kubectl(ctx, "", "rollout", "restart", "--namespace="+agentNamespace, "daemonset/"+agentDaemonSet); err != nil {
		return "", err
	}
	if err := d.waitServing(ctx, s); err != nil {
		return "", err
	}
	return d.checkWithoutDNS(ctx, s)
}

// checkWithoutDNS asks for a Service's name while there is no cluster DNS.
func (d *dropInState) checkWithoutDNS(ctx context.Context, s *suite) (seen string, err error) {
	before, err := d.metricSum(ctx, s, metricsPort, responsesMetric, viewLabel)
	if err != nil {
		return "", err
	}
	if err := d.scaleCoreDNS(ctx, s, 0); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.scaleCoreDNS(ctx, s, 2)) }()
	asked := 0
	for node, pod := range d.pods {
		// Not asked for before, so that no cache has it.
		name := "kube-dns.kube-system.svc." + cluster.Domain
		for _, server := range []string{localDNS, cluster.DNS} {
			out, err := s.cluster.Exec(ctx, askerNamespace, pod, "nslookup", "-type=a", name, server)
			if err != nil || !strings.Contains(out, "Address: "+cluster.DNS+"\n") {
				return "", fmt.Errorf("%s on %s asks %s for %s: %w\n%s", pod, node, server, name, err, out)
			}
			asked++
		}
	}
	after, err := d.metricSum(ctx, s, metricsPort, responsesMetric, viewLabel)
	if err == nil && after-before < float64(asked) {
		err = fmt.Errorf("of %d replies %v are from the view of the cluster", asked, after-before)
	}
	return fmt.Sprintf("%d answers for a Service while no cluster DNS runs", asked), err
}

// scaleCoreDNS has so many pods of the cluster DNS, and waits for it.
func (d *dropInState) scaleCoreDNS(ctx context.Context, s *suite, replicas int) error {
	if _, err := s.cluster.Kubectl(ctx, "", "scale", "--namespace=kube-system", "deployment/coredns", fmt.Sprint("--replicas=", replicas)); err != nil {
		return err
	}
	if replicas > 0 {
		_, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=1m")
		return err
	}
	_, err := s.cluster.Kubectl(ctx, "", "wait", "--namespace=kube-system", "--for=delete", "pod", "--selector=k8s-app=kube-dns", "--timeout=1m")
	return err
}

// deleteObjects deletes objects and waits for the agents' end.
func (d *dropInState) deleteObjects(ctx context.Context, s *suite, manifest string) error {
	if _, err := s.cluster.Kubectl(ctx, manifest, "delete", "--ignore-not-found", "--filename=-", "--timeout=1m"); err != nil {
		return err
	}
	_, err := s.cluster.Kubectl(ctx, "", "wait", "--namespace="+agentNamespace, "--for=delete", "pod", "--selector=k8s-app="+agentDaemonSet, "--timeout=1m")
	return err
}

// checkNoTraces are what is on the nodes of an agent.
func checkNoTraces(ctx context.Context, s *suite) error {
	for _, n := range s.cluster.Nodes() {
		for _, look := range [][]string{{"ip", "address"}, {"iptables-save"}, {"nft", "list", "tables"}} {
			out, err := n.Command(ctx, look[0], look[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s on %s: %w\n%s", strings.Join(look, " "), n.Name, err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(strings.ToLower(line), "nodens") || strings.Contains(line, localDNS) || strings.Contains(line, "inet "+cluster.DNS+"/") {
					return fmt.Errorf("%s has on %s: %s", look[0], n.Name, strings.TrimSpace(line))
				}
			}
		}
	}
	return nil
}

func (d *dropInState) checkDeleted(ctx context.Context, s *suite) (string, error) {
	if checkNoTraces(ctx, s) == nil {
		return "", errors.New("an agent that runs leaves no trace: what is looked for is something else")
	}
	if err := d.deleteObjects(ctx, s, d.manifest); err != nil {
		return "", err
	}
	if err := checkNoTraces(ctx, s); err != nil {
		return "", err
	}
	asked, err := d.ask(ctx, s, cluster.DNS)
	return fmt.Sprintf("no address, no rule; %d answers from kube-dns", asked), err
}

// migrate runs `nodens migrate` as its users do, by kubeconfig.
func (d *dropInState) migrate(ctx context.Context, s *suite, args ...string) (notes []string, err error) {
	if d.binary == "" {
		d.binary = filepath.Join(s.dir, "nodens")
		build := exec.CommandContext(ctx, "go", "build", "-o", d.binary, "./cmd/nodens")
		build.Dir = s.root
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building nodens: %w\n%s", err, out)
		}
	}
	var wrong strings.Builder
	cmd := s.cluster.Command(ctx, d.binary, append([]string{"migrate", "-kubeconfig", s.cluster.Kubeconfig()}, args...)...)
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("nodens migrate: %w\n%s", err, &wrong)
	}
	d.migrated = string(out)
	return strings.Split(strings.TrimSpace(wrong.String()), "\n"), nil
}

func (d *dropInState) migrateFirst(ctx context.Context, s *suite) (string, error) {
	// Not by kubectl apply, which would know by itself what the next one takes away.
	if _, err := s.cluster.Kubectl(ctx, d.manifest, "create", "--filename=-"); err != nil {
		return "", err
	}
	if err := d.waitServing(ctx, s); err != nil {
		return "", err
	}
	notes, err := d.migrate(ctx, s, "-image", agentImageRef)
	if err != nil {
		return "", err
	}
	// Without a comparison, also in the second step, which keeps the arguments.
	manifest, err := cluster.WithComparison(d.migrated, 0)
	if err != nil {
		return "", err
	}
	lookups := d.startLookups(ctx, s)
	if err := d.applyAndWait(ctx, s, manifest); err != nil {
		return "", errors.Join(err, lookups.discard())
	}
	seen, _, err := lookups.stop()
	return fmt.Sprintf("%d notes; %s", len(notes), seen), err
}

func (d *dropInState) migrateSecond(ctx context.Context, s *suite) (string, error) {
	notes, err := d.migrate(ctx, s)
	if err != nil {
		return "", err
	}
	lookups := d.startLookups(ctx, s)
	if err := d.applyAndWait(ctx, s, d.migrated); err != nil {
		return "", errors.Join(err, lookups.discard())
	}
	// A new pod has the changed ConfigMap at once.
	if _, err := s.cluster.Kubectl(ctx, "", "rollout", "restart", "--namespace="+agentNamespace, "daemonset/"+agentDaemonSet); err != nil {
		return "", errors.Join(err, lookups.discard())
	}
	if err := d.waitServing(ctx, s); err != nil {
		return "", errors.Join(err, lookups.discard())
	}
	seen, failed, err := lookups.stop()
	if err == nil && failed > 0 {
		err = fmt.Errorf("a hand-over loses nothing, but: %s", seen)
	}
	if err != nil {
		return "", err
	}
	answered, err := d.checkWithoutDNS(ctx, s)
	return fmt.Sprintf("%d notes; %s; %s", len(notes), seen, answered), err
}

// checkCleanup deletes everything, since -skipteardown leaves link and rules on the nodes.
func (d *dropInState) checkCleanup(ctx context.Context, s *suite) (string, error) {
	if err := d.deleteObjects(ctx, s, d.migrated+"---\n"+d.manifest); err != nil {
		return "", err
	}
	if !d.failed && checkNoTraces(ctx, s) == nil {
		return "", errors.New("nothing stays when an agent with -skipteardown ends")
	}
	text, err := os.ReadFile(filepath.Join(s.root, "daemonset", "cleanup.yaml"))
	if err != nil {
		return "", err
	}
	cleanup := strings.Replace(string(text), "- "+localDNS+"\n", "- "+localDNS+","+cluster.DNS+"\n", 1)
	if _, err := s.cluster.Kubectl(ctx, cleanup, "apply", "--filename=-"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace="+agentNamespace, "daemonset/node-local-dns-cleanup", "--timeout=1m"); err != nil {
		return "", err
	}
	if err := checkNoTraces(ctx, s); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, cleanup, "delete", "--filename=-", "--timeout=1m"); err != nil {
		return "", err
	}
	_, err = s.cluster.Kubectl(ctx, "", "delete", "namespace", askerNamespace, "--timeout=1m")
	return "no address, no rule", err
}
