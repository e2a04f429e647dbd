package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	_ "embed"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// install is the part of that name: what the how-to guides tell users to type, kustomize's
// overlays, the chart, and the way from one to the other while pods ask.
func install() []check {
	var i installation
	return []check{
		{"the guide's commands install the agent", i.followKustomize},
		{"the API server accepts overlays and chart", i.checkManifests},
		{"kube-dns's ClusterIP is taken over as in the guide", i.enableTakeover},
		{"the guide's chart replaces the kubectl installation", i.followChart},
		{"helm upgrade and rollback switch the takeover on and off", i.upgradeAndRollback},
		{"cluster DNS answers after helm uninstall", i.checkUninstall},
	}
}

// installation is the state of the part install.
type installation struct {
	runner guideRunner
	// pods has a pod of each node that asks.
	pods []string
}

// followKustomize follows the guide to kubectl and kustomize.
func (i *installation) followKustomize(ctx context.Context, s *suite) (string, error) {
	if err := i.runner.prepare(ctx, s); err != nil {
		return "", err
	}
	if err := i.runner.setSetting("newName: nodens", "newName: "+registry+"/nodens"); err != nil {
		return "", err
	}
	if err := i.runner.runSection(ctx, s, "install.md", "Install with kustomize"); err != nil {
		return "", err
	}
	s.agent = true
	if err := i.waitAnsweredBy(ctx, s, localDNS, true); err != nil {
		return "", err
	}
	image, err := s.cluster.Kubectl(ctx, "", "get", "daemonset", "node-local-dns", "--namespace=kube-system",
		"--output=jsonpath={.spec.template.spec.containers[0].image} on {.status.numberReady}")
	if err != nil {
		return "", err
	}
	if want := registry + "/nodens:0.1.0 on 2"; image != want {
		return "", fmt.Errorf("what runs is %s nodes, want %s", image, want)
	}
	return fmt.Sprintf("%d commands as written, %d replaced; %s nodes", i.runner.ran, i.runner.replaced, image), nil
}

//go:embed testdata/definitions.yaml
var definitions string

// applyDefinitions has the API server know the kinds that others bring.
func (i *installation) applyDefinitions(ctx context.Context, s *suite) error {
	if err := i.runner.prepare(ctx, s); err != nil {
		return err
	}
	if _, err := s.cluster.Kubectl(ctx, definitions, "apply", "--filename=-"); err != nil {
		return err
	}
	_, err := s.cluster.Kubectl(ctx, "", "wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=1m")
	return err
}

// checkManifests asks the API server what it thinks of each, without having it done.
func (i *installation) checkManifests(ctx context.Context, s *suite) (string, error) {
	if err := i.applyDefinitions(ctx, s); err != nil {
		return "", err
	}
	const try = "kubectl apply --dry-run=server --validate=strict "
	dirs, err := filepath.Glob(filepath.Join(i.runner.tree, "daemonset", "overlays", "*"))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("there are no overlays in daemonset/overlays (%w)", err)
	}
	lines := []string{
		try + "-f daemonset/base/nodens.yaml", try + "-f daemonset/cleanup.yaml", try + "-n default -f daemonset/network-policy.yaml",
		try + "-k daemonset/cleanup", try + "-n default -k daemonset/network-policy", try + "-k daemonset/monitoring",
	}
	for _, dir := range dirs {
		lines = append(lines, try+"-k daemonset/overlays/"+filepath.Base(dir))
	}
	for _, values := range chartVariants {
		lines = append(lines, "helm template any daemonset/chart --namespace kube-system --kube-version 1.36.0 --set '"+values+"' | "+try+"-f -")
	}
	for _, line := range lines {
		out, err := i.runner.runShell(ctx, s, "set -e; "+line)
		if err != nil {
			return "", fmt.Errorf("%s: %w", line, err)
		}
		if !strings.Contains(out, "(server dry run)") {
			return "", fmt.Errorf("%s: nothing was sent:\n%s", line, out)
		}
	}
	return fmt.Sprintf("%d overlays, %d sets of values, %d files", len(dirs), len(chartVariants), len(lines)-len(dirs)-len(chartVariants)), nil
}

// chartVariants are values, each with what the API server has not seen by the others.
var chartVariants = []string{
	"config.dnsServer=10.96.0.10,imagePullSecrets[0].name=pull,podAnnotations.a=b,podLabels.c=d",
	"config.netfilter=nftables,networkPolicy.enabled=true,networkPolicy.namespaces={default}",
	"config.localDns=169.254.20.10\\,fd00:169:254:20::10,config.ipFamilyPolicy=PreferDualStack,serviceMonitor.enabled=true,serviceMonitor.interval=30s",
	"podMonitor.enabled=true,prometheusRule.enabled=true,prometheusRule.labels.release=p,dashboard.enabled=true",
	"cilium.localRedirect=true,networkPolicy.enabled=true",
	"optIn.enabled=true,optIn.clusterDns=10.96.0.10,nodeCondition.enabled=true",
	"config.kubernetes=false,serviceAccount.create=false,updateStrategy.rollingUpdate.maxSurge=0,updateStrategy.rollingUpdate.maxUnavailable=10%",
	"updateStrategy.rollingUpdate.maxUnavailable=10%,config.bindIp=false,securityContext.capabilities.add={SYS_ADMIN},initContainers[0].name=first,initContainers[0].image=first:1," +
		"resizePolicy[0].resourceName=cpu,resizePolicy[0].restartPolicy=NotRequired,lifecycle.preStop.sleep.seconds=1,nameOverride=dns,image.digest=sha256:" + zeroDigest,
}

// zeroDigest is the hexadecimal part of a digest.
const zeroDigest = "0000000000000000000000000000000000000000000000000000000000000000"

// enableTakeover follows the guide to the modes. Before it kube-proxy has the address, and what
// is sent to it is tracked; afterwards the node's own agent answers, untracked.
func (i *installation) enableTakeover(ctx context.Context, s *suite) (string, error) {
	if err := i.waitAnsweredBy(ctx, s, cluster.DNS, false); err != nil {
		return "", fmt.Errorf("before: %w", err)
	}
	if err := i.runner.runSection(ctx, s, "choose-a-mode.md", "Takeover"); err != nil {
		return "", err
	}
	if err := i.waitAnsweredBy(ctx, s, cluster.DNS, true); err != nil {
		return "", err
	}
	return cluster.DNS + " is answered on both nodes, without connection tracking", nil
}

// followChart follows the guide to Helm, over what kubectl has applied. Its defaults take no address over.
func (i *installation) followChart(ctx context.Context, s *suite) (string, error) {
	if err := i.runner.runSection(ctx, s, "install.md", "Install with Helm"); err != nil {
		return "", err
	}
	if err := i.waitAnsweredBy(ctx, s, cluster.DNS, false); err != nil {
		return "", err
	}
	if err := i.waitAnsweredBy(ctx, s, localDNS, true); err != nil {
		return "", err
	}
	return i.runner.runShell(ctx, s, "helm list --namespace kube-system --output yaml | sed -n 's/^  chart: //p' | tr -d '\\n'")
}

// upgradeAndRollback changes a value, and takes the change back. Each time the notes say what is so.
func (i *installation) upgradeAndRollback(ctx context.Context, s *suite) (string, error) {
	const wait = " && kubectl -n kube-system rollout status daemonset/node-local-dns --timeout=2m"
	const notes = " && helm get notes node-local-dns --namespace kube-system"
	for _, step := range []struct {
		line, note string
		ours       bool
	}{
		// All nodes at once, for the sake of time; the way back is one by one.
		{"helm upgrade node-local-dns daemonset/chart --namespace kube-system --reuse-values --set config.dnsServer=" + cluster.DNS + ",updateStrategy.rollingUpdate.maxSurge=100%",
			"take over kube-dns's ClusterIP (" + cluster.DNS + ")", true},
		{"helm rollback node-local-dns 1 --namespace kube-system", "set the kubelets' clusterDNS to " + localDNS, false},
	} {
		out, err := i.runner.runShell(ctx, s, step.line+wait+notes)
		if err != nil {
			return "", fmt.Errorf("%s: %w", step.line, err)
		}
		if !strings.Contains(out, step.note) {
			return "", fmt.Errorf("%s: the notes don't say %q:\n%s", step.line, step.note, out)
		}
		if err := i.waitAnsweredBy(ctx, s, cluster.DNS, step.ours); err != nil {
			return "", fmt.Errorf("%s: %w", step.line, err)
		}
	}
	return cluster.DNS + " taken over and released", nil
}

// checkUninstall takes the release away, and installs the plain manifest for the parts that
// follow. The rules that agents leave lead to the cluster's DNS in between.
func (i *installation) checkUninstall(ctx context.Context, s *suite) (string, error) {
	s.agent = false
	line := "helm uninstall node-local-dns --namespace kube-system --wait && kubectl -n kube-system wait --for=delete pod -l k8s-app=node-local-dns --timeout=1m"
	if _, err := i.runner.runShell(ctx, s, line); err != nil {
		return "", err
	}
	for _, pod := range i.pods {
		if err := i.runLookups(ctx, s, pod, apiServerLookup(localDNS), apiServerLookup(cluster.DNS)); err != nil {
			return "", err
		}
	}
	if err := s.installAgent(ctx); err != nil {
		return "", err
	}
	if err := i.waitAnsweredBy(ctx, s, localDNS, true); err != nil {
		return "", err
	}
	_, err := s.cluster.Kubectl(ctx, "", "delete", "pod", "--now", "--wait=false", "--selector=app=installation")
	return "at " + localDNS + " as well; then reinstalled", err
}

// startPods starts the pods that ask, one on each node.
func (i *installation) startPods(ctx context.Context, s *suite) error {
	if len(i.pods) > 0 {
		return nil
	}
	if err := peer.Await(ctx, "the namespace's account", func(ctx context.Context) error {
		_, err := s.cluster.Kubectl(ctx, "", "get", "serviceaccount", "default")
		return err
	}); err != nil {
		return err
	}
	var text strings.Builder
	var pods []string
	for _, node := range s.cluster.Nodes() {
		pods = append(pods, "asks-on-"+node.Name)
		fmt.Fprintf(&text, podManifest, pods[len(pods)-1], node.Name)
	}
	if _, err := s.cluster.Kubectl(ctx, text.String(), "apply", "--filename=-"); err != nil {
		return err
	}
	_, err := s.cluster.Kubectl(ctx, "", "wait", "--for=condition=Ready", "pod", "--selector=app=installation", "--timeout=1m")
	if err == nil {
		i.pods = pods
	}
	return err
}

// podManifest is such a pod, by its name and its node's.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {app: installation}
spec:
  nodeName: %s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
    - name: asks
      image: probe:e2e
      imagePullPolicy: IfNotPresent
      command: [sleep, infinity]
`

// waitAnsweredBy has a pod of each node ask the address, and says whether it is the node's own
// agent that answers, by its counters and by what the kernel tracks.
func (i *installation) waitAnsweredBy(ctx context.Context, s *suite, address string, byAgent bool) error {
	if err := i.startPods(ctx, s); err != nil {
		return err
	}
	for n, node := range s.cluster.Nodes() {
		err := peer.Await(ctx, address+" on "+node.Name, func(ctx context.Context) error {
			return i.checkAnsweredBy(ctx, s, node, i.pods[n], address, byAgent)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *installation) checkAnsweredBy(ctx context.Context, s *suite, node *cluster.Node, pod, address string, byAgent bool) error {
	before, err := s.cluster.MetricSum(ctx, node, metricsPort, requestsMetric, `server="dns://`+net.JoinHostPort(address, "53")+`"`)
	if err != nil {
		return err
	}
	family := "--family=ipv4"
	if strings.Contains(address, ":") {
		family = "--family=ipv6"
	}
	// Nothing to delete is no error worth telling.
	_ = node.Command(ctx, "conntrack", "-D", family, "--orig-dst", address).Run()
	if err := i.lookupAPIServer(ctx, s, pod, address); err != nil {
		return err
	}
	out, err := node.Command(ctx, "conntrack", "-L", family, "--orig-dst", address).Output()
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	tracked := dnsConnections(string(out))
	after, err := s.cluster.MetricSum(ctx, node, metricsPort, requestsMetric, `server="dns://`+net.JoinHostPort(address, "53")+`"`)
	if err != nil {
		return err
	}
	if counted, seen := after > before, len(tracked) > 0; counted != byAgent || seen == byAgent {
		return fmt.Errorf("the node's agent counts %v queries and then %v, and the kernel tracks %q; want the agent to answer: %v", before, after, tracked, byAgent)
	}
	return nil
}

// dnsConnections returns the lines of conntrack that are about DNS: the kubelet's probes of the same
// address are tracked.
func dnsConnections(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, " dport=53 ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// lookupAPIServer looks a Service up at the address, from a pod.
func (i *installation) lookupAPIServer(ctx context.Context, s *suite, pod, address string) error {
	return i.runLookups(ctx, s, pod, apiServerLookup(address))
}

// apiServerLookup is for a name that every cluster has.
func apiServerLookup(at string) lookup {
	return lookup{"a", "kubernetes.default.svc." + cluster.Domain + ".", "10.96.0.1", at}
}

// lookup is a question of a type for a name, the address that has to be in the answer, and
// the server that is asked.
type lookup struct{ kind, name, want, at string }

// runLookups has a pod ask one question after the other, in one go: a kubectl for each would
// take longer than all of them.
func (i *installation) runLookups(ctx context.Context, s *suite, pod string, list ...lookup) error {
	const mark = "-- answered"
	var script strings.Builder
	for _, l := range list {
		fmt.Fprintf(&script, "nslookup -type=%s %s %s 2>&1; echo %s\n", l.kind, l.name, l.at, mark)
	}
	out, err := s.cluster.Exec(ctx, "default", pod, "sh", "-c", script.String())
	if err != nil {
		return fmt.Errorf("%s: %w", pod, err)
	}
	answers := strings.Split(out, mark)
	if len(answers) != len(list)+1 {
		return fmt.Errorf("%s has %d answers to %d questions: %q", pod, len(answers)-1, len(list), out)
	}
	for n, l := range list {
		if !strings.Contains(answers[n], "Address: "+l.want+"\n") {
			return fmt.Errorf("%s asks %s for %s, wants %s, and gets %q", pod, l.at, l.name, l.want, answers[n])
		}
	}
	return nil
}
