// The servers here do not use test/rig/fakedns: each answers one kind of query in a few lines.

package load

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// TestMain is a client's process if the first argument says so.
func TestMain(m *testing.M) { os.Exit(Main(m.Run)) }

var local, cluster = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.53")

// server answers on UDP and TCP as the first label of the name says.
func server(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.ListenPacket("udp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		a := &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 7}}
		m.Answer, m.Compress = []dns.RR{a}, q.Id%2 == 0
		switch name := q.Question[0].Name; {
		case strings.HasPrefix(name, "fresh-"):
			return
		case strings.HasPrefix(name, "name-0."):
			a.A = cluster.AsSlice()
		case strings.HasPrefix(name, "name-1."):
			m.Rcode, m.Answer = dns.RcodeServerFailure, nil
		case strings.HasPrefix(name, "name-2."):
			a.A = net.IPv4(192, 0, 2, 99).To4()
		default:
			a.A = local.AsSlice()
		}
		if err := w.WriteMsg(m); err != nil {
			t.Log(err)
		}
	})
	for _, s := range []*dns.Server{{Listener: l, Handler: handler, MaxTCPQueries: -1}, {PacketConn: p, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestFates: every question's fate is what the server made of it, over all three ways of
// asking.
func TestFates(t *testing.T) {
	job := Job{
		Servers: []netip.AddrPort{server(t)}, Local: local, Cluster: cluster,
		Names: 4, FreshEvery: 5, Zone: "load.test.", Duration: time.Second, Rate: 500, Sockets: 3, QueriesPerSocket: 7, Streams: 2, StreamRate: 50, OneShots: 50,
	}
	c, err := Start(job, os.Args[0], "load")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Wait()
	if err != nil {
		t.Fatal(err)
	}
	fates := map[string]Outcome{"name-0": Cluster, "name-1": Servfail, "name-2": Other, "name-3": Local, "fresh-": Lost}
	for _, tally := range []Stats{r.UDP, r.OneShot} {
		var want Counts
		for n := range int(tally.Asked) {
			want.add(fates[job.name(n)[:6]])
		}
		if diff := cmp.Diff(want, tally.Counts); diff != "" || tally.Asked == 0 {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if s := r.Stream.Counts; s.Asked == 0 || s.Asked != s.Local+s.Cluster+s.Servfail+s.Other+s.Lost || (s.Lost > 0) != (len(r.Stream.Errors) > 0) {
		t.Errorf("over connections that stay: %+v", r.Stream)
	}
	want := r.UDP.Counts
	if got := r.Between(r.Start, r.End.Add(1)); got != r.UDP.Counts {
		t.Errorf("the runs say %+v, want %+v", got, r.UDP.Counts)
	}
	var seconds Counts
	for _, s := range r.Seconds {
		seconds.Asked, seconds.Lost = seconds.Asked+s.Asked, seconds.Lost+s.Lost
	}
	if seconds.Asked != want.Asked || seconds.Lost != want.Lost || r.UDP.Max == 0 || r.UDP.P50 > r.UDP.P99 {
		t.Errorf("the seconds: %+v; %s", r.Seconds, r)
	}
}

// TestTTL: where the agent's answers have the address of the cluster DNS's, the TTL tells
// them apart. The server's is 7.
func TestTTL(t *testing.T) {
	job := Job{
		Servers: []netip.AddrPort{server(t)}, Local: local, Cluster: local,
		Names: 4, Zone: "load.test.", Duration: 300 * time.Millisecond, OneShots: 100,
	}
	for ttl, want := range map[uint32]Outcome{0: Local, 7: Local, 8: Cluster} {
		job.TTL = ttl
		r, err := job.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := map[Outcome]uint64{Local: r.OneShot.Local, Cluster: r.OneShot.Cluster}; got[want] == 0 || r.OneShot.Local+r.OneShot.Cluster != got[want] {
			t.Errorf("with TTLs from %d on: %+v, want only %s", ttl, r.OneShot, want)
		}
	}
}

// TestStop: a client that is stopped early has a report; one with a job that makes no
// sense none.
func TestStop(t *testing.T) {
	job := Job{Servers: []netip.AddrPort{server(t)}, Local: local, Cluster: cluster, Names: 1, Zone: "load.test.", Duration: time.Hour, Rate: 100, Sockets: 1, QueriesPerSocket: 10}
	c, err := Start(job, os.Args[0], "load")
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if r.UDP.Asked != r.UDP.Cluster || r.LongestAgentAbsence < r.End.Sub(r.Start) {
		t.Errorf("%s", r)
	}
	job.Sockets = 0
	if _, err := Start(job, os.Args[0], "load"); err == nil {
		t.Error("a job without sockets is taken")
	}
}

// TestRefused: where nobody listens, all is lost, and the client says why.
func TestRefused(t *testing.T) {
	p, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := p.LocalAddr().(*net.UDPAddr).AddrPort()
	p.Close()
	r, err := Job{Servers: []netip.AddrPort{to}, Names: 1, Zone: "load.test.", Duration: 200 * time.Millisecond, Rate: 100, Sockets: 2, QueriesPerSocket: 10}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.UDP.Lost != r.UDP.Asked || r.Refused == 0 || len(r.Runs) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestReport: gaps, runs and seconds of a few records.
func TestReport(t *testing.T) {
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	var r Report
	r.addUDP([]record{
		{ms(1000), ms(1001), Local}, {ms(1100), ms(1101), Local}, {ms(1200), 0, Lost}, {ms(1300), 0, Lost},
		{ms(1400), ms(1411), Cluster}, {ms(1500), ms(1511), Servfail}, {ms(2100), ms(2105), Local}, {ms(2200), ms(2201), Local},
	})
	want := Report{
		Start: time.Unix(0, ms(1000)), End: time.Unix(0, ms(2200)),
		UDP:            Stats{Counts: Counts{Asked: 8, Local: 4, Cluster: 1, Servfail: 1, Lost: 2}, P50: time.Millisecond, P99: 11 * time.Millisecond, Max: 11 * time.Millisecond},
		Runs:           []Run{{Local, 2, at(1000), at(1100)}, {Lost, 2, at(1200), at(1300)}, {Cluster, 1, at(1400), at(1400)}, {Servfail, 1, at(1500), at(1500)}, {Local, 2, at(2100), at(2200)}},
		Seconds:        []Second{{Counts{Asked: 6, Local: 2, Cluster: 1, Servfail: 1, Lost: 2}, 11 * time.Millisecond}, {Counts{Asked: 2, Local: 2}, 5 * time.Millisecond}},
		LongestSilence: 594 * time.Millisecond, LongestAgentAbsence: 1004 * time.Millisecond,
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func at(ms int64) time.Time { return time.Unix(0, ms*int64(time.Millisecond)) }

// TestBacklogDrops: the kernel's counters of full backlogs.
func TestBacklogDrops(t *testing.T) {
	if got := sumDrops("000000ff 0000000a 1 2\n00000001 00000010 3 4\n"); got != 26 {
		t.Errorf("%d packets, want 26", got)
	}
}

// TestSocketDrops: packets that did not fit into a socket's buffer are counted for this socket alone.
func TestSocketDrops(t *testing.T) {
	from, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	l := &udpClient{byFD: map[int]*socket{}, report: new(Report)}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	to := from.LocalAddr().(*net.UDPAddr).AddrPort()
	full, err := l.open(to)
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.open(to)
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(full.fd)
	if err != nil {
		t.Fatal(err)
	}
	client := sa.(*unix.SockaddrInet4)
	const sent = 2 * receiveBuffer / maxAnswer
	for range sent {
		if _, err := from.WriteToUDPAddrPort(make([]byte, maxAnswer), netip.AddrPortFrom(netip.AddrFrom4(client.Addr), uint16(client.Port))); err != nil {
			t.Fatal(err)
		}
	}
	dropped, received := socketDrops(full.fd), uint64(0)
	for l.receiveOne(full) {
		received++
	}
	if dropped == 0 || received == 0 || dropped+received > sent {
		t.Errorf("of %d packets %d were dropped and %d received", sent, dropped, received)
	}
	if n := socketDrops(other.fd); n != 0 {
		t.Errorf("%d packets of the other socket", n)
	}
	l.closeSocket(full)
	if l.report.Dropped != dropped {
		t.Errorf("%d packets are reported, want %d", l.report.Dropped, dropped)
	}
}
