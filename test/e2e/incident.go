package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

var (
	//go:embed testdata/workload.yaml
	workloadYAML string
	//go:embed testdata/pod-readers.yaml
	podReadersYAML string
)

// askingWorkload is a Deployment of the part incident. Its namespace has nothing else.
type askingWorkload struct {
	namespace, name string
	replicas        int
	// lookedUp is the name that its pods look up, each 40 times in each pause, with this program.
	lookedUp, program string
	pause             int // microseconds
}

// The Deployments. The search path makes three of four queries of checkout and fraud. Each name of indexer
// is another one, so that none is in a cache; glibc does not wait for another reply than SERVFAIL.
var (
	checkout = askingWorkload{"shop", "checkout", 2, "rates.exchange.example", "resolve-musl", 400_000}
	fraud    = askingWorkload{"payments", "fraud", 1, "fraud-api.example", "resolve-musl", 2_000_000}
	indexer  = askingWorkload{"search", "indexer", 2, "shard-$n.index.example.", "resolve-glibc", 4_000_000}
)

// askingWorkloads returns all Deployments.
func askingWorkloads() []askingWorkload { return []askingWorkload{checkout, fraud, indexer} }

func (w *askingWorkload) String() string { return w.namespace + "/" + w.name }

// incidentManifest returns the manifest of all Deployments, and of the right to see pods, but not those of fraud.
func incidentManifest() string {
	var list []string
	for _, w := range askingWorkloads() {
		list = append(list, strings.NewReplacer("NAMESPACE", w.namespace, "WORKLOAD", w.name, "REPLICAS", fmt.Sprint(w.replicas),
			"LOOKED_UP", w.lookedUp, "PROGRAM", w.program, "PAUSE", fmt.Sprint(w.pause)).Replace(workloadYAML))
		if w != fraud {
			list = append(list, strings.ReplaceAll(podReadersYAML, "NAMESPACE", w.namespace))
		}
	}
	return strings.Join(list, "---\n")
}

// incidentTest is what the checks of the part incident share.
type incidentTest struct {
	// dir is the folder with kubectl and the plugin.
	dir string
	// agents are the agents' pods, and pods those of each Deployment, by node. The nodes of checkout's are both.
	agents map[string]string
	pods   map[string]map[string]string
	// words replace the words in braces of shown commands, and outputs is what the commands printed, by name.
	words   map[string]string
	outputs map[string]string
}

// incident returns the checks of the part incident: what an operator does in an incident.
func incident() []check {
	t := &incidentTest{words: make(map[string]string), outputs: make(map[string]string)}
	list := []check{
		{"workloads waste look-ups, and look up new names", t.start},
		{"kubectl nodens status needs the Role, and shows all nodes", t.checkRights},
		{"kubectl nodens top, the page and advise name the workloads that waste", t.checkNamed},
		{"kubectl nodens explain asks a pod's own node, and the pod gets that", t.checkExplain},
		{"nodens tail shows a pod's queries, and ends", t.checkTail},
		{"the advised changes are made: ndots, a dot at the end", t.makeChanges},
		{"an agent that hangs is named, and the rest is shown", t.checkHanging},
		{"a new Service: explain says why it is missing, then what it is", t.checkService},
		{"by the counts of the next seconds the waste is gone", t.checkWasteGone},
		{"an upstream that is down, and whom that concerns", t.checkOutage},
		{"a cached denial of a name that exists now is found and removed", t.checkDenial},
	}
	for i := range list {
		run := list[i].run
		list[i].run = func(ctx context.Context, s *suite) (string, error) {
			if i > 0 && t.pods == nil {
				return "", errors.New("the workloads are missing")
			}
			return run(ctx, s)
		}
	}
	return append(list, check{"workloads and rights are removed", t.remove})
}

// start creates the Deployments, finds all pods, and installs kubectl with the plugin.
func (t *incidentTest) start(ctx context.Context, s *suite) (string, error) {
	if _, err := s.cluster.Kubectl(ctx, incidentManifest(), "apply", "--filename=-"); err != nil {
		return "", err
	}
	if err := t.installPlugin(ctx, s); err != nil {
		return "", err
	}
	pods := make(map[string]map[string]string)
	for _, w := range askingWorkloads() {
		if err := t.awaitWorkload(ctx, s, w); err != nil {
			return "", err
		}
		found, err := podsByNode(ctx, s, w.namespace, "app="+w.name)
		if err != nil {
			return "", err
		}
		pods[w.String()] = found
	}
	var err error
	t.agents, err = podsByNode(ctx, s, agentNamespace, "k8s-app="+agentDaemonSet)
	nodes := s.cluster.Nodes()
	if err == nil && (len(t.agents) != len(nodes) || len(pods[checkout.String()]) != len(nodes)) {
		err = fmt.Errorf("agents on %v, and pods on %v", t.agents, pods)
	}
	if err != nil {
		return "", err
	}
	t.pods = pods
	first := nodes[0].Name
	t.words["node"], t.words["agent"] = first, t.agents[first]
	t.words["checkout"], t.words["indexer"] = pods[checkout.String()][first], pods[indexer.String()][first]
	return fmt.Sprint(pods), nil
}

// awaitWorkload waits until a Deployment's pods are as its template says.
func (t *incidentTest) awaitWorkload(ctx context.Context, s *suite, w askingWorkload) error {
	_, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace="+w.namespace, "deployment/"+w.name, "--timeout=2m")
	return err
}

// podsByNode returns the names of the pods that do not end, one of each node.
func podsByNode(ctx context.Context, s *suite, namespace, selector string) (map[string]string, error) {
	const columns = `--output=jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name} {.metadata.deletionTimestamp}{"\n"}{end}`
	out, err := s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace="+namespace, "--selector="+selector, columns)
	if err != nil {
		return nil, err
	}
	pods := make(map[string]string)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 2 {
			pods[fields[0]] = fields[1]
		}
	}
	return pods, nil
}

// lookup returns the IPv4 addresses that musl's resolver in a pod of checkout finds for a name, in the
// order of their text; it is empty if there is no such name.
func (t *incidentTest) lookup(ctx context.Context, s *suite, pod, name string) ([]string, error) {
	out, err := s.cluster.Kubectl(ctx, "host "+name+"\n", "exec", "--stdin", "--namespace="+checkout.namespace, pod, "--", "resolve-musl")
	if err != nil {
		return nil, err
	}
	return parseLookup(out)
}

// parseLookup reads a line of test/e2e/probe/resolve.
func parseLookup(line string) ([]string, error) {
	_, answer, found := strings.Cut(line, " = ")
	switch {
	case !found && strings.HasSuffix(line, " ! none\n"):
		return nil, nil
	case !found:
		return nil, fmt.Errorf("the resolver says %q", line)
	}
	var list []string
	for _, word := range strings.Fields(answer) {
		if !strings.Contains(word, ":") {
			list = append(list, word)
		}
	}
	return list, nil
}

// remove deletes what the part has created. The agents run, and the world outside is as before.
func (t *incidentTest) remove(ctx context.Context, s *suite) (string, error) {
	var errs []error
	for _, n := range s.cluster.Nodes() {
		errs = append(errs, signalAgent(ctx, n, "CONT"))
	}
	errs = append(errs, restartOutsideDNS(ctx, s))
	role, err := roleManifest(s)
	errs = append(errs, err)
	for _, manifest := range []string{incidentManifest(), role} {
		_, err := s.cluster.Kubectl(ctx, manifest, "delete", "--filename=-", "--ignore-not-found", "--wait=false")
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || s.incidentOut == "" {
		return fmt.Sprintf("%d Deployments", len(askingWorkloads())), err
	}
	return fmt.Sprintf("%d outputs for %s", len(t.outputs), s.incidentOut), t.writeDocument(s.incidentOut)
}
