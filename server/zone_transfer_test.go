package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/ca"
)

// Inside the package: it shares helpers with the tests of listeners.

// smallZone has each shape that a transfer has to keep: wildcards, empty non-terminals, a delegation with addresses, DNAME.
const smallZone = `$TTL 60
@          SOA   ns1 host 7 3600 600 86400 30
@          NS    ns1
ns1        A     192.0.2.1
*.wild     MX    5 ns1
a.b.ent    TXT   "below empty non-terminals"
sub        NS    ns.sub
ns.sub     AAAA  2001:db8::4
old        DNAME new
`

// smallRecords are the records of a transfer of smallZone.
var smallRecords = []string{
	"z.test. 60 SOA ns1.z.test. host.z.test. 7 3600 600 86400 30",
	"z.test. 60 NS ns1.z.test.",
	`a.b.ent.z.test. 60 TXT "below empty non-terminals"`,
	"ns1.z.test. 60 A 192.0.2.1",
	"old.z.test. 60 DNAME new.z.test.",
	"sub.z.test. 60 NS ns.sub.z.test.",
	"ns.sub.z.test. 60 AAAA 2001:db8::4",
	"*.wild.z.test. 60 MX 5 ns1.z.test.",
	"z.test. 60 SOA ns1.z.test. host.z.test. 7 3600 600 86400 30",
}

// transferZone returns a zone with the directives file, for text, and transfer.
func transferZone(tb testing.TB, text, options string) (*resolver.Zone, *transfer.Transfers) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "db")
	if text != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	c, err := config.Parse(config.Source{Text: fmt.Appendf(nil, "z.test {\nfile %q\ntransfer {\n%s\n}\n}\n", path, options)})
	if err != nil {
		tb.Fatal(err)
	}
	table, err := zonefile.New(c.Blocks[0].ZoneFile, zonefile.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	all := transfer.NewTransfers(nil)
	return &resolver.Zone{Name: c.Blocks[0].Zones[0], File: table, Transfer: transfer.New(c.Blocks[0].Transfer, all)}, all
}

// transferred returns the records that a client gets for m, and the number of messages.
func transferred(tb testing.TB, t *dns.Transfer, m *dns.Msg, addr netip.AddrPort) (list []string, messages int, err error) {
	tb.Helper()
	t.DialTimeout, t.ReadTimeout = patience, patience
	envelopes, err := t.In(m, addr.String())
	if err != nil {
		return nil, 0, err
	}
	for e := range envelopes {
		if e.Error != nil {
			return nil, 0, e.Error
		}
		messages++
		for _, rr := range e.RR {
			owner := strings.ToLower(rr.Header().Name) // as in the question
			list = append(list, owner+strings.NewReplacer("\tIN\t", " ", "\t", " ").Replace(rr.String()[len(owner):]))
		}
	}
	return list, messages, nil
}

// transferCounts are the counted outcomes.
func transferCounts(all *transfer.Transfers) (list []string) {
	all.EachCount(func(zone, outcome string, n uint64) { list = append(list, fmt.Sprint(zone, " ", outcome, " ", n)) })
	return list
}

func axfr(zone string) *dns.Msg { return new(dns.Msg).SetAxfr(zone) }

func ixfr(serial uint32) *dns.Msg { return new(dns.Msg).SetIxfr("z.test.", serial, "ns.", "host.") }

// TestZoneTransfer: who gets a zone, the SOA record alone, or an error.
func TestZoneTransfer(t *testing.T) {
	soa := smallRecords[:1]
	badIXFR := question("z.test.", dns.TypeIXFR)
	withEDNS := axfr("z.test.")
	withEDNS.SetEdns0(1232, true)
	tests := map[string]struct {
		options, text string
		net           string
		q             *dns.Msg
		want          []string
		rcode         int
		count         string
	}{
		"AXFR":                     {q: axfr("z.test."), want: smallRecords, count: "sent"},
		"AXFR with EDNS":           {q: withEDNS, want: smallRecords, count: "sent"},
		"AXFR in another case":     {q: axfr("Z.tesT."), want: smallRecords, count: "sent"},
		"a client by its address":  {options: "to 192.0.2.1 127.0.0.1:5300", q: axfr("z.test."), want: smallRecords, count: "sent"},
		"another client":           {options: "to 192.0.2.1", q: axfr("z.test."), rcode: dns.RcodeRefused, count: "refused"},
		"IXFR of another client":   {options: "to 192.0.2.1", q: ixfr(7), rcode: dns.RcodeRefused, count: "refused"},
		"AXFR over UDP":            {net: "udp", q: axfr("z.test."), rcode: dns.RcodeRefused, count: "refused"},
		"IXFR over UDP":            {net: "udp", q: ixfr(6), want: soa, count: "current"},
		"IXFR, the same version":   {q: ixfr(7), want: soa, count: "current"},
		"IXFR, an older version":   {q: ixfr(6), want: smallRecords, count: "sent"},
		"IXFR, a later version":    {q: ixfr(8), want: soa, count: "current"},
		"IXFR, far behind":         {q: ixfr(1<<31 + 8), want: smallRecords, count: "sent"},
		"IXFR without a serial":    {q: badIXFR, rcode: dns.RcodeServerFailure, count: "failed"},
		"a name that is no zone":   {q: axfr("ns1.z.test."), rcode: dns.RcodeRefused},
		"no zone, over UDP":        {net: "udp", q: axfr("ns1.z.test."), rcode: dns.RcodeRefused, count: "refused"},
		"zone that is not loaded":  {text: "-", q: axfr("z.test."), rcode: dns.RcodeServerFailure, count: "failed"},
		"directive of another one": {options: "to *\n}\ntransfer ns1.z.test {\nto 192.0.2.1", q: axfr("ns1.z.test."), rcode: dns.RcodeRefused, count: "refused"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			text, options := smallZone, "to *"
			if tt.text != "" {
				text = ""
			}
			if tt.options != "" {
				options = tt.options
			}
			z, all := transferZone(t, text, options)
			_, addr := start(t, Limits{}, z)
			if len(tt.want) > 1 {
				got, messages, err := transferred(t, new(dns.Transfer), tt.q, addr)
				if d := cmp.Diff(tt.want, got); d != "" || err != nil || messages != 1 {
					t.Errorf("%d messages, error %v (-want +got):\n%s", messages, err, d)
				}
			} else {
				network := tt.net
				if network == "" {
					network = "tcp"
				}
				m := query(t, network, addr, tt.q)
				if m.Rcode != tt.rcode || len(m.Answer) != len(tt.want) || len(tt.want) > 0 && (!m.Authoritative || m.Answer[0].(*dns.SOA).Serial != 7) {
					t.Errorf("got %s", m)
				}
			}
			var want []string
			if tt.count != "" {
				zone := "z.test. "
				if strings.Contains(options, "ns1") {
					zone = "ns1." + zone
				}
				want = []string{zone + tt.count + " 1"}
			}
			eventually(t, "the count "+tt.count, func() bool { return cmp.Equal(want, transferCounts(all)) })
		})
	}
}

// largeZone has so many records that they take several messages.
func largeZone(records int) string {
	var b strings.Builder
	b.WriteString(smallZone)
	for i := range records {
		fmt.Fprintf(&b, "h%d A 192.0.2.%d\n", i, i%250+1)
	}
	return b.String()
}

// TestZoneTransferLarge: a large zone arrives complete, each record once, in bounded messages, over TCP and TLS.
func TestZoneTransferLarge(t *testing.T) {
	const hosts = 10_000
	z, all := transferZone(t, largeZone(hosts), "to *")
	z.Stats = resolver.NewStats()
	authority := ca.ForTest(t)
	cert := mustCertificate(t, writeCertificate(t, authority, t.TempDir(), "a server", time.Now().Add(time.Hour)))
	for name, c := range map[string]ListenerConfig{"tcp": {}, "tls": {Transport: config.DNSOverTLS, Certificate: cert}} {
		t.Run(name, func(t *testing.T) {
			_, addr, _ := startListener(t, patientLimits(), c, z)
			client := new(dns.Transfer)
			if name == "tls" {
				client.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the certificate is not what is tested
			}
			got, messages, err := transferred(t, client, axfr("z.test."), addr)
			if err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]int)
			for _, rr := range got {
				seen[rr]++
			}
			if len(got) != len(smallRecords)+hosts || len(seen) != len(got)-1 || seen[smallRecords[0]] != 2 || messages < 10 || messages > 40 {
				t.Errorf("%d records, %d different, the SOA record %d times, in %d messages", len(got), len(seen), seen[smallRecords[0]], messages)
			}
		})
	}
	eventually(t, "both transfers to be counted", func() bool { return cmp.Equal([]string{"z.test. sent 2"}, transferCounts(all)) })
}

// TestZoneTransferPipelined: other queries on the connection are answered while a zone is transferred, and after it.
func TestZoneTransferPipelined(t *testing.T) {
	z, _ := transferZone(t, largeZone(5000), "to *")
	_, addr := start(t, Limits{}, z)
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	client := &dns.Conn{Conn: conn}
	questions := []*dns.Msg{axfr("z.test."), question("ns1.z.test.", dns.TypeA), axfr("z.test."), question("ns1.z.test.", dns.TypeAAAA)}
	left := make(map[uint16]int) // SOA records or replies that are still to come, by ID
	for i, q := range questions {
		q.Id = uint16(i)
		if left[q.Id] = 1; i%2 == 0 {
			left[q.Id] = 2
		}
		if err := client.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
	}
	for len(left) > 0 {
		m, err := client.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		if m.Rcode != dns.RcodeSuccess || left[m.Id] == 0 {
			t.Fatalf("got %s", m)
		}
		if m.Id%2 == 1 {
			left[m.Id]--
		}
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == dns.TypeSOA {
				left[m.Id]--
			}
		}
		if left[m.Id] == 0 {
			delete(left, m.Id)
		}
	}
}

// TestZoneTransferSlow: a client that does not read loses its connection, and its place goes to the next one.
func TestZoneTransferSlow(t *testing.T) {
	z, all := transferZone(t, largeZone(60_000), "to *")
	s, addr := start(t, Limits{WriteTimeout: 50 * time.Millisecond}, z)
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadBuffer(4096)
	if err := (&dns.Conn{Conn: conn}).WriteMsg(axfr("z.test.")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the transfer to fail", func() bool { return cmp.Equal([]string{"z.test. failed 1"}, transferCounts(all)) })
	if s.ConnsCut() != 1 {
		t.Errorf("%d connections were cut", s.ConnsCut())
	}
	eventually(t, "the answers that nobody has read to be dropped", func() bool { return s.unsent.Load() == 0 })
	if err := all.Acquire(t.Context(), loopback); err != nil {
		t.Errorf("the client's place is not free: %v", err)
	}
}

// TestZoneTransferCluster: the zone of a cluster is sent; a version that can't be had is SERVFAIL, and the place is free again.
func TestZoneTransferCluster(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "objects.yaml")
	const text = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	z, all := transferZone(t, smallZone, "to *")
	z.File = nil
	cfg := &config.Kubernetes{Zones: []wire.Name{z.Name}, TTL: 30, Manifests: []string{manifest}}
	view, err := kubernetes.Open(cfg, kubernetes.Options{Now: func() time.Time { return time.Unix(1700000000, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	cluster := &brokenCluster{Zone: kubernetes.NewZone(view, cfg)}
	z.Cluster = cluster
	_, addr := start(t, Limits{}, z)
	const soa = "z.test. 30 SOA ns.dns.z.test. hostmaster.z.test. 1700000000 7200 1800 86400 30"
	got, _, err := transferred(t, new(dns.Transfer), axfr("z.test."), addr)
	if d := cmp.Diff([]string{soa, "web.shop.svc.z.test. 30 A 10.96.0.9", soa}, got); d != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, d)
	}
	if m := query(t, "tcp", addr, ixfr(1700000000)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("IXFR of the same version: %s", m)
	}
	if m := query(t, "tcp", addr, axfr("svc.z.test.")); m.Rcode != dns.RcodeRefused {
		t.Errorf("AXFR below the zone: %s", m)
	}
	cluster.broken.Store(true)
	for range 2 {
		if m := query(t, "tcp", addr, axfr("z.test.")); m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 {
			t.Errorf("got %s", m)
		}
	}
	want := []string{"z.test. sent 1", "z.test. current 1", "z.test. failed 2"}
	eventually(t, "all to be counted", func() bool { return cmp.Equal(want, transferCounts(all)) })
}

// brokenCluster is a cluster whose versions can't be had while it is broken.
type brokenCluster struct {
	*kubernetes.Zone
	broken atomic.Bool
}

func (c *brokenCluster) Snapshot(ctx context.Context, origin wire.Name) (*kubernetes.Snapshot, error) {
	if c.broken.Load() {
		return nil, context.DeadlineExceeded
	}
	return c.Zone.Snapshot(ctx, origin)
}
