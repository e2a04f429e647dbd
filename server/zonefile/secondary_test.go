package zonefile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/testlog"
)

// primary is a primary server in memory, of one zone. It belongs to the test's bubble.
type primary struct {
	mu      sync.Mutex
	down    bool
	records []dns.RR
	axfrs   int
	soas    int
	// change, if set, changes the messages of a transfer.
	change func([]*dns.Msg) []*dns.Msg
}

var errDown = errors.New("the server is down")

// set makes text the zone, after its SOA record.
func (p *primary) set(t *testing.T, serial int, times, text string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	z := dns.NewZoneParser(strings.NewReader(fmt.Sprintf("@ 60 SOA ns host %d %s 30\n%s", serial, times, text)), "z.test.", "")
	p.records = nil
	for rr, ok := z.Next(); ok; rr, ok = z.Next() {
		p.records = append(p.records, rr)
	}
	if err := z.Err(); err != nil {
		t.Fatal(err)
	}
}

// with runs f while the server answers nobody.
func (p *primary) with(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *primary) dial(_ context.Context, _ netip.AddrPort) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return nil, errDown
	}
	ours, theirs := net.Pipe()
	go p.serve(theirs)
	return ours, nil
}

// serve answers one query.
func (p *primary) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	packet := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, packet); err != nil {
		return
	}
	var q dns.Msg
	if q.Unpack(packet) != nil {
		return
	}
	for _, m := range p.answer(&q) {
		out, err := m.Pack()
		if err != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// answer returns the messages: for a transfer three, with names compressed.
func (p *primary) answer(q *dns.Msg) []*dns.Msg {
	p.mu.Lock()
	defer p.mu.Unlock()
	reply := func(rrs ...dns.RR) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		m.Compress, m.Answer = true, rrs
		return m
	}
	if len(p.records) == 0 {
		return []*dns.Msg{new(dns.Msg).SetRcode(q, dns.RcodeRefused)}
	}
	if q.Question[0].Qtype == dns.TypeSOA {
		p.soas++
		return []*dns.Msg{reply(p.records[0])}
	}
	p.axfrs++
	half := (len(p.records) + 1) / 2
	list := []*dns.Msg{reply(p.records[:half]...), reply(p.records[half:]...), reply(p.records[0])}
	list = slices.DeleteFunc(list, func(m *dns.Msg) bool { return len(m.Answer) == 0 })
	for _, m := range list[1:] {
		m.Question = nil
	}
	if p.change != nil {
		list = p.change(list)
	}
	return list
}

// site is a secondary zone whose only primary server is p.
type site struct {
	*primary
	table  *zonefile.Table
	shared *zonefile.Primaries
	log    testlog.Buffer
	served []uint32 // serials that were put into service
}

func secondaryOf(tb testing.TB, options ...string) *config.Secondary {
	tb.Helper()
	text := ". {\nsecondary z.test {\ntransfer from 192.0.2.1\n" + strings.Join(options, "\n") + "\n}\n}\n"
	c, err := config.Parse(config.Source{Text: []byte(text)})
	if err != nil {
		tb.Fatal(err)
	}
	return c.Blocks[0].Secondary
}

// newSite starts a secondary in the test's bubble; stop ends it.
func newSite(t *testing.T, p *primary, options ...string) (s *site, stop func()) {
	t.Helper()
	s = &site{primary: p, shared: zonefile.NewPrimaries()}
	s.shared.Dial = p.dial
	s.table = zonefile.NewSecondary(secondaryOf(t, options...), s.shared, zonefile.Options{
		Logger:  slog.New(slog.NewTextHandler(&s.log, nil)),
		Changed: func(z *zonefile.Zone) { s.served = append(s.served, z.Serial()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.table.Run(ctx); close(ended) }()
	return s, func() { cancel(); <-ended }
}

// www is the answer for www in short, or the rcode.
func (s *site) www(t *testing.T) string {
	t.Helper()
	synctest.Wait()
	_, text := ask(t, s.table, "www.z.test.", dns.TypeA, false)
	if _, rr, ok := strings.Cut(text, " A "); ok {
		addr, _, _ := strings.Cut(rr, " ")
		return addr
	}
	return strings.Fields(text)[0]
}

const times = "100 20 300" // refresh, retry and expire, in seconds

// TestSecondary: the life of a zone that is transferred.
func TestSecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &primary{down: true}
		s, stop := newSite(t, p)
		defer stop()
		logged := 0
		for _, step := range []struct {
			name   string
			change func()
			after  time.Duration
			want   string
			log    string
		}{
			{"no server", func() {}, time.Second, "SERVFAIL", "can't get the zone"},
			{"a server without the zone", func() { p.with(func() { p.down = false }) }, 0, "SERVFAIL", ""},
			{"the zone is there", func() { p.set(t, 1, times, "www 60 A 192.0.2.1\n") }, 11 * time.Second, "192.0.2.1", "zone transferred"},
			{"another serial, before refresh", func() { p.set(t, 2, times, "www 60 A 192.0.2.2\n") }, 80 * time.Second, "192.0.2.1", ""},
			{"after refresh", func() {}, 26 * time.Second, "192.0.2.2", "serial=2"},
			{"an older serial", func() { p.set(t, 1, times, "www 60 A 192.0.2.1\n") }, 300 * time.Second, "192.0.2.2", ""},
			{"the server is down", func() { p.with(func() { p.down = true }) }, 190 * time.Second, "192.0.2.2", "can't get the zone"},
			{"expired", func() {}, 111 * time.Second, "SERVFAIL", "has expired"},
			{"the server is back, with the same serial", func() { p.set(t, 2, times, "www 60 A 192.0.2.2\n"); p.with(func() { p.down = false }) }, 25 * time.Second, "192.0.2.2", "answer again"},
			{"a serial beyond the wrap", func() { p.set(t, 1<<31+1, times, "www 60 A 192.0.2.3\n") }, 106 * time.Second, "192.0.2.3", ""},
			{"a serial after the wrap", func() { p.set(t, 0, times, "www 60 A 192.0.2.4\n") }, 106 * time.Second, "192.0.2.4", ""},
		} {
			step.change()
			time.Sleep(step.after)
			if got := s.www(t); got != step.want {
				t.Fatalf("%s: %s, want %s; the log:\n%s", step.name, got, step.want, s.log.String())
			}
			lines := s.log.String()[logged:]
			if logged += len(lines); !strings.Contains(lines, step.log) {
				t.Errorf("%s: the log has %q, want %q", step.name, lines, step.log)
			}
		}
		if want := []uint32{1, 2, 2, 1<<31 + 1, 0}; !slices.Equal(s.served, want) {
			t.Errorf("served were %d, want %d", s.served, want)
		}
		if p.axfrs != 4 {
			t.Errorf("%d transfers", p.axfrs)
		}
		if st := s.shared.Stats(); st.Transferred.Load() != 4 || st.Failed.Load() == 0 || st.Checked.Load() == 0 {
			t.Errorf("counted: %+v", st)
		}
	})
}

// TestSecondaryNotify: a NOTIFY of the primary server is followed by a check at once, and many by one more; those of others are
// ignored.
func TestSecondaryNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(primary)
		p.set(t, 1, "3600 600 86400", "www 60 A 192.0.2.1\n")
		s, stop := newSite(t, p)
		defer stop()
		time.Sleep(time.Minute)
		p.set(t, 2, "3600 600 86400", "www 60 A 192.0.2.2\n")
		server, stranger := netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		if got := s.table.Notify([]byte(zTest), stranger); got != authority.Ignored {
			t.Errorf("a stranger's NOTIFY is %d", got)
		}
		if got := s.table.Notify([]byte("\x01y\x04test\x00"), server); got != authority.NotSecondary {
			t.Errorf("a NOTIFY for another zone is %d", got)
		}
		if got := s.www(t); got != "192.0.2.1" {
			t.Errorf("after the stranger's NOTIFY: %s", got)
		}
		if got := s.table.Notify([]byte(zTest), server); got != authority.Notified {
			t.Errorf("the server's NOTIFY is %d", got)
		}
		if got := s.www(t); got != "192.0.2.2" {
			t.Errorf("after the server's NOTIFY: %s", got)
		}
		soas := p.soas
		for range 1000 {
			s.table.Notify([]byte(zTest), server)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := p.soas - soas; n != 2 {
			t.Errorf("1,000 NOTIFYs in a second led to %d checks", n)
		}
		if st := s.shared.Stats(); st.Notified.Load() != 1001 || st.Ignored.Load() != 1 {
			t.Errorf("counted: %d, %d", st.Notified.Load(), st.Ignored.Load())
		}
	})
}

// TestTransferRefused: a transfer that is wrong in any way leaves the zone as it was.
func TestTransferRefused(t *testing.T) {
	first := func(list []*dns.Msg) *dns.Msg { return list[0] }
	rr := func(text string) dns.RR {
		got, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, tt := range []struct {
		name, want string
		change     func([]*dns.Msg) []*dns.Msg
	}{
		{"it ends early", "closed the connection", func(l []*dns.Msg) []*dns.Msg { return l[:len(l)-1] }},
		{"nothing", "closed the connection", func([]*dns.Msg) []*dns.Msg { return nil }},
		{"another SOA record at the end", "has changed meanwhile", func(l []*dns.Msg) []*dns.Msg {
			l[2].Answer = []dns.RR{rr("z.test. 60 SOA ns.z.test. host.z.test. 9 2 3 4 5")}
			return l
		}},
		{"no SOA record first", "first record", func(l []*dns.Msg) []*dns.Msg { first(l).Answer = first(l).Answer[1:]; return l }},
		{"a record after the end", "after the end", func(l []*dns.Msg) []*dns.Msg {
			l[2].Answer = append(l[2].Answer, rr("a.z.test. 60 A 192.0.2.1"))
			return l
		}},
		{"another ID", "no reply", func(l []*dns.Msg) []*dns.Msg { l[1].Id++; return l }},
		{"a query", "no reply", func(l []*dns.Msg) []*dns.Msg { first(l).Response = false; return l }},
		{"refused", "REFUSED", func(l []*dns.Msg) []*dns.Msg { first(l).Rcode = dns.RcodeRefused; return l }},
		{"fails in between", "SERVFAIL", func(l []*dns.Msg) []*dns.Msg { l[1].Rcode = dns.RcodeServerFailure; return l }},
		{"truncated", "cut off", func(l []*dns.Msg) []*dns.Msg { l[1].Truncated = true; return l }},
		{"another question", "another question", func(l []*dns.Msg) []*dns.Msg { first(l).Question[0].Name = "y.test."; return l }},
		{"another type", "another question", func(l []*dns.Msg) []*dns.Msg { first(l).Question[0].Qtype = dns.TypeIXFR; return l }},
		{"no question", "no question", func(l []*dns.Msg) []*dns.Msg { first(l).Question = nil; return l }},
		{"no records", "without records", func(l []*dns.Msg) []*dns.Msg { l[1].Answer = nil; return l }},
		{"NSEC3", "NSEC3", func(l []*dns.Msg) []*dns.Msg {
			l[1].Answer = append(l[1].Answer, rr("z.test. 60 NSEC3PARAM 1 0 0 -"))
			return l
		}},
		{"an SOA record below", "another name", func(l []*dns.Msg) []*dns.Msg {
			l[1].Answer = append(l[1].Answer, rr("a.z.test. 60 SOA ns host 1 2 3 4 5"))
			return l
		}},
		{"another class", "class", func(l []*dns.Msg) []*dns.Msg { l[1].Answer[0].Header().Class = dns.ClassCHAOS; return l }},
		{"an address of no bytes", "no data", func(l []*dns.Msg) []*dns.Msg {
			l[1].Answer = append(l[1].Answer, &dns.A{Hdr: dns.RR_Header{Name: "e.z.test.", Rrtype: dns.TypeA, Class: dns.ClassINET}})
			return l
		}},
		{"a preference without a name", "incomplete", func(l []*dns.Msg) []*dns.Msg {
			l[1].Answer = append(l[1].Answer, &dns.RFC3597{Hdr: dns.RR_Header{Name: "e.z.test.", Rrtype: dns.TypeMX, Class: dns.ClassINET}, Rdata: "0001"})
			return l
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(primary)
				p.set(t, 1, times, "www 60 A 192.0.2.1\na 60 A 192.0.2.1\n")
				s, stop := newSite(t, p)
				defer stop()
				if got := s.www(t); got != "192.0.2.1" {
					t.Fatal(got)
				}
				p.set(t, 2, times, "www 60 A 192.0.2.2\na 60 A 192.0.2.1\n")
				p.with(func() { p.change = tt.change })
				time.Sleep(200 * time.Second)
				if got, log := s.www(t), s.log.String(); got != "192.0.2.1" || !strings.Contains(log, tt.want) {
					t.Errorf("the answer is %s; the log has %s, want %q", got, log, tt.want)
				}
				p.with(func() { p.change = nil })
				p.set(t, 2, times, "www 60 A 192.0.2.2\n")
				time.Sleep(25 * time.Second)
				if got := s.www(t); got != "192.0.2.2" {
					t.Errorf("after a valid transfer: %s", got)
				}
			})
		})
	}
}

// TestTransferBounds: a server that sends without end, or nothing, is left.
func TestTransferBounds(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		server     func(conn net.Conn)
	}{
		{"too many bytes", "32 MiB", func(conn net.Conn) {
			one := &dns.RFC3597{Hdr: dns.RR_Header{Name: "a.z.test.", Rrtype: 65280, Class: dns.ClassINET}, Rdata: strings.Repeat("ab", 60_000)}
			soa, _ := dns.NewRR("z.test. 60 SOA ns host 1 2 3 4 5")
			m := new(dns.Msg).SetAxfr("z.test.")
			m.Response, m.Answer = true, []dns.RR{soa}
			id := make([]byte, 2+12+8+4)
			if _, err := io.ReadFull(conn, id); err != nil {
				return
			}
			m.Id = binary.BigEndian.Uint16(id[2:])
			message := func() []byte {
				out, _ := m.Pack()
				return append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)
			}
			_, err := conn.Write(message())
			m.Answer = []dns.RR{one}
			for out := message(); err == nil; _, err = conn.Write(out) {
			}
		}},
		{"silence", "i/o timeout", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }},
		{"one byte at a time", "i/o timeout", func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			for {
				if _, err := conn.Write([]byte{1}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var open sync.WaitGroup
				shared := zonefile.NewPrimaries()
				shared.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
					ours, theirs := net.Pipe()
					open.Go(func() {
						defer func() { _ = theirs.Close() }()
						tt.server(theirs)
					})
					return ours, nil
				}
				var log testlog.Buffer
				tab := zonefile.NewSecondary(secondaryOf(t), shared, zonefile.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { tab.Run(ctx); close(ended) }()
				for range 180 {
					if time.Sleep(time.Second); tab.Settled() {
						break
					}
				}
				cancel()
				<-ended
				open.Wait()
				if !strings.Contains(log.String(), tt.want) || !tab.Settled() {
					t.Errorf("the log has %s, want %q", log.String(), tt.want)
				}
			})
		})
	}
}

// TestSecondaryEnds: a table that is stopped during a transfer ends at once.
func TestSecondaryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := zonefile.NewPrimaries()
		shared.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(new(bytes.Buffer), theirs) }()
			return ours, nil
		}
		tab := zonefile.NewSecondary(secondaryOf(t), shared, zonefile.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { tab.Run(ctx); close(ended) }()
		synctest.Wait()
		began := time.Now()
		cancel()
		<-ended
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %s", d)
		}
		if tab.Settled() {
			t.Error("an attempt that was broken off counts as one")
		}
	})
}
