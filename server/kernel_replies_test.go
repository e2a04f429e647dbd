package server

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

// Inside the package: it inspects listeners and what is copied.

// register is a kernel that notes what it is told, and who owns the copies.
type register struct {
	cluster, cached *epoch.Table

	mu     sync.Mutex
	doors  map[netip.AddrPort]uint32
	told   []string
	owners []kernelpath.HitReporter
	copies []kernelpath.Answer
	names  []string // of the copies
	groups map[netip.Addr]kernelpath.Group
}

func (k *register) Put(a *kernelpath.Answer) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owners, k.copies = append(k.owners, a.Source.HitReporter()), append(k.copies, *a)
	k.names = append(k.names, wire.Name(a.Query.Name()).String())
	return true
}

func (k *register) SetGroup(addr netip.Addr, g *kernelpath.Group) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.groups == nil {
		k.groups = make(map[netip.Addr]kernelpath.Group)
	}
	k.groups[addr] = *g
}

func (k *register) Clear() { k.tell("clear") }

func (k *register) SetListeners(doors map[netip.AddrPort]uint32) error {
	k.tell(fmt.Sprint(slices.Sorted(maps.Values(doors))))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.doors = doors
	return nil
}

func (k *register) tell(s string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, s)
}

func (k *register) Epochs() (cluster, cached *epoch.Table) { return k.cluster, k.cached }

// withKernel is a server with a register, and a store whose answers can be copied.
func withKernel(t *testing.T) (*Server, *register, *cache.Store) {
	epochs := epoch.New(make([]atomic.Uint64, epoch.Words(4)), 0, 4)
	k := &register{cluster: epoch.New(make([]atomic.Uint64, epoch.Words(4)), 1000, 4), cached: epochs}
	s := New(slog.New(slog.DiscardHandler), Limits{Readers: 1})
	s.UseKernelPath(k)
	t.Cleanup(func() { shutdown(t, s) })
	return s, k, cache.NewStore(1<<20, cache.Options{Epochs: epochs})
}

var roomy = config.CacheLimits{Entries: 1000, MaxTTL: time.Hour}

// TestCopiesCount: what was answered with a copy counts as if the server had answered.
func TestCopiesCount(t *testing.T) {
	s, k, store := withKernel(t)
	c := store.NewCache(&config.Cache{Success: roomy, Denial: roomy})
	z := &resolver.Zone{Name: resolvertest.ZoneName(t, "."), Cache: c, Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1")).Addr()), Stats: resolver.NewStats()}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	q := question("www.a.test.", dns.TypeA)
	q.SetEdns0(1232, true)
	for range 2 {
		query(t, "udp", addr, q)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.owners) != 1 {
		t.Fatalf("%d copies of two replies, the first of which the upstream gave", len(k.owners))
	}
	if a := k.copies[0]; !a.FromCache || !a.CountsDown || a.Life == 0 || a.Expires == 0 || a.Expires != a.Ends || a.Listener == 0 || a.Listener != k.doors[addr] {
		t.Errorf("the copy is %+v", a)
	}
	sums := func() (n [6]uint64) {
		z.Stats.EachRequest(func(proto, family, qtype string, m uint64) {
			if proto == "udp" && family == "1" && qtype == "A" {
				n[0] += m
			}
		})
		z.Stats.EachResponse(func(rcode, plugin string, m uint64) {
			if rcode == "NOERROR" && plugin == "cache" {
				n[1] += m
			}
		})
		z.Stats.EachSize(func(_ string, req, resp stat.Snapshot) { n[2], n[3] = req.Count, resp.Count })
		n[4], n[5] = z.Stats.DO(), c.Stats().Hits.Success
		return n
	}
	before, took := sums(), z.Stats.Duration()
	k.owners[0].ReportHits(1000, 3*time.Microsecond)
	after := sums()
	for i := range after {
		if after[i]-before[i] != 1000 {
			t.Errorf("count %d went from %d to %d", i, before[i], after[i])
		}
	}
	now := z.Stats.Duration()
	if got := now.Sum - took.Sum; now.Count-took.Count != 1000 || got < 0.0029 || got > 0.0031 {
		t.Errorf("1,000 answers of 3 µs took %v s", got)
	}
}

// TestRefusedQueriesAreNotCopied: what is refused before a server block is chosen has an answer, or none, and no copy.
func TestRefusedQueriesAreNotCopied(t *testing.T) {
	s, k, _ := withKernel(t)
	z := &resolver.Zone{Name: resolvertest.ZoneName(t, "a.test."), Stats: resolver.NewStats()}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(q *dns.Msg){
		"two OPT records": func(q *dns.Msg) { q.SetEdns0(1232, true).SetEdns0(512, false) },
		"no question":     func(q *dns.Msg) { q.Question = nil },
		"two questions":   func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) },
		"NOTIFY":          func(q *dns.Msg) { q.Opcode = dns.OpcodeNotify },
		"EDNS version 1":  func(q *dns.Msg) { q.SetEdns0(1232, true).IsEdns0().SetVersion(1) },
		"class CH":        func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassCHAOS },
		"no zone":         func(q *dns.Msg) { q.Question[0].Name = "www.b.test." },
	} {
		q := question("www.a.test.", dns.TypeA)
		change(q)
		packed, err := q.Pack()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if reply := exchangePacket(t, addr, packed); len(reply) < wire.HeaderLen || reply[2]&0x80 == 0 {
			t.Errorf("%s: the reply is %x", name, reply)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.copies) > 0 || s.Panics() > 0 {
		t.Errorf("%d copies, %d panics", len(k.copies), s.Panics())
	}
}

// exchangePacket sends a packet over UDP and returns the reply.
func exchangePacket(t *testing.T, to netip.AddrPort, packet []byte) []byte {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, dns.MaxMsgSize)
	n, err := conn.Read(reply)
	if err != nil {
		t.Fatalf("%x: %v", packet, err)
	}
	return reply[:n]
}

// brokenRegister is a register that panics.
type brokenRegister struct{ *register }

func (brokenRegister) Put(*kernelpath.Answer) bool { panic("broken") }

// TestCopyPanics: a panic while a reply is copied is counted, and the client gets the reply.
func TestCopyPanics(t *testing.T) {
	s, k, store := withKernel(t)
	s.kernelPath.program = brokenRegister{k}
	c := store.NewCache(&config.Cache{Success: roomy, Denial: roomy})
	z := &resolver.Zone{Name: wire.Root, Cache: c, Forward: resolvertest.Pool(t, resolvertest.StartBackend(t, resolvertest.Address("192.0.2.1")).Addr()), Stats: resolver.NewStats()}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one is answered from the cache
		if m := query(t, "udp", addr, question("www.a.test.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("the reply is %v", m)
		}
	}
	if got := s.Panics(); got != 1 {
		t.Errorf("%d panics counted, want 1", got)
	}
}

// TestCopyOfWaste: a copy says whether the agent counts its reply as search waste.
func TestCopyOfWaste(t *testing.T) {
	s, k, store := withKernel(t)
	up := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}, Ns: ".", Mbox: ".", Minttl: 60}}
		return m
	})
	z := &resolver.Zone{Name: wire.Root, Cache: store.NewCache(&config.Cache{Success: roomy, Denial: roomy}), Forward: resolvertest.Pool(t, up.Addr()), Stats: resolver.NewStats()}
	routes := resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())
	routes.Clients, routes.Search = clients.New(clients.Options{}), []wire.Name{resolvertest.ZoneName(t, "corp.test.")}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: routes}}); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"www.example.com.corp.test.": true, "nosuch.corp.test.": false, "nosuch.test.": false}
	for name := range want {
		for range 2 { // the first is the upstream's
			query(t, "udp", addr, question(name, dns.TypeA))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	got := make(map[string]bool)
	for i, a := range k.copies {
		got[k.names[i]] = a.Waste
	}
	if !maps.Equal(got, want) {
		t.Errorf("copied as waste: %v, want %v", got, want)
	}
}

// TestDoors: copies are of no use from before the routes change until they have changed, and
// while another process answers.
func TestDoors(t *testing.T) {
	s, k, _ := withKernel(t)
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	listen := func() {
		t.Helper()
		z := &resolver.Zone{Name: resolvertest.ZoneName(t, "."), Hosts: resolvertest.Hosts(t, false, "192.0.2.1 by.hand"), Stats: resolver.NewStats()}
		if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes([]*resolver.Zone{z}, resolver.NewStats())}}); err != nil {
			t.Fatal(err)
		}
	}
	listen()
	listen()
	if err := s.Suspend(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.Resume()
	k.mu.Lock()
	defer k.mu.Unlock()
	want := []string{"[]", "clear", "[1]", "[]", "clear", "[2]", "[]", "clear", "[2]"}
	if !slices.Equal(k.told, want) {
		t.Errorf("the kernel was told %q, want %q", k.told, want)
	}
}

// TestCopiesBesideACL: an answer that leads to a name that an ACL judges is copied into the kernel for the clients that
// the ACL treats like the one that asked; others are copied for all clients. A denial is not copied.
func TestCopiesBesideACL(t *testing.T) {
	b := resolvertest.StartBackend(t, func(q *dns.Msg) *dns.Msg {
		m := resolvertest.Address("192.0.2.66")(q)
		if q.Question[0].Name == "alias.test." {
			alias, _ := dns.NewRR("alias.test. 60 CNAME x.secret.test.")
			m.Answer[0].Header().Name = "x.secret.test."
			m.Answer = append([]dns.RR{alias}, m.Answer...)
		}
		return m
	})
	acl := resolver.NewACL(&config.ACL{Rules: []config.ACLRule{{
		Zones:    []wire.Name{resolvertest.ZoneName(t, "secret.test.")},
		Policies: []config.ACLPolicy{{Action: config.ACLBlock, Nets: []netip.Prefix{netip.MustParsePrefix("127.0.1.2/32")}}},
	}}})
	s, kernel, store := withKernel(t)
	zones := []*resolver.Zone{
		{Name: resolvertest.ZoneName(t, "secret.test."), ACL: acl, Stats: resolver.NewStats()},
		{Name: wire.Root, Forward: resolvertest.Pool(t, b.Addr()), Cache: store.NewCache(&config.Cache{Success: roomy, Denial: roomy}), Stats: resolver.NewStats()},
	}
	addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
	if err := s.Listen(map[ListenAddr]ListenerConfig{{AddrPort: addr}: {Routes: resolver.NewRoutes(zones, resolver.NewStats())}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		client netip.Addr
		name   string
		want   int // answers
	}{{shopPod, "alias.test.", 2}, {infoPod, "alias.test.", 0}, {shopPod, "open.test.", 1}, {infoPod, "open.test.", 1}} {
		for range 3 { // the first waits, the second is from the cache, the last finds it copied
			if m := queryFrom(t, c.client, addr, c.name); len(m.Answer) != c.want {
				t.Fatal(c.client, m)
			}
		}
	}
	kernel.mu.Lock()
	defer kernel.mu.Unlock()
	names := make(map[string]uint32)
	for i, a := range kernel.copies {
		names[kernel.names[i]] = a.Group.Number
		if a.MaxSize != wire.SafeUDP || len(a.Reply) == 0 {
			t.Errorf("%s was copied with %d bytes at most", kernel.names[i], a.MaxSize)
		}
	}
	if !maps.Equal(names, map[string]uint32{"alias.test.": 1, "open.test.": 0}) {
		t.Errorf("copied for the groups %v", names)
	}
	want := kernelpath.Group{Number: 1, Mark: epoch.Mark{Index: kernel.groups[shopPod].Mark.Index, Value: 1}}
	if got := kernel.groups; len(got) != 1 || got[shopPod] != want || want.Mark.Index == 0 {
		t.Errorf("the clients have the groups %+v", got)
	}
}
