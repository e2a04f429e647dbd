package differential

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
)

// subject is the program that is compared with CoreDNS. Setting
// NODENS_SUBJECT=coredns compares CoreDNS with itself, which shows what the
// comparison itself makes of two runs of the same program.
func subject() string {
	if s := os.Getenv("NODENS_SUBJECT"); s != "" {
		return s
	}
	return "nodens"
}

// most is how many kinds of difference of one Corefile are printed, each with
// its first query and both answers.
const most = 60

func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server and CoreDNS takes minutes: skipped under -short")
	}
	s := &site{upstream: startUpstream(t), binaries: map[string]string{}}
	for _, name := range []string{"coredns", subject()} {
		s.binaries[name] = peer.Build(t, name)
	}
	api := apiserver.Start(t)
	s.kubeconfig = api.Kubeconfig(apiserver.Agent)
	client, err := api.Client()
	if err != nil {
		t.Fatal(err)
	}
	w := fixedWorld()
	if err := w.write(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	deleteSome(t, client)
	random := newGenerator(seed(t))
	if err := random.write(t.Context(), client); err != nil {
		t.Fatal(err)
	}

	table := allowed()
	s.clusterDNS = s.serve(t, "coredns", corefiles[0])
	for _, c := range corefiles {
		t.Run(c.name, func(t *testing.T) {
			r := &run{
				t: t, different: map[string]*group{}, known: map[string]view{}, table: table, below: below(w, &random.world), caches: c.caches, started: time.Now(),
				coredns: s.serve(t, "coredns", c), agent: s.serve(t, subject(), c),
			}
			synced(t, client, "after-"+c.name, s.clusterDNS, r.coredns, r.agent)
			r.compare(fixedQueries(w))
			r.compare(random.queries())
			r.report()
		})
	}
	if !t.Failed() {
		reportUnused(t, table)
	}
}

// seed returns the seed of the random part, which NODENS_SEED sets, and logs
// it.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := rand.Uint64()
	if s := os.Getenv("NODENS_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("NODENS_SEED is not a number: %v", err)
		}
	}
	t.Logf("NODENS_SEED=%d repeats the random part", n)
	return n
}

// deleteSome makes a service and a namespace with a service, and deletes them
// again.
func deleteSome(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	gone := &world{namespaces: []string{"deleted"}}
	gone.service("plain", "deleted", []string{"10.96.3.1"}, port("http", 80, corev1.ProtocolTCP))
	gone.service("deleted", "service", []string{"10.96.3.2"}, port("http", 80, corev1.ProtocolTCP))
	if err := gone.write(ctx, client); err != nil {
		t.Fatal(err)
	}
	for _, s := range gone.services {
		if err := client.CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.CoreV1().Namespaces().Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// No controller runs that would let the namespace go.
	ns, err := client.CoreV1().Namespaces().Get(ctx, "deleted", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Spec.Finalizers = nil
	if _, err := client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// synced writes a last object of each kind and waits until every server has
// seen all of them. Events of one kind come in order, so whatever was written
// before has been seen too.
func synced(t *testing.T, client kubernetes.Interface, mark string, servers ...netip.AddrPort) {
	t.Helper()
	w := &world{namespaces: []string{mark}}
	http := port("http", 80, corev1.ProtocolTCP)
	w.service(mark, "mark", none, http)
	w.slice(mark, "mark", "a", []discoveryv1.EndpointPort{ports(http)[0]}, ready("10.244.255.1"))
	if err := w.write(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		// What a cache holds about the name from before would be NXDOMAIN,
		// for five seconds at most.
		err := peer.Await(t.Context(), fmt.Sprintf("%s to see the last objects", server), all(
			rcode(server, "mark."+mark+".svc."+zone, dns.RcodeSuccess),
			rcode(server, "10-1-2-3."+mark+".pod."+zone, dns.RcodeSuccess)))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// run compares the two servers of one Corefile.
type run struct {
	t       *testing.T
	table   []*allowance
	caches  bool
	started time.Time
	coredns netip.AddrPort
	agent   netip.AddrPort

	// below is situation's.
	below map[string][]string

	excusing sync.Mutex // holds the table and known
	// known are the answers that excuses have asked for.
	known map[string]view

	mu        sync.Mutex // holds what follows
	id        uint16
	asked     int
	different map[string]*group
}

// group is differences that look the same in outline.
type group struct {
	outline string
	count   int
	first   string
}

// compare asks both servers each of the queries. One query
// is under way at a time, so that caches fill in the same order; only those
// that may stay without an answer are asked side by side.
func (r *run) compare(qs []query) {
	var dropped []query
	for _, q := range qs {
		if q.dropped {
			dropped = append(dropped, q)
			continue
		}
		r.one(q)
	}
	if err := each(dropped, func(q query) error { r.one(q); return nil }); err != nil {
		r.t.Fatal(err)
	}
}

// one asks both servers one query, and again where the second answer comes
// from a cache.
func (r *run) one(q query) {
	rounds := []string{"first", "second"}
	if !r.caches {
		rounds = rounds[:1]
	}
	for _, round := range rounds {
		want, _, err := ask(r.coredns, q, r.next())
		if err != nil {
			r.t.Fatal(err)
		}
		got, size, err := ask(r.agent, q, r.next())
		if err != nil {
			r.t.Fatal(err)
		}
		if size > q.room() {
			r.t.Errorf("%s is %d bytes long", q, size)
		}
		r.judge(round+" answer to "+q.String(), q, want, got)
	}
}

func (r *run) next() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id++
	return r.id
}

// judge compares two answers and keeps what differs.
func (r *run) judge(what string, q query, want, got view) {
	if r.caches {
		want, got = want.fold(q.name, true), got.fold(q.name, false)
	}
	same := r.same(want, got) || r.excused(q, want, got)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if same {
		return
	}
	outline := fmt.Sprintf("%s: CoreDNS %s, %s %s", dns.Type(q.kind), want.outline(), subject(), got.outline())
	g := r.different[outline]
	if g == nil {
		g = &group{outline: outline, first: fmt.Sprintf("%s\nCoreDNS:\n%v%s:\n%v", what, want, subject(), got)}
		r.different[outline] = g
	}
	g.count++
}

// excused looks the difference up in the table of those that are meant.
func (r *run) excused(q query, want, got view) bool {
	r.excusing.Lock()
	defer r.excusing.Unlock()
	c := situation{query: q, view: want.clone(), below: r.below, caches: r.caches, ask: func(q query) view {
		if v, ok := r.known[q.String()]; ok {
			return v
		}
		v, _, err := ask(r.coredns, q, r.next())
		if err != nil {
			r.t.Error(err)
		}
		if r.caches {
			v = v.fold(q.name, true)
		}
		r.known[q.String()] = v
		return v
	}}
	return excuse(r.table, c, got, r.same)
}

func (r *run) same(want, got view) bool {
	return gocmp.Equal(r.aged(want, got), got)
}

// aged lets TTLs differ by the time that a cache may have held a record, and
// a second for the rounding, where the Corefile has caches.
func (r *run) aged(want, got view) view {
	if !r.caches {
		return want
	}
	return want.age(got, uint32(time.Since(r.started)/time.Second)+1)
}

// report prints the differences, the most frequent ones first.
func (r *run) report() {
	groups := slices.SortedFunc(maps.Values(r.different), func(a, b *group) int {
		return cmp.Or(b.count-a.count, strings.Compare(a.outline, b.outline))
	})
	all := 0
	for i, g := range groups {
		all += g.count
		if i < most {
			r.t.Errorf("%d times %s\nfor example %s", g.count, g.outline, g.first)
		}
	}
	r.t.Logf("%d answers compared, %d differ in %d ways", r.asked, all, len(groups))
}
