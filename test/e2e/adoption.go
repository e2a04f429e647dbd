package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// adoption is the part of that name, in a cluster whose kubelets name the cluster's DNS: namespaces
// that opt in and out, the nodes' own look-ups, and a node that joins in link-local mode.
func adoption() []check {
	a := &adoptionTest{}
	list := []check{
		{"the guide's overlay installs agents and the policy", a.install},
		{"pods of a labelled namespace ask their node's agent first", a.optIn},
		{"no look-up fails while each node's agent is killed", a.killAgents},
		{"without the label, new pods are as before", a.optOut},
	}
	list = append(list, a.hostChecks()...)
	return append(list, check{"a node that joins runs no pod before its agent answers", a.joinNode})
}

// adoptionTest is the state of the part.
type adoptionTest struct {
	runner guideRunner
	api    kubernetes.Interface
	pods   []string // of the labelled namespace, one on each node
}

// optInNS is the namespace that opts in.
const optInNS = "opt-in"

// errNoOptInPods follows from an earlier failure.
var errNoOptInPods = errors.New("the namespace has no pods")

// install applies the overlay of the guide.
func (a *adoptionTest) install(ctx context.Context, s *suite) (string, error) {
	api, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return "", err
	}
	a.api = api
	if err := a.runner.prepare(ctx, s); err != nil {
		return "", err
	}
	return "", a.apply(ctx, s, "opt-in")
}

// apply applies an overlay, and waits for the agents.
func (a *adoptionTest) apply(ctx context.Context, s *suite, overlay string) error {
	_, err := a.runner.runShell(ctx, s, "kubectl apply -k daemonset/overlays/"+overlay+
		" && kubectl -n kube-system rollout status daemonset/node-local-dns --timeout=2m")
	s.agent = err == nil
	return err
}

// adoptionPod is a pod that runs command.
func adoptionPod(name, node, command string) object {
	return object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": optInNS},
		"spec": object{
			"nodeName": node, "terminationGracePeriodSeconds": 0,
			"containers": []object{{"name": "probe", "image": probeImageRef, "imagePullPolicy": "Never", "command": []string{"sh", "-c", command}}},
		},
	}
}

// startPods starts a pod on each node, and returns their names.
func (a *adoptionTest) startPods(ctx context.Context, s *suite, prefix string) (names []string, err error) {
	var pods objectList
	for _, n := range s.cluster.Nodes() {
		names = append(names, prefix+"-"+n.Name)
		pods = append(pods, adoptionPod(prefix+"-"+n.Name, n.Name, "sleep infinity"))
	}
	if _, err := s.cluster.Kubectl(ctx, pods.String(), "create", "-f", "-"); err != nil {
		return nil, err
	}
	_, err = s.cluster.Kubectl(ctx, "", "-n", optInNS, "wait", "pod", "--for=condition=Ready", "--timeout=90s", "--all")
	return names, err
}

// awaitPolicy waits until the API server's own watches have the policy and the label, so that a new pod would get
// the DNS policy. It creates nothing.
func (a *adoptionTest) awaitPolicy(ctx context.Context, want corev1.DNSPolicy) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "dry-run"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "probe", Image: probeImageRef}}},
	}
	return peer.Await(ctx, fmt.Sprintf("new pods to have dnsPolicy %s", want), func(ctx context.Context) error {
		got, err := a.api.CoreV1().Pods(optInNS).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && got.Spec.DNSPolicy != want {
			sleep(ctx, pollInterval)
			err = fmt.Errorf("it would be %s", got.Spec.DNSPolicy)
		}
		return err
	})
}

// checkServers compares the name servers in the pods' resolv.conf.
func (a *adoptionTest) checkServers(ctx context.Context, s *suite, pods []string, want ...string) error {
	return forEach(pods, func(pod string) error {
		out, err := s.cluster.Exec(ctx, optInNS, pod, "cat", "/etc/resolv.conf")
		if err != nil {
			return err
		}
		servers := nameServers(out)
		searches := "search " + optInNS + ".svc.cluster.local svc.cluster.local cluster.local"
		if !slices.Equal(servers, want) || !strings.Contains(out, searches) || !strings.Contains(out, "options ndots:5") {
			return fmt.Errorf("its resolv.conf is %q, want the servers %v, %q and ndots:5", out, want, searches)
		}
		return nil
	})
}

// nameServers are the name servers in a resolv.conf.
func nameServers(text string) (servers []string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
			servers = append(servers, f[1])
		}
	}
	return servers
}

// adoptionQuestions are names inside and outside of the cluster.
func adoptionQuestions() []question {
	return []question{
		q("host kubernetes.default", "10.96.0.1"),
		q("host kubernetes.default.svc.cluster.local", "10.96.0.1"),
		q("host www.outside.test", cluster.Outside4, cluster.Outside6),
		none("host nx.outside.test"),
	}
}

// askEach asks all resolvers in the pod the questions several times.
func (a *adoptionTest) askEach(ctx context.Context, s *suite, pod string, times int) (answers int, err error) {
	list := slices.Repeat(adoptionQuestions(), times)
	var input strings.Builder
	for _, q := range list {
		fmt.Fprintln(&input, q.ask)
	}
	out, err := s.cluster.Kubectl(ctx, input.String(), append([]string{"exec", "-i", "-n", optInNS, pod, "--", "probe", "every"}, hostResolvers()...)...)
	if err != nil {
		return 0, err
	}
	return len(list) * len(hostResolvers()), checkAnswers(out, list, hostResolvers())
}

// optIn labels a namespace. Its pods' first server is the agent, which has counted their queries.
func (a *adoptionTest) optIn(ctx context.Context, s *suite) (string, error) {
	if a.api == nil {
		return "", errNoOptInPods
	}
	namespace := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": optInNS, "labels": object{"nodens.dev/dns": "agent"}}}
	if _, err := s.cluster.Kubectl(ctx, (objectList{namespace}).String(), "create", "-f", "-"); err != nil {
		return "", err
	}
	if err := a.awaitPolicy(ctx, corev1.DNSNone); err != nil {
		return "", err
	}
	pods, err := a.startPods(ctx, s, "in")
	if err != nil {
		return "", err
	}
	if err := a.checkServers(ctx, s, pods, localDNS, cluster.DNS); err != nil {
		return "", err
	}
	a.pods = pods
	return a.checkCounted(ctx, s)
}

// checkCounted checks that the agents count the look-ups of their nodes' pods.
func (a *adoptionTest) checkCounted(ctx context.Context, s *suite) (string, error) {
	var seen []string
	for i, n := range s.cluster.Nodes() {
		before, err := s.cluster.MetricSum(ctx, n, metricsPort, requestsMetric)
		if err != nil {
			return "", err
		}
		answers, err := a.askEach(ctx, s, a.pods[i], 5)
		if err != nil {
			return "", err
		}
		after, err := s.cluster.MetricSum(ctx, n, metricsPort, requestsMetric)
		if err != nil {
			return "", err
		}
		if after-before < float64(answers) {
			return "", fmt.Errorf("%d look-ups on %s made its agent count %.0f queries, want as many at least", answers, n.Name, after-before)
		}
		seen = append(seen, fmt.Sprintf("%s: %d look-ups by %s, %.0f queries counted", n.Name, answers, strings.Join(hostResolvers(), ", "), after-before))
	}
	return strings.Join(seen, "; "), nil
}

// killAgents kills each node's agent while all resolvers ask, until its successor is ready.
func (a *adoptionTest) killAgents(ctx context.Context, s *suite) (string, error) {
	if a.pods == nil {
		return "", errNoOptInPods
	}
	var seen []string
	h := &chaosTest{suite: s, api: a.api, nodes: s.cluster.Nodes()}
	for i, n := range h.nodes {
		answers, err := a.askWhile(ctx, s, a.pods[i], func() error { return h.killAndAwait(ctx, n) })
		if err != nil {
			return "", fmt.Errorf("%s: %w", n.Name, err)
		}
		seen = append(seen, fmt.Sprintf("%s: %d look-ups", n.Name, answers))
	}
	return strings.Join(seen, "; ") + "; 0 failed", nil
}

// askWhile asks without a pause until do has returned, and once more.
func (a *adoptionTest) askWhile(ctx context.Context, s *suite, pod string, do func() error) (answers int, err error) {
	if answers, err = a.askEach(ctx, s, pod, 5); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	for over := false; !over; {
		select {
		case err := <-done:
			if err != nil {
				return answers, err
			}
			over = true
		default:
		}
		n, err := a.askEach(ctx, s, pod, 5)
		if err != nil {
			if !over {
				err = errors.Join(err, <-done)
			}
			return answers, err
		}
		answers += n
	}
	return answers, nil
}

// optOut takes the label away.
func (a *adoptionTest) optOut(ctx context.Context, s *suite) (string, error) {
	if a.pods == nil {
		return "", errNoOptInPods
	}
	if _, err := s.cluster.Kubectl(ctx, "", "label", "namespace", optInNS, "nodens.dev/dns-"); err != nil {
		return "", err
	}
	if err := a.awaitPolicy(ctx, corev1.DNSClusterFirst); err != nil {
		return "", err
	}
	pods, err := a.startPods(ctx, s, "out")
	if err != nil {
		return "", err
	}
	if err := a.checkServers(ctx, s, pods, cluster.DNS); err != nil {
		return "", err
	}
	total := 0
	for _, pod := range append(pods, a.pods...) {
		n, err := a.askEach(ctx, s, pod, 1)
		if err != nil {
			return "", err
		}
		total += n
	}
	return fmt.Sprintf("%d look-ups in new and old pods", total), nil
}

// notReadyTaint is the start-up taint that the agent removes.
var notReadyTaint = corev1.Taint{Key: "nodens.dev/not-ready", Effect: corev1.TaintEffectNoExecute}

// firstLookups is a DaemonSet whose pods resolve names as the first thing they do.
const firstLookups = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: first, namespace: default}
spec:
  selector: {matchLabels: {app: first}}
  template:
    metadata: {labels: {app: first}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - name: probe
          image: probe:e2e
          imagePullPolicy: Never
          command: [sh, -c, 'printf "QUESTIONS" | probe every musl glibc go c-ares >/tmp/first; touch /tmp/done; sleep infinity']
          readinessProbe: {exec: {command: [test, -e, /tmp/done]}, periodSeconds: 1}
`

// joinNode adds a node with the start-up taint, whose pods have the agent as their only server. A pod
// that resolves names at once must not start before the agent has removed the taint.
func (a *adoptionTest) joinNode(ctx context.Context, s *suite) (string, error) {
	if a.api == nil {
		return "", errNoOptInPods
	}
	if err := a.apply(ctx, s, "node-condition"); err != nil {
		return "", err
	}
	list := adoptionQuestions()
	var asked strings.Builder
	for _, q := range list {
		asked.WriteString(q.ask + `\\n`)
	}
	if _, err := s.cluster.Kubectl(ctx, strings.Replace(firstLookups, "QUESTIONS", asked.String(), 1), "create", "-f", "-"); err != nil {
		return "", err
	}
	n, err := s.cluster.Join(ctx, []string{localDNS}, notReadyTaint)
	if err != nil {
		return "", err
	}
	pod, err := a.podOn(ctx, n)
	if err != nil {
		return "", err
	}
	if err := checkFirst(ctx, s, pod, list); err != nil {
		return "", err
	}
	ready, err := a.dnsReady(ctx, n)
	if err != nil {
		return "", err
	}
	started := pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time
	if started.Before(ready) {
		return "", fmt.Errorf("the pod started at %s, before the node's DNS was ready at %s", started, ready)
	}
	return fmt.Sprintf("%s: the pod started %.0f s after the node's DNS was ready; its first %d look-ups were answered",
		n.Name, started.Sub(ready).Seconds(), len(list)*len(hostResolvers())), nil
}

// checkFirst checks the pod's only server, and the answers to the first look-ups.
func checkFirst(ctx context.Context, s *suite, pod corev1.Pod, list []question) error {
	out, err := s.cluster.Exec(ctx, pod.Namespace, pod.Name, "cat", "/etc/resolv.conf", "/tmp/first")
	if err != nil {
		return err
	}
	conf, answers, _ := strings.Cut(out, "musl ")
	if strings.Count(conf, "nameserver ") != 1 || !strings.Contains(conf, "nameserver "+localDNS+"\n") {
		return fmt.Errorf("the pod's resolv.conf is %q, want the agent alone", conf)
	}
	return checkAnswers("musl "+answers, list, hostResolvers())
}

// podOn waits until the DaemonSet's pod on the node is ready.
func (a *adoptionTest) podOn(ctx context.Context, n *cluster.Node) (pod corev1.Pod, err error) {
	err = peer.Await(ctx, "a pod on "+n.Name, func(ctx context.Context) error {
		list, err := a.api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=first", FieldSelector: "spec.nodeName=" + n.Name})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready {
				pod = p
				return nil
			}
		}
		sleep(ctx, pollInterval)
		return fmt.Errorf("%d pods, none is ready", len(list.Items))
	})
	return pod, err
}

// dnsReady returns since when the node has had the condition of the agent. The taint must be gone.
func (a *adoptionTest) dnsReady(ctx context.Context, n *cluster.Node) (since time.Time, err error) {
	node, err := a.api.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return since, err
	}
	for _, t := range node.Spec.Taints {
		if t.Key == notReadyTaint.Key {
			return since, fmt.Errorf("the node still has the taint %s", t.ToString())
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "nodens.dev/DNSReady" && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, nil
		}
	}
	return since, fmt.Errorf("the node's conditions don't say that DNS is ready: %v", node.Status.Conditions)
}
