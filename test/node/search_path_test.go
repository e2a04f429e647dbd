package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// podObject is the manifest of a pod of the node n1 with one address, or none.
func podObject(namespace, addr string) string {
	status := "{}"
	if addr != "" {
		status = fmt.Sprintf(`{podIPs: [{ip: "%s"}]}`, addr)
	}
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: app, namespace: %s}\nspec: {nodeName: n1}\nstatus: %s\n", namespace, status)
}

// hiddenName gives web.shop.info a name of its own: it is an endpoint of the Service shop in the namespace info.
const hiddenName = `---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: info}
spec:
  clusterIP: None
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-a, namespace: info, labels: {kubernetes.io/service-name: shop, service.kubernetes.io/headless: ""}}
addressType: IPv4
endpoints: [{addresses: ["10.244.9.9"], hostname: web, conditions: {ready: true}}]
ports: []
`

// searchNetwork is a network with an agent that follows the search paths of two pods.
type searchNetwork struct {
	*network
	p    *peer.Process
	pods [2]*searcher
}

// searcher is a pod that asks over both transports. Replies over TCP are the agent's.
type searcher struct {
	*comparer
	tcp  *dns.Conn
	addr string
}

func newSearchNetwork(t *testing.T) *searchNetwork {
	l := newKernelNetwork(t)
	return l.withSearchers(func() *peer.Process { return l.startSearching("@kubernetes") })
}

// withSearchers adds a pod, and an agent that start starts.
func (n *network) withSearchers(start func() *peer.Process) *searchNetwork {
	t := n.t
	l := &searchNetwork{network: n}
	ns, err := l.AddPod(1)
	check.NoError(t, err)
	l.p = start()
	for i, ns := range []string{l.pod, ns} {
		pod := l.client(ns, local4)
		addr, _, _ := net.SplitHostPort(pod.LocalAddr().String())
		l.pods[i] = &searcher{&comparer{l: l.network, p: l.p, pod: pod}, &dns.Conn{Conn: dialAgent(t, ns, "tcp")}, addr}
	}
	return l
}

// startSearching starts an agent with autopath for the search path of pods, or of a file.
func (l *network) startSearching(path string) *peer.Process {
	l.t.Helper()
	args := l.agentArgs(testbed.KernelPathFlag, "-node-name=n1")
	l.addAutopath(path)
	return l.startAgentWith(args...)
}

// addAutopath adds the directive to the Corefile.
func (l *network) addAutopath(path string) {
	l.t.Helper()
	l.addDirectives("    autopath cluster.local " + path + "\n")
}

// addDirectives adds lines to the server block of the Corefile.
func (l *network) addDirectives(lines string) {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(l.dir, "Corefile"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.file("Corefile", strings.Replace(string(text), "    errors\n", "    errors\n"+lines, 1))
}

// setObjects makes these the objects of the cluster, in addition to those of every network.
func (l *searchNetwork) setObjects(objects ...string) {
	agenttest.ReplaceFile(l.t, filepath.Join(l.dir, "cluster.yaml"), []byte(testbed.Manifests()+strings.Join(objects, "")))
}

// askAgent returns the agent's reply to a query, with ID 0.
func (s *searcher) askAgent(query []byte) ([]byte, error) {
	_ = s.tcp.SetDeadline(time.Now().Add(answerTimeout))
	if _, err := s.tcp.Write(query); err != nil {
		return nil, err
	}
	return s.tcp.ReadMsgHeader(nil)
}

// summary returns the rcode and the last record of the answer.
func summary(reply []byte) string {
	m := new(dns.Msg)
	if err := m.Unpack(reply); err != nil {
		return err.Error()
	}
	if len(m.Answer) == 0 {
		return dns.RcodeToString[m.Rcode]
	}
	last := m.Answer[len(m.Answer)-1]
	return strings.Join(strings.Fields(fmt.Sprint(dns.RcodeToString[m.Rcode], " ", strings.TrimPrefix(last.String(), last.Header().String()), " ", len(m.Answer))), " ")
}

// awaitAgent waits until the agent answers the query so.
func (s *searcher) awaitAgent(query []byte, want string) {
	t := s.pod.t
	t.Helper()
	s.p.Must(t, "the agent to answer "+want+" to "+s.addr, func(context.Context) error {
		reply, err := s.askAgent(query)
		if err == nil && summary(reply) != want {
			err = errors.New(summary(reply))
		}
		return err
	})
}

// expect checks that each reply, from now until one comes from the kernel, is the agent's.
func (s *searcher) expect(query []byte) {
	t := s.pod.t
	t.Helper()
	want, err := s.askAgent(query)
	check.NoError(t, err)
	for range repeats {
		if got := s.pod.ask(query, false); !sameReply(got, want) {
			t.Errorf("%s: the reply is\n%s, want\n%s", s.addr, text(got), text(want))
		}
	}
	if got := s.askUntilKernelAnswers(query); !sameReply(got, want) {
		t.Errorf("%s: the kernel's reply is\n%s, want\n%s", s.addr, text(got), text(want))
	}
}

// TestKernelSearchPath: the kernel gives each pod the answer on the search path of its own namespace, and none that
// the agent would not give: not after a pod of another namespace has the address, not while a new pod may have it, and not
// after the name exists further up the path.
func TestKernelSearchPath(t *testing.T) {
	t.Parallel()
	l := newSearchNetwork(t)
	const first, second, found, hidden, denied = "info", "shop", "NOERROR 10.96.7.1 2", "NOERROR 10.244.9.9 1", "NXDOMAIN"
	query := pack(question("web.shop.info.svc.cluster.local.", dns.TypeA))
	a, b := l.pods[0], l.pods[1]
	step := func(name, wantA, wantB string, objects ...string) {
		t.Helper()
		l.setObjects(objects...)
		a.awaitAgent(query, wantA)
		b.awaitAgent(query, wantB)
		t.Log(name)
		a.expect(query)
		b.expect(query)
	}
	step("two namespaces", found, denied, podObject(first, a.addr), podObject(second, b.addr))
	step("the addresses change hands", denied, found, podObject(first, b.addr), podObject(second, a.addr))
	step("and back", found, denied, podObject(first, a.addr), podObject(second, b.addr))
	step("the name exists", hidden, hidden, podObject(first, a.addr), podObject(second, b.addr), hiddenName)
	step("and is gone", found, denied, podObject(first, a.addr), podObject(second, b.addr))

	l.setObjects(podObject(first, a.addr), podObject(second, b.addr), podObject("new", ""))
	a.awaitAgent(query, denied)
	before := l.kernelAnswers()
	for range repeats {
		for _, s := range l.pods {
			if got := summary(s.pod.ask(query, false)); got != denied {
				t.Errorf("%s gets %s while a pod waits for an address", s.addr, got)
			}
		}
	}
	if n := l.kernelAnswers() - before; n != 0 {
		t.Errorf("the kernel has answered %d queries while a pod waits for an address", n)
	}
	step("all pods have addresses", found, denied, podObject(first, a.addr), podObject(second, b.addr), podObject("new", "10.244.7.99"))

	l.setObjects(podObject(second, b.addr))
	a.awaitAgent(query, denied)
	before = l.kernelAnswers()
	for range repeats {
		if got := summary(a.pod.ask(query, false)); got != denied {
			t.Errorf("%s gets %s, and belongs to no pod", a.addr, got)
		}
	}
	if n := l.kernelAnswers() - before; n != 0 {
		t.Errorf("the kernel has answered %d queries of an address that belongs to no pod", n)
	}
}

// TestKernelSearchUpgrade: after a hand-over the kernel gives each pod the answers of the new agent along its own
// search path.
func TestKernelSearchUpgrade(t *testing.T) {
	t.Parallel()
	n := newKernelNetwork(t)
	args := n.allAddrArgs(testbed.KernelPathFlag, "-node-name=n1")
	n.addAutopath("@kubernetes")
	l := n.withSearchers(func() *peer.Process { return n.startAgentWith(args...) })
	query := pack(question("web.shop.info.svc.cluster.local.", dns.TypeA))
	a, b := l.pods[0], l.pods[1]
	namespaces := []string{"info", "shop"}
	for round := range 3 {
		l.setObjects(podObject(namespaces[0], a.addr), podObject(namespaces[1], b.addr))
		want := map[string]string{"info": "NOERROR 10.96.7.1 2", "shop": "NXDOMAIN"}
		a.awaitAgent(query, want[namespaces[0]])
		b.awaitAgent(query, want[namespaces[1]])
		a.expect(query)
		b.expect(query)
		slices.Reverse(namespaces)
		l.p = l.upgrade(l.p, round, args)
		a.p, b.p = l.p, l.p
	}
}

// TestKernelSearchFile: where all clients have one search path, the kernel's replies equal the agent's for every client,
// also those whose TTLs count down.
func TestKernelSearchFile(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startSearching(l.file("resolv.conf", "search info.svc.cluster.local svc.cluster.local cluster.local\n"))
	a := newComparer(t, l, p, local4)
	for _, name := range []string{"www.example.org", "web.shop", "who." + testbed.Zone, nameOfSize(90, testbed.Zone)} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			if qtype == dns.TypeAAAA && strings.HasSuffix(name, testbed.Zone) {
				continue // the upstream fails for these
			}
			for form, change := range map[string]func(*dns.Msg){"plain": func(*dns.Msg) {}, "EDNS": func(m *dns.Msg) { m.SetEdns0(1232, false) }} {
				t.Run(fmt.Sprintf("%.40s %s %s", name, dns.TypeToString[qtype], form), func(t *testing.T) {
					a.check(t, pack(question(name+".info.svc.cluster.local.", qtype, change)), true, false)
				})
			}
		}
	}
}

// TestKernelSearchMetrics: the kernel's answers along a search path are counted as the agent's.
func TestKernelSearchMetrics(t *testing.T) {
	t.Parallel()
	l := newSearchNetwork(t)
	a := l.pods[0]
	l.setObjects(podObject("info", a.addr))
	query := pack(question("web.shop.info.svc.cluster.local.", dns.TypeA))
	a.awaitAgent(query, "NOERROR 10.96.7.1 2")
	a.askUntilKernelAnswers(query)
	count := func() int { return l.metric("coredns_autopath_success_total") }
	before, kernel := count(), l.kernelAnswers()
	for range 10 * repeats {
		a.pod.ask(query, false)
	}
	if n := l.kernelAnswers() - kernel; n < repeats {
		t.Errorf("the kernel has answered %d of %d queries", n, 10*repeats)
	}
	l.p.Must(t, "all answers to be counted", func(context.Context) error {
		if n := count() - before; n != 10*repeats {
			return fmt.Errorf("%d of %d", n, 10*repeats)
		}
		return nil
	})
}
