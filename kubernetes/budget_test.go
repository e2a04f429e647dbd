// Internal: counts the steps of a Budget.

package kubernetes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/race"
)

// worstCase is a view with the most expensive objects that tenants can create.
type worstCase struct{ *View }

func newWorstCase() worstCase {
	v := emptyView()
	v.addrs = []netip.Addr{netip.MustParseAddr(agentAddr), netip.MustParseAddr("169.254.20.11")}
	return worstCase{v}
}

const agentAddr = "169.254.20.10"

// service adds a Service to the namespace tenant and returns its key.
func (w worstCase) service(name string, s service) string {
	key, _ := serviceKey(name, "tenant")
	w.change(func(x *index) bool { return x.putService(key, s) })
	return key
}

// slice adds a slice of that service with n endpoints, from the address first on.
func (w worstCase) slice(key, name string, first netip.Addr, n int, more func(*slice)) {
	s := &slice{name: "tenant/" + name, key: key, size: 4, addrs: packed(first, n)}
	if more != nil {
		more(s)
	}
	w.change(func(x *index) bool { return x.putSlice(s) })
}

// packed returns n packed addresses from first on.
func packed(first netip.Addr, n int) string {
	var b []byte
	four := first.As4()
	base := binary.BigEndian.Uint32(four[:])
	for i := range n {
		b = binary.BigEndian.AppendUint32(b, base+uint32(i))
	}
	return string(b)
}

// makePorts returns n named ports, of which every step-th has its own number.
func makePorts(n, step int) portList {
	var b strings.Builder
	for i := range n {
		b.WriteString(string(portList("").append(fmt.Sprintf("p%d", i), tcp, uint16(1+i/step*step))))
	}
	return portList(b.String())
}

var podNet, podAddress = netip.MustParseAddr("10.2.0.0"), netip.MustParseAddr("10.1.2.3")

// pod adds one address to n slices, each of its own service.
func (w worstCase) pod(addr string, n int) {
	a := netip.MustParseAddr(addr)
	for i := range n {
		name := fmt.Sprintf("s%05d", i)
		w.slice(w.service(name, service{kind: headless, selects: true}), name, a, 1, nil)
	}
}

// spread adds a headless service of n slices with each endpoints.
func (w worstCase) spread(name string, n, each int, more func(i int, s *slice)) {
	key := w.service(name, service{kind: headless, selects: true})
	a := binary.BigEndian.Uint32([]byte{10, 8, 0, 0})
	for i := range n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], a+uint32(i*each))
		w.slice(key, fmt.Sprintf("%s-%05d", name, i), netip.AddrFrom4(b), each, func(s *slice) {
			s.ports = makePorts(2, 1)
			if more != nil {
				more(i, s)
			}
		})
	}
}

// dearestAnswers are the most expensive queries of each kind.
var dearestAnswers = []struct {
	name  string
	qname string
	qtype uint16
	make  func(w worstCase)
	// large says that it takes a worker at 64 KiB, small that it does at 1,232 bytes. steps
	// is the most that it may take there in all.
	large, small bool
	steps        [2]int // at 1,232 bytes, at 64 KiB
}{
	{"PTR of 5,000 services", "3.2.1.10.in-addr.arpa.", dns.TypePTR, func(w worstCase) { w.pod("10.1.2.3", 5000) }, true, false, [2]int{2100, 90000}},
	{"PTR of 5,000 slices without a service", "3.2.1.10.in-addr.arpa.", dns.TypePTR, func(w worstCase) {
		for i := range 5000 {
			key, _ := serviceKey(fmt.Sprintf("o%05d", i), "tenant")
			w.slice(key, fmt.Sprintf("o%05d", i), podAddress, 1, nil)
		}
	}, true, true, [2]int{85000, 85000}},
	{"PTR of one service's 1,000 slices", "3.2.1.10.in-addr.arpa.", dns.TypePTR, func(w worstCase) {
		key := w.service("big", service{kind: headless})
		for i := range 1000 {
			w.slice(key, fmt.Sprintf("big-%04d", i), podAddress, 1, nil)
		}
	}, true, true, [2]int{22000, 22000}},
	{"SRV of 5,000 ports at 20 endpoints", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.spread("big", 1, 20, func(_ int, s *slice) { s.ports = makePorts(5000, 1) })
	}, true, false, [2]int{2000, 50000}},
	{"SRV of 20 ports at 5,000 endpoints", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.spread("big", 5, 1000, func(_ int, s *slice) { s.ports = makePorts(20, 1) })
	}, true, false, [2]int{2000, 50000}},
	{"SRV of 5,000 ports of one number at 5,000 endpoints", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.spread("big", 5, 1000, func(_ int, s *slice) { s.ports = makePorts(5000, 5000) })
	}, true, true, [2]int{50000, 100000}},
	{"SRV of 5,000 endpoints of one name", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.spread("big", 5, 1000, func(_ int, s *slice) {
			s.ports, s.hosts = makePorts(1000, 1), make([]string, 1000)
			fillWith(s.hosts, "h")
		})
	}, true, false, [2]int{2000, 52000}},
	{"SRV of ports without a number", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.spread("big", 50, 100, func(_ int, s *slice) { s.ports = portList(strings.Repeat("\x01\x00\x00\x01p", 1000)) })
	}, true, true, [2]int{60000, 60000}},
	{"SRV of a Service's last port of 20,000", "_p19999._tcp.big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) {
		w.service("big", service{kind: clusterIP, v4: packed(podNet, 1), ports: makePorts(20000, 1)})
	}, true, true, [2]int{90000, 90000}},
	{"headless A of 10,000 endpoints", "big.tenant.svc.cluster.local.", dns.TypeA, func(w worstCase) { w.spread("big", 10, 1000, nil) }, true, false, [2]int{300, 5000}},
	{"headless A of 1,000 slices", "big.tenant.svc.cluster.local.", dns.TypeA, func(w worstCase) { w.spread("big", 1000, 50, nil) }, true, false, [2]int{300, 5000}},
	{"headless SRV of 1,000 slices", "big.tenant.svc.cluster.local.", dns.TypeSRV, func(w worstCase) { w.spread("big", 1000, 50, nil) }, true, false, [2]int{2000, 50000}},
	{"port of 1,000 slices", "_p1._tcp.big.tenant.svc.cluster.local.", dns.TypeA, func(w worstCase) { w.spread("big", 1000, 50, nil) }, true, true, [2]int{110000, 130000}},
	{"port of 5,000 slices with one address", "_p1._tcp.big.tenant.svc.cluster.local.", dns.TypeA, func(w worstCase) {
		w.spread("big", 5000, 1, func(_ int, s *slice) { s.addrs = packed(podAddress, 1) })
	}, true, true, [2]int{61000, 61000}},
	{"endpoint in 1,000 slices", "h49999.big.tenant.svc.cluster.local.", dns.TypeA, named1000, true, true, [2]int{16100, 16100}},
	{"no endpoint in 1,000 slices", "nope.big.tenant.svc.cluster.local.", dns.TypeA, named1000, true, true, [2]int{8100, 8100}},
	{"no port in 1,000 slices", "_nope._tcp.big.tenant.svc.cluster.local.", dns.TypeA, named1000, true, true, [2]int{5100, 5100}},
	{"NS of 5,000 services that select the agent", "cluster.local.", dns.TypeNS, func(w worstCase) { w.pod(agentAddr, 5000) }, true, false, [2]int{1100, 90000}},
	{"ns.dns of 5,000 services that select the agent", "ns.dns.cluster.local.", dns.TypeA, func(w worstCase) { w.pod(agentAddr, 5000) }, true, true, [2]int{10000, 90000}},
	{"alias of aliases", "a0.tenant.svc.cluster.local.", dns.TypeA, aliases, false, false, [2]int{200, 200}},
	{"alias of an endpoint in 1,000 slices", "a.tenant.svc.cluster.local.", dns.TypeA, func(w worstCase) {
		named1000(w)
		target, _ := wire.ParseName("h49999.big.tenant.svc.cluster.local")
		w.service("a", service{kind: externalName, target: target})
	}, true, true, [2]int{16100, 16100}},
}

func fillWith(list []string, s string) {
	for i := range list {
		list[i] = s
	}
}

func named1000(w worstCase) {
	w.spread("big", 1000, 50, func(i int, s *slice) {
		s.hosts = make([]string, 50)
		for j := range s.hosts {
			s.hosts[j] = fmt.Sprintf("h%05d", 50*i+j)
		}
	})
}

func aliases(w worstCase) {
	for i := range 10 {
		target := fmt.Sprintf("a%d.tenant.svc.cluster.local", i+1)
		if i == 9 {
			target = "web.tenant.svc.cluster.local"
		}
		name, _ := wire.ParseName(target)
		w.service(fmt.Sprintf("a%d", i), service{kind: externalName, target: name})
	}
	w.service("web", service{kind: clusterIP, v4: packed(podNet, 1)})
}

// answer answers a query with a reply of at most limit bytes, and returns the steps that it
// took.
func (w worstCase) answer(t testing.TB, z answers, name string, qtype uint16, limit, steps int) (r *wire.Reply, outcome Outcome, took int) {
	t.Helper()
	q := parsed(t, name, qtype)
	r = new(wire.Reply)
	r.Start(nil, &q)
	r.SetLimit(limit)
	b := Budget{left: steps}
	outcome, _ = z.Answer(&q, r, &b)
	return r, outcome, steps - b.left
}

// noBudget is more than any answer may take.
const noBudget = 1 << 40

func (w worstCase) zone(t testing.TB) *Zone {
	cfg := testConfig(t)
	cfg.Topology = config.TopologyOff // or the order is another one each time
	return NewZone(w.View, cfg)
}

// The cost of an answer is bounded by the size of the reply and, on a reader, by the
// budget, whatever tenants create.
func TestWorstAnswersAreBounded(t *testing.T) {
	race.SkipSequential(t)
	for _, c := range dearestAnswers {
		t.Run(c.name, func(t *testing.T) {
			w := newWorstCase()
			c.make(w)
			z := w.zone(t)
			// The first answer after a change may have more to put together.
			if _, outcome, took := w.answer(t, z, c.qname, c.qtype, wire.MaxMessage, noBudget); outcome == OverBudget || took > 500_000 {
				t.Errorf("the first one: outcome %d after %d steps", outcome, took)
			}
			for i, limit := range []int{1232, wire.MaxMessage} {
				_, outcome, took := w.answer(t, z, c.qname, c.qtype, limit, noBudget)
				if outcome == OverBudget || took > c.steps[i] {
					t.Errorf("limit %d: outcome %d after %d steps, want at most %d", limit, outcome, took, c.steps[i])
				}
				t.Logf("limit %d: %d steps", limit, took)
				wantLarge := c.small && i == 0 || c.large && i == 1
				r, outcome, _ := w.answer(t, z, c.qname, c.qtype, limit, readerSteps)
				if (outcome == OverBudget) != wantLarge {
					t.Errorf("limit %d: outcome %d on a reader, want large: %v", limit, outcome, wantLarge)
				}
				if outcome == OverBudget && (r.Count(wire.Answer) > 0 || r.Rcode() != wire.NoError) {
					t.Error("something was written")
				}
			}
			checkCut(t, w, z, c.qname, c.qtype)
		})
	}
}

// checkCut compares a truncated reply with the start of the complete one. Of SRV records and endpoints' addresses it is a
// sample: it has TC set, no record twice, and no room for one more of the usual size.
func checkCut(t *testing.T, w worstCase, z answers, name string, qtype uint16) {
	t.Helper()
	for _, limit := range []int{512, 1232, 4096} {
		cut, _, _ := w.answer(t, z, name, qtype, limit, noBudget)
		whole, _, _ := w.answer(t, z, name, qtype, wire.MaxMessage, noBudget)
		got, want := cut.Finish(limit), whole.Finish(limit)
		var m dns.Msg
		noError(t, m.Unpack(got))
		const record = 80 // bytes
		full := m.Truncated && len(got) > limit-record && len(dns.Dedup(slices.Clone(m.Answer), nil)) == len(m.Answer)
		if !bytes.Equal(got[2:], want[2:]) && !full { // the IDs are two
			t.Errorf("of %d bytes %d are sent, and they are not those of the whole reply, of which it is %d", limit, len(got), len(want))
		}
	}
}

// BenchmarkWorstAnswer measures the cost of one such query on a reader, at both reply
// sizes.
func BenchmarkWorstAnswer(b *testing.B) {
	for _, c := range dearestAnswers {
		w := newWorstCase()
		c.make(w)
		z := w.zone(b)
		q := parsed(b, c.qname, c.qtype)
		for _, limit := range []int{1232, wire.MaxMessage} {
			for _, on := range []string{"reader", "worker"} {
				b.Run(fmt.Sprintf("%s/%d/%s", c.name, limit, on), func(b *testing.B) {
					r, buf := new(wire.Reply), make([]byte, 0, wire.MaxMessage)
					b.ReportAllocs()
					cpu := cpuTime(b)
					for b.Loop() {
						r.Start(buf, &q)
						r.SetLimit(limit)
						var budget Budget
						budget.Refill()
						if on == "worker" {
							z.Answer(&q, r, nil)
						} else {
							z.Answer(&q, r, &budget)
						}
						r.Finish(limit)
					}
					b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}

// cpuTime returns the CPU time of the process, which does not depend on other users of the
// cores.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	noError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
