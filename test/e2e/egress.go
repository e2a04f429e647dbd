package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/e2e/probe/visit"
	"github.com/nodens-dns/nodens/test/peer"
)

// egress is the part of that name: a namespace with a DNSPolicy that allows three names, and with the rules of the how-to guide on the nodes, which
// drop all packets to addresses that the answers to these names do not have.
func egress() []check {
	e := &egressTest{}
	return []check{
		{"the overlay installs agents that watch DNSPolicies", e.install},
		{"without rules on the nodes, packets to other addresses arrive", e.start},
		{"with the guide's rules, allowed names are reached and nothing else", e.steady},
		{"agents replaced: nothing fails, and nothing else is reached", e.upgrade},
		{"API server stopped, an agent killed meanwhile", e.stopAPIServer},
		{"without the policy the sets are empty", e.end},
	}
}

const (
	egressNS     = "visits"
	egressPolicy = "three-names"
	// egressDenied is the address of no allowed name, in egressDeniedRange with that of egressDeniedName.
	egressDenied      = "198.19.255.1"
	egressDeniedRange = "198.19.0.0/16"
	egressDeniedName  = "tracker.addr.test"
	egressPort        = "8080"
	// visitsPort is where the pods report.
	visitsPort = "7001"
	// egressRounds is how many rounds, of some 20 ms, are looked at when nothing else happens.
	egressRounds = 100
)

// egressVisited are the names that the pods look up, of which the policy allows the first two and all below cdn.addr.test.
var egressVisited = []string{"250-1.web.addr.test", "*.cdn.addr.test", "250-2.api.addr.test", "*.cdn.addr.test"}

// egressTest is the state of the part.
type egressTest struct {
	*chaosTest
	runner guideRunner
	pods   []corev1.Pod // that visit, in the order of the nodes
	// toAllowed, toDenied and datagrams are connections and datagrams that have arrived outside.
	toAllowed, toDenied, datagrams atomic.Int64
	before                         egressSnapshot
	closers                        []io.Closer
}

// egressSnapshot is what pods, nodes and the world outside have counted, while no pod does anything.
type egressSnapshot struct {
	visits []visit.Counts // of the pods
	// dropped are packets that the nodes' rules have dropped, arrived those at denied addresses, and received what programs there have received.
	dropped, arrived, received int64
}

// install applies the overlay, with agents that give no answer to a client whose policies they don't know.
func (e *egressTest) install(ctx context.Context, s *suite) (string, error) {
	api, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return "", err
	}
	if err := e.runner.prepare(ctx, s); err != nil {
		return "", err
	}
	component := filepath.Join(e.runner.tree, "daemonset/components/dns-policy/kustomization.yaml")
	text, err := os.ReadFile(component)
	if err != nil {
		return "", err
	}
	const open = "-dns-policies=open\n"
	if strings.Count(string(text), open) != 1 {
		return "", fmt.Errorf("%s does not have %q once", component, open)
	}
	if err := os.WriteFile(component, []byte(strings.Replace(string(text), open, "-dns-policies=closed\n", 1)), 0o644); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "wait", "node", "--all", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return "", err
	}
	const apply = "kubectl apply -k daemonset/overlays/dns-policy && kubectl wait crd/dnspolicies.nodens.dev --for=condition=Established --timeout=60s" +
		" && kubectl -n kube-system rollout status daemonset/" + agentDaemonSet + " --timeout=2m"
	if _, err := e.runner.runShell(ctx, s, apply); err != nil {
		return "", err
	}
	e.chaosTest = &chaosTest{suite: s, api: api, nodes: s.cluster.Nodes()}
	return "-dns-policies=closed", nil
}

// egressObjects are the namespace, its policy, and the pods that visit.
func egressObjects() objectList {
	command := append([]string{"probe", "visit", ":" + visitsPort, egressDenied + ":" + egressPort, egressDeniedName}, egressVisited...)
	labels := object{"app": "visitor"}
	return objectList{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": egressNS}},
		{
			"apiVersion": "nodens.dev/v1alpha1", "kind": "DNSPolicy", "metadata": object{"name": egressPolicy, "namespace": egressNS},
			"spec": object{"podSelector": object{}, "allow": []string{egressVisited[0], egressVisited[1], egressVisited[2]}, "egressSet": true},
		},
		{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": "visitor", "namespace": egressNS},
			"spec": object{
				"selector": object{"matchLabels": labels},
				"template": object{"metadata": object{"labels": labels}, "spec": object{
					"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
					"containers": []object{{"name": "probe", "image": probeImageRef, "imagePullPolicy": "Never", "command": command}},
				}},
			},
		},
	}
}

// start starts the world outside and the pods, and waits until packets of each pod to the denied address arrive there: nothing but the
// nodes' rules will keep them away.
func (e *egressTest) start(ctx context.Context, s *suite) (string, error) {
	if e.chaosTest == nil {
		return "", errNoLoadPods
	}
	if err := e.listen(ctx); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, egressObjects().String(), "create", "-f", "-"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "-n", egressNS, "rollout", "status", "daemonset/visitor", "--timeout=90s"); err != nil {
		return "", err
	}
	if err := e.findVisitors(ctx); err != nil {
		return "", err
	}
	if err := e.awaitGood(ctx, 10); err != nil {
		return "", err
	}
	packets, err := e.seen(ctx)
	if err != nil {
		return "", err
	}
	if n := e.datagrams.Load(); min(n, packets-n, e.toAllowed.Load()) <= 0 {
		err = errors.New("a kind of packets does not arrive: there is nothing to deny")
	}
	return fmt.Sprintf("%d packets to %s, %d of them datagrams; %d connections to addresses of allowed names",
		packets, egressDenied, e.datagrams.Load(), e.toAllowed.Load()), err
}

// findVisitors finds the pod of each node.
func (e *egressTest) findVisitors(ctx context.Context) error {
	var pods []corev1.Pod
	for _, n := range e.nodes {
		list, err := e.api.CoreV1().Pods(egressNS).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("node %s has %d pods, want one", n.Name, len(list.Items))
		}
		pods = append(pods, list.Items[0])
	}
	e.pods = pods
	return nil
}

// seen returns the packets to denied addresses that have arrived.
func (e *egressTest) seen(ctx context.Context) (int64, error) {
	out, err := e.cluster.Command(ctx, "nft", "list", "chain", "inet", "seen", "in").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	return countedPackets(string(out)), nil
}

// listen makes the addresses outside, which accept connections and datagrams, and a counter of the denied ones.
func (e *egressTest) listen(ctx context.Context) error {
	for _, command := range [][]string{
		{"ip", "route", "add", "local", "198.18.0.0/15", "dev", "lo"},
		{"nft", "table inet seen { chain in { type filter hook prerouting priority 0; ip daddr " + egressDeniedRange + " counter; }; }"},
	} {
		if out, err := e.cluster.Command(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", command, err, out)
		}
	}
	l, err := e.cluster.Listen(ctx, "tcp4", "0.0.0.0:"+egressPort)
	if err != nil {
		return err
	}
	u, err := e.cluster.ListenPacket(ctx, "udp4", "0.0.0.0:"+egressPort)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	e.closers = []io.Closer{l, u}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if strings.HasPrefix(conn.LocalAddr().String(), "198.19.") {
				e.toDenied.Add(1)
			} else {
				e.toAllowed.Add(1)
			}
			conn.Close()
		}
	}()
	go func() {
		for {
			if _, _, err := u.ReadFrom(make([]byte, 1)); err != nil {
				return
			}
			e.datagrams.Add(1)
		}
	}()
	return nil
}

// visits returns what the pod has done. It does nothing more until stop is called.
func (e *egressTest) visits(ctx context.Context, pod corev1.Pod) (c visit.Counts, stop func(), err error) {
	conn, err := e.cluster.Dial(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, visitsPort))
	if err != nil {
		return c, nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewDecoder(conn).Decode(&c); err != nil {
		conn.Close()
		return c, nil, fmt.Errorf("the visits of %s: %w", pod.Name, err)
	}
	return c, func() { conn.Close() }, nil
}

// awaitGood waits until each pod has done n rounds more, and the last n of them did not fail.
func (e *egressTest) awaitGood(ctx context.Context, n int) error {
	for _, p := range e.pods {
		began := -1
		err := peer.Await(ctx, fmt.Sprintf("%d visits of %s", n, p.Name), func(ctx context.Context) error {
			c, stop, err := e.visits(ctx, p)
			if err != nil {
				return err
			}
			stop()
			if began < 0 {
				began = c.Rounds
			}
			if c.Rounds-began >= n && c.Good >= n {
				return nil
			}
			sleep(ctx, pollInterval)
			return fmt.Errorf("it has done %+v", c)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// snapshot stops all pods, reads all counters, and runs do, if it is not nil, before the pods go on.
func (e *egressTest) snapshot(ctx context.Context, do func() error) (s egressSnapshot, err error) {
	for _, p := range e.pods {
		c, stop, err := e.visits(ctx, p)
		if err != nil {
			return s, err
		}
		defer stop()
		s.visits = append(s.visits, c)
	}
	if do != nil {
		if err := do(); err != nil {
			return s, err
		}
	}
	for _, n := range e.nodes {
		out, err := n.Command(ctx, "nft", "list", "chain", "inet", "nodens-egress", "egress").CombinedOutput()
		if err != nil {
			return s, fmt.Errorf("%w\n%s", err, out)
		}
		s.dropped += countedPackets(string(out))
	}
	s.arrived, err = e.seen(ctx)
	s.received = e.received()
	return s, err
}

// received is what programs at denied addresses have received.
func (e *egressTest) received() int64 { return e.toDenied.Load() + e.datagrams.Load() }

// countedPackets is the sum of the counters in nft's output.
func countedPackets(text string) (all int64) {
	for _, rest := range strings.Split(text, "counter packets ")[1:] {
		var n int64
		_, _ = fmt.Sscanf(rest, "%d", &n) // nft writes a number
		all += n
	}
	return all
}

// steady loads the rules on the nodes, and looks at what happens then.
func (e *egressTest) steady(ctx context.Context, s *suite) (string, error) {
	if e.pods == nil {
		return "", errNoLoadPods
	}
	page, err := os.ReadFile(filepath.Join(s.root, "docs", "how-to", "dns-policy.md"))
	if err != nil {
		return "", err
	}
	_, rules, ok := strings.Cut(string(page), "```text\ntable inet")
	if rules, _, _ = strings.Cut(rules, "```"); !ok {
		return "", errors.New("the guide has no rules")
	}
	rules = "table inet" + strings.ReplaceAll(rules, "shop/payment", egressNS+"/"+egressPolicy)
	for i, n := range e.nodes {
		if err := e.awaitSet(ctx, n, "pods4", e.pods[i].Status.PodIP, true); err != nil {
			return "", err
		}
	}
	e.before, err = e.snapshot(ctx, func() error {
		for _, n := range e.nodes {
			load := n.Command(ctx, "nft", "-f", "-")
			load.Stdin = strings.NewReader(rules)
			if out, err := load.CombinedOutput(); err != nil {
				return fmt.Errorf("loading the guide's rules on %s: %w\n%s", n.Name, err, out)
			}
		}
		return nil
	})
	if err == nil {
		err = e.awaitGood(ctx, egressRounds)
	}
	if err != nil {
		return "", err
	}
	e.before.received = e.received() // what came before the rules has been read by now
	return e.compare(ctx, true)
}

// awaitSet waits until a set has an address, or not.
func (e *egressTest) awaitSet(ctx context.Context, n *cluster.Node, set, addr string, has bool) error {
	return peer.Await(ctx, fmt.Sprintf("%s in the set %s of %s: %t", addr, set, n.Name, has), func(ctx context.Context) error {
		out, err := n.Command(ctx, "nft", "list", "set", "inet", "nodens-egress", set+"/"+egressNS+"/"+egressPolicy).CombinedOutput()
		if err == nil && strings.Contains(string(out), addr) != has {
			err = errors.New("it is not so")
		}
		if err != nil {
			sleep(ctx, pollInterval)
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// compare compares what has happened since the last snapshot with what may happen. exact says that no visit failed and no packet to an allowed
// address was dropped.
func (e *egressTest) compare(ctx context.Context, exact bool) (string, error) {
	now, err := e.snapshot(ctx, nil)
	if err != nil {
		return "", err
	}
	sum := now.since(&e.before)
	dropped, arrived := now.dropped-e.before.dropped, now.arrived-e.before.arrived+now.received-e.before.received
	e.before = now
	seen := fmt.Sprintf("%d visits, %d failed; denied name: %d refused, %d answered; %d packets to denied addresses: %d dropped, %d arrived",
		sum.Rounds, sum.Failed, sum.Refused, sum.Answered, sum.Packets, dropped, arrived)
	switch {
	case sum.Packets == 0 || sum.Refused == 0:
		return "", fmt.Errorf("the pods did not try: %s", seen)
	case arrived != 0 || dropped < int64(sum.Packets):
		return "", fmt.Errorf("packets to denied addresses were not dropped: %s", seen)
	case exact && (sum.Failed+sum.Answered > 0 || dropped != int64(sum.Packets)):
		return "", fmt.Errorf("visits failed, the denied name was answered, or packets to allowed addresses were dropped: %s; %s", seen, sum.Error)
	}
	return seen, nil
}

// since returns the sum of what the pods have done since another snapshot.
func (s *egressSnapshot) since(before *egressSnapshot) (sum visit.Counts) {
	for i, c := range s.visits {
		was := before.visits[i]
		sum.Rounds, sum.Failed, sum.Packets = sum.Rounds+c.Rounds-was.Rounds, sum.Failed+c.Failed-was.Failed, sum.Packets+c.Packets-was.Packets
		sum.Refused, sum.Answered = sum.Refused+c.Refused-was.Refused, sum.Answered+c.Answered-was.Answered
		if c.Failed > was.Failed {
			sum.Error = c.Error
		}
	}
	return sum
}

// upgrade replaces all agents.
func (e *egressTest) upgrade(ctx context.Context, _ *suite) (string, error) {
	if e.before.visits == nil {
		return "", errNoLoadPods
	}
	if err := e.restartAgents(ctx); err != nil {
		return "", err
	}
	if err := e.awaitGood(ctx, egressRounds); err != nil {
		return "", err
	}
	return e.compare(ctx, true)
}

// stopAPIServer stops the API server, and kills the first node's agent, whose successor has the policies of the saved view. While there is no
// agent, the cluster's DNS answers, and what it says does not enter the sets.
func (e *egressTest) stopAPIServer(ctx context.Context, _ *suite) (seen string, err error) {
	if e.before.visits == nil {
		return "", errNoLoadPods
	}
	if err := e.cluster.StopAPI(); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, e.cluster.StartAPI(ctx), e.waitAgentsReady(ctx)) }()
	if err := e.awaitGood(ctx, egressRounds); err != nil {
		return "", err
	}
	away, err := e.compare(ctx, true)
	if err != nil {
		return "", err
	}
	if _, err := e.killAgent(ctx, e.nodes[0]); err != nil {
		return "", err
	}
	if err := e.awaitGood(ctx, egressRounds); err != nil {
		return "", err
	}
	killed, err := e.compare(ctx, false)
	if err != nil {
		return "", err
	}
	if err := e.awaitGood(ctx, egressRounds); err != nil {
		return "", err
	}
	after, err := e.compare(ctx, true)
	return fmt.Sprintf("%s; agent killed: %s; its successor, without the API server: %s", away, killed, after), err
}

// end deletes the policy, which empties the sets that rules use, and what the part has made.
func (e *egressTest) end(ctx context.Context, s *suite) (string, error) {
	for _, c := range e.closers {
		c.Close()
	}
	if e.chaosTest == nil {
		return "", errNoLoadPods
	}
	_, err := s.cluster.Kubectl(ctx, "", "-n", egressNS, "delete", "dnspolicy", egressPolicy)
	for i, n := range e.nodes {
		if err == nil && i < len(e.pods) {
			err = e.awaitSet(ctx, n, "pods4", e.pods[i].Status.PodIP, false)
		}
		if err == nil {
			err = e.awaitSet(ctx, n, "to4", "198.", false)
		}
		err = errors.Join(err, n.Command(ctx, "nft", "delete", "table", "inet", "nodens-egress").Run())
	}
	err = errors.Join(err, e.cluster.Command(ctx, "nft", "delete", "table", "inet", "seen").Run())
	_, deleting := s.cluster.Kubectl(ctx, "", "delete", "namespace", egressNS, "--wait=false")
	return "", errors.Join(err, deleting)
}
