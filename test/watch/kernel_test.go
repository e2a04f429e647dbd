package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// changed returns how many Services change.
func changed() int { return soak.Choose(80, 1000) }

const (
	// after is how many times a Service is asked for at least once its change is
	// acknowledged: the first few are answered by the agent, and what comes then by the
	// kernel again. An answer that is too old would be the first.
	after = 50
)

// testKernel changes Services, one after the other, while a pod asks for them as fast as
// it can and the kernel answers. Once the agent itself, asked over TCP, has given the new
// answer, no answer to a query that is asked later is the old one.
func testKernel(t *testing.T, binary string, api *apiserver.Server, client kubernetes.Interface) {
	l := pods(t, binary, api)
	w := &witness{t: t, udp: dial(t, l.Pod, "udp"), tcp: &dns.Conn{Conn: dial(t, l.Node, "tcp")}}
	for n := range changed() {
		for _, c := range turn(client, n) {
			w.watch(c)
		}
	}
	m, err := l.Metrics()
	check.NoError(t, err)
	inKernel := int(m[`nodens_kernel_path_queries_total{result="answered"}`])
	t.Logf("%d changes; %d queries, of which the kernel has answered %d: %d before the change, %d between it and its acknowledgement, %d after; %d stale",
		w.changes, w.before+w.between+w.after, inKernel, w.before, w.between, w.after, w.stale)
	if w.stale > 0 {
		t.Errorf("%d answers are older than what the agent has acknowledged", w.stale)
	}
	if all := w.before + w.between + w.after; inKernel < all/2 {
		t.Errorf("the kernel has answered %d of %d queries, which says little about it", inKernel, all)
	}
}

// pods makes a lab whose agent answers in the kernel and follows the API server.
func pods(t *testing.T, binary string, api *apiserver.Server) *testbed.Network {
	t.Helper()
	if err := testbed.KernelPathUsable(); err != nil {
		t.Skip(err)
	}
	l := testbed.ForTest(t, binary)
	check.NoError(t, l.Relay(l.Node, api.Addr()))
	conf, err := l.File("Corefile", fmt.Sprintf(`.:53 {
    bind %s
    errors
    prometheus 127.0.0.1:9253
    kubernetes cluster.local {
        kubeconfig %s
    }
}
`, testbed.Local4, api.Kubeconfig(apiserver.Agent)))
	check.NoError(t, err)
	p, err := l.StartAgent("-conf", conf, "-localip", testbed.Local4, "-metrics-listen-address=", "-netfilter=none", testbed.KernelPathFlag)
	check.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent wrote:\n%s", p.Tail())
		}
	})
	return l
}

func dial(t *testing.T, ns, network string) net.Conn {
	t.Helper()
	conn, err := testbed.Dial(ns, network, net.JoinHostPort(testbed.Local4, "53"))
	check.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// fact is what an answer says: the rcode and the first address.
type fact struct {
	rcode byte
	addr  [4]byte
}

// turn is what happens to the n-th Service: every second one is headless, and gets another
// endpoint; the others go, and come again with another address.
func turn(client kubernetes.Interface, n int) []step {
	services, slices := client.CoreV1().Services(namespace), client.DiscoveryV1().EndpointSlices(namespace)
	first, second := [4]byte{10, 96, 128 + byte(n/250), 1 + byte(n%250)}, [4]byte{10, 96, 136 + byte(n/250), 1 + byte(n%250)}
	text := func(a [4]byte) string { return net.IP(a[:]).String() }
	name := fmt.Sprintf("turn-%d", n)
	if n%2 == 0 {
		s := headless(name)
		slice := endpoints(name, text(first))
		return []step{{
			name: owner(s), old: fact{addr: first}, now: fact{addr: second},
			prepare: func(ctx context.Context) error {
				_, err := services.Create(ctx, s, metav1.CreateOptions{})
				_, err2 := slices.Create(ctx, slice, metav1.CreateOptions{})
				return errors.Join(err, err2)
			},
			write: func(ctx context.Context) error {
				slice.Endpoints[0].Addresses[0] = text(second)
				_, err := slices.Update(ctx, slice, metav1.UpdateOptions{})
				return err
			},
		}}
	}
	create := func(a [4]byte) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := services.Create(ctx, clusterIP(name, text(a)), metav1.CreateOptions{})
			return err
		}
	}
	denied := fact{rcode: dns.RcodeNameError}
	return []step{
		{name: owner(clusterIP(name, "")), old: fact{addr: first}, now: denied, prepare: create(first), write: func(ctx context.Context) error {
			return services.Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{name: owner(clusterIP(name, "")), old: denied, now: fact{addr: second}, write: create(second)},
	}
}

// step is one change of a Service.
type step struct {
	name     string
	old, now fact
	// prepare, where it is not nil, makes what is to be changed; write changes it.
	prepare, write func(context.Context) error
}

// witness asks for what changes. The counts are of queries from the pod.
type witness struct {
	t                             *testing.T
	udp                           net.Conn // from the pod
	tcp                           *dns.Conn
	changes                       int
	before, between, after, stale int
}

// sighting is an answer that the pod got, and when it asked.
type sighting struct {
	asked time.Time
	fact
}

// watch makes the change.
func (w *witness) watch(c step) {
	w.t.Helper()
	ctx := w.t.Context()
	if c.prepare != nil {
		if err := c.prepare(ctx); err != nil {
			w.t.Fatal(err)
		}
	}
	w.acknowledged(c.name, c.old)
	var asked atomic.Int64
	var done atomic.Bool
	seen := make(chan []sighting, 1)
	go func() {
		var all []sighting
		for !done.Load() {
			s, err := w.ask(c.name)
			if err != nil {
				w.t.Error(err)
				break
			}
			all = append(all, s)
			asked.Add(1)
		}
		seen <- all
	}()
	awaitCount(&asked, after, seen)
	written := time.Now()
	err := c.write(ctx)
	acknowledged := w.acknowledged(c.name, c.now)
	awaitCount(&asked, asked.Load()+after, seen)
	done.Store(true)
	all := <-seen
	if err != nil {
		w.t.Fatal(err)
	}
	w.changes++
	for _, s := range all {
		switch {
		case s.asked.Before(written):
			w.before++
		case !s.asked.After(acknowledged):
			w.between++
		default:
			w.after++
			if s.fact != c.now {
				w.stale++
			}
		}
		if s.fact != c.old && s.fact != c.now {
			w.t.Errorf("%s is %v, which it never was", c.name, s.fact)
		}
	}
}

// awaitCount waits until so many have been counted, or nobody counts any more.
func awaitCount(n *atomic.Int64, want int64, ended chan []sighting) {
	for n.Load() < want && len(ended) == 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

// acknowledged is when the agent itself had given the answer over TCP.
func (w *witness) acknowledged(name string, want fact) time.Time {
	w.t.Helper()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	packed, err := q.Pack()
	if err != nil {
		w.t.Fatal(err)
	}
	limit := time.Now().Add(time.Minute) // ends a test whose change never comes
	for {
		_ = w.tcp.SetDeadline(limit)
		if _, err := w.tcp.Write(packed); err != nil {
			w.t.Fatal(err)
		}
		reply, err := w.tcp.ReadMsgHeader(nil)
		if err != nil {
			w.t.Fatalf("%s never becomes %v: %v", name, want, err)
		}
		if learn(reply, len(packed)) == want {
			return time.Now()
		}
	}
}

// ask asks once from the pod.
func (w *witness) ask(name string) (s sighting, err error) {
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	packed, err := q.Pack()
	if err != nil {
		return s, err
	}
	s.asked = time.Now()
	if err := w.udp.SetDeadline(s.asked.Add(time.Minute)); err != nil {
		return s, err
	}
	if _, err := w.udp.Write(packed); err != nil {
		return s, err
	}
	var buf [dns.MinMsgSize]byte
	n, err := w.udp.Read(buf[:])
	if err != nil {
		return s, err
	}
	if n < len(packed) || !bytes.Equal(buf[:2], packed[:2]) || !bytes.Equal(buf[12:len(packed)], packed[12:]) {
		return s, fmt.Errorf("%x is no answer to %x", buf[:n], packed)
	}
	s.fact = learn(buf[:n], len(packed))
	return s, nil
}

// learn is what a reply says, whose question ends at end: of the first record all but the
// address has 12 bytes, its name being a pointer.
func learn(reply []byte, end int) (f fact) {
	f.rcode = reply[3] & 15
	if reply[7] > 0 && len(reply) >= end+16 {
		copy(f.addr[:], reply[end+12:])
	}
	return f
}
