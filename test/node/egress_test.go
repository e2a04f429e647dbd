package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

const (
	// egressRange has the addresses of the own upstream's answers; egressDenied is no answer to a name that is allowed.
	egressRange  = "198.18.0.0/15"
	egressDenied = "198.19.255.1"
	// egressPort is where the upstream accepts connections to all of them.
	egressPort = "8080"
)

// egressRules returns the operator's rules of the how-to guide for the policy info/p.
func egressRules(t *testing.T) string {
	t.Helper()
	root, err := peer.Root()
	check.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "how-to", "dns-policy.md"))
	check.NoError(t, err)
	_, rules, ok := strings.Cut(string(page), "```text\ntable inet")
	if !ok {
		t.Fatal("the page has no rules")
	}
	rules, _, _ = strings.Cut(rules, "```")
	return "table inet" + strings.ReplaceAll(rules, "shop/payment", "info/p")
}

// egressNetwork is a node whose operator denies what is not in the set, with a pod that looks names up and connects.
type egressNetwork struct {
	*searchNetwork
	mu   sync.Mutex
	next netip.Addr // of the upstream's answers
}

func newEgressNetwork(t *testing.T) (*egressNetwork, []string) {
	l := &egressNetwork{next: netip.MustParseAddr("198.18.0.1")}
	n := newKernelNetwork(t)
	n.startOwnUpstream(func(q *dns.Msg) *dns.Msg {
		l.mu.Lock()
		defer l.mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		for range 3 {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: l.next.AsSlice()})
			l.next = l.next.Next()
		}
		return m
	})
	args := n.allAddrArgs(testbed.KernelPathFlag, "-node-name=n1", "-dns-policies=closed")
	n.useOwnUpstream()
	n.in(n.upstream, "ip", "route", "add", "local", egressRange, "dev", "lo")
	n.in(n.node, "nft", egressRules(t))
	var ln net.Listener
	check.NoError(t, testbed.InNamespace(n.upstream, func() (err error) {
		ln, err = net.Listen("tcp4", "0.0.0.0:"+egressPort)
		return err
	}))
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	n.in(n.upstream, "nft", "table inet seen { chain in { type filter hook prerouting priority 0; ip daddr "+egressDenied+" counter; }; }")
	l.searchNetwork = n.withSearchers(func() *peer.Process { return n.startAgentWith(args...) })
	return l, args
}

// counted returns the packets that the counters of a chain have seen.
func (l *egressNetwork) counted(ns, table, chain string) (all int) {
	l.t.Helper()
	_, text, _ := strings.Cut(l.in(ns, "nft", "list", "chain", "inet", table, chain), "counter packets ")
	for text != "" {
		var n int
		if _, err := fmt.Sscanf(text, "%d", &n); err != nil {
			l.t.Fatal(err)
		}
		all += n
		_, text, _ = strings.Cut(text, "counter packets ")
	}
	return all
}

// lookUp asks for a name in the pod. As a client it asks again after SERVFAIL, which it gets while another program holds the packet
// filter for long.
func (l *egressNetwork) lookUp(name string) (m *dns.Msg, err error) {
	for range 5 {
		if m, err = l.ask(name); err != nil || m.Rcode != dns.RcodeServerFailure {
			break
		}
	}
	return m, err
}

func (l *egressNetwork) ask(name string) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	conn, err := testbed.Dial(l.pod, "udp", net.JoinHostPort(local4, "53"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	c := &dns.Conn{Conn: conn}
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	return c.ReadMsg()
}

// visit looks a name up in the pod, and connects to all addresses in the answer at once.
func (l *egressNetwork) visit(name string) error {
	m, err := l.lookUp(name)
	if err != nil {
		return fmt.Errorf("looking %s up: %w", name, err)
	}
	if len(m.Answer) == 0 {
		return fmt.Errorf("looking %s up: %s", name, dns.RcodeToString[m.Rcode])
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			conn, err := testbed.Dial(l.pod, "tcp", net.JoinHostPort(a.A.String(), egressPort))
			if err != nil {
				return fmt.Errorf("connecting to %s: %w", name, err)
			}
			conn.Close()
		}
	}
	return nil
}

// attack sends a packet to an address that no allowed name has.
func (l *egressNetwork) attack() error {
	conn, err := testbed.Dial(l.pod, "udp", net.JoinHostPort(egressDenied, egressPort))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("x"))
	return err
}

// egressNames is how many names are looked up in turn during a hand-over: with their addresses, three times as many don't fill
// the set, however long it takes.
const egressNames = 300

// TestEgress: a pod reaches the addresses of the names that its policy allows from the moment it has the answer, and no others: also while
// agents hand over, after one is killed, and while there is none.
func TestEgress(t *testing.T) {
	t.Parallel()
	l, args := newEgressNetwork(t)
	pod := l.pods[0]
	policy := dnsPolicy("info", `egressSet: true, allow: ["*.allowed.test"], allowServices: [{namespace: shop}]`)
	l.setObjects(podObject("info", pod.addr), policy)
	pod.awaitAgent(pack(question("x.denied.test.", dns.TypeA)), "REFUSED")
	l.p.Must(t, "the pod to be in its set", func(context.Context) error {
		if text := l.in(l.node, "nft", "list", "set", "inet", "nodens-egress", "pods4/info/p"); !strings.Contains(text, pod.addr) {
			return errors.New(text)
		}
		return nil
	})

	attacks := 0
	visit := func(n int) {
		t.Helper()
		for i := range n {
			for _, name := range []string{fmt.Sprintf("n%d.allowed.test.", i), "same.allowed.test."} { // a new name, and one that is cached or has other addresses
				check.NoError(t, l.visit(name))
			}
			check.NoError(t, l.attack())
			attacks++
		}
	}
	visit(20)
	for round := range 3 {
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := errors.Join(l.visit(fmt.Sprintf("r%d-%d.allowed.test.", round, i%egressNames)), l.attack()); err != nil {
					t.Errorf("during hand-over %d: %v", round, err)
					return
				}
				attacks++
			}
		}()
		l.p = l.upgrade(l.p, round, args)
		close(stop)
		<-done
		visit(3)
	}
	l.p.Kill()
	check.NoError(t, l.attack())
	attacks++
	l.p = l.startAgentWith(args...)
	visit(3)
	check.Equal(t, attacks, l.counted(l.node, "nodens-egress", "egress"), "packets that were dropped: those to other addresses, and none to addresses of allowed names")
	check.Equal(t, 0, l.counted(l.upstream, "seen", "in"), "packets to other addresses that arrived")

	// Without the policy the sets are empty, and the operator's rules deny nothing.
	l.setObjects(podObject("info", pod.addr))
	l.p.Must(t, "the set to be empty", func(context.Context) error {
		if text := l.in(l.node, "nft", "list", "set", "inet", "nodens-egress", "pods4/info/p"); strings.Contains(text, pod.addr) {
			return errors.New(text)
		}
		return nil
	})
	check.NoError(t, l.attack())
	check.Equal(t, 1, l.counted(l.upstream, "seen", "in"), "packets that arrive without a policy")
}

// TestEgressDelay: the replies to a pod whose policy has sets have the addresses of names that nobody has asked for before, as have those to a
// pod without sets. -v prints how long both take, in turn.
func TestEgressDelay(t *testing.T) {
	t.Parallel()
	l, _ := newEgressNetwork(t)
	const allow = `allow: ["*.allowed.test"]`
	l.setObjects(podObject("info", l.pods[0].addr), dnsPolicy("info", "egressSet: true, "+allow), podObject("shop", l.pods[1].addr), dnsPolicy("shop", allow))
	var conns [2]*dns.Conn
	for i, pod := range l.pods {
		conns[i] = &dns.Conn{Conn: pod.pod.Conn}
		pod.awaitAgent(pack(question("x.denied.test.", dns.TypeA)), "REFUSED")
	}
	var took [2][]time.Duration
	for n := range soak.Choose(50, 1000) { // of three addresses each: with more the set is full
		for i, conn := range conns {
			began := time.Now()
			check.NoError(t, conn.WriteMsg(new(dns.Msg).SetQuestion(fmt.Sprintf("d%d-%d.allowed.test.", i, n), dns.TypeA)))
			m, err := conn.ReadMsg()
			took[i] = append(took[i], time.Since(began))
			check.NoError(t, err)
			if len(m.Answer) != 3 {
				t.Fatalf("pod %d: %v", i, m)
			}
		}
	}
	in := func(policy string) int {
		return strings.Count(l.in(l.node, "nft", "list", "set", "inet", "nodens-egress", "to4/"+policy), "198.18.")
	}
	check.Equal(t, 3*len(took[0]), in("info/p"), "addresses in the set")
	for i, name := range []string{"with sets", "without"} {
		slices.Sort(took[i])
		t.Logf("%s: p50 %v, p99 %v, of %d replies to names that are new", name, took[i][len(took[i])/2], took[i][len(took[i])*99/100], len(took[i]))
	}
}
