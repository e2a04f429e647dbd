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

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestMain is a client's process if the first argument says so.
func TestMain(m *testing.M) { os.Exit(Main(m.Run)) }

var local, cluster = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.53")

// startServer answers on UDP and TCP as the first label of the name says.
func startServer(t *testing.T) netip.AddrPort {
	t.Helper()
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		addr := local
		switch name := q.Question[0].Name; {
		case strings.HasPrefix(name, "fresh-"):
			return nil
		case strings.HasPrefix(name, "name-0."):
			addr = cluster
		case strings.HasPrefix(name, "name-1."):
			return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
		case strings.HasPrefix(name, "name-2."):
			addr = netip.MustParseAddr("192.0.2.99")
		}
		m := fakedns.Address(q, 7, addr.String())
		m.Compress = q.Id%2 == 0
		return m
	})).Addr()
}

// TestFates: every question's fate is what the server made of it, over all three ways of
// asking.
func TestFates(t *testing.T) {
	job := Job{
		Servers: []netip.AddrPort{startServer(t)}, Local: local, Cluster: cluster,
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
		Servers: []netip.AddrPort{startServer(t)}, Local: local, Cluster: local,
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
	job := Job{Servers: []netip.AddrPort{startServer(t)}, Local: local, Cluster: cluster, Names: 1, Zone: "load.test.", Duration: time.Hour, Rate: 100, Sockets: 1, QueriesPerSocket: 10}
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
	s := &sender{byFD: map[int]*sourcePort{}, report: new(Report), buffer: jobBuffer}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	to := from.LocalAddr().(*net.UDPAddr).AddrPort()
	full, err := s.open(to)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.open(to)
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(full.fd)
	if err != nil {
		t.Fatal(err)
	}
	client := sa.(*unix.SockaddrInet4)
	const sent = 2 * jobBuffer / maxAnswer
	for range sent {
		if _, err := from.WriteToUDPAddrPort(make([]byte, maxAnswer), netip.AddrPortFrom(netip.AddrFrom4(client.Addr), uint16(client.Port))); err != nil {
			t.Fatal(err)
		}
	}
	dropped, received := socketDrops(full.fd), uint64(0)
	for s.receiveOne(full) {
		received++
	}
	if dropped == 0 || received == 0 || dropped+received > sent {
		t.Errorf("of %d packets %d were dropped and %d received", sent, dropped, received)
	}
	if n := socketDrops(other.fd); n != 0 {
		t.Errorf("%d packets of the other socket", n)
	}
	s.closePort(full)
	if s.report.Dropped != dropped {
		t.Errorf("%d packets are reported, want %d", s.report.Dropped, dropped)
	}
}
