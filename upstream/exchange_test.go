// Inside the package: the tests share the scripted server of this package, and compare with its limits.

package upstream

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// outcome is the result of an exchange, and what the server saw of it.
type outcome struct {
	Rcode     wire.Rcode
	Answers   int
	Truncated bool
	Over      []string // the protocol of each query sent
	Strays    uint64
	Err       error
}

func TestExchange(t *testing.T) {
	tests := []struct {
		name    string
		script  script
		option  func(*config.Forward)
		overTCP bool
		want    outcome
	}{{
		name:   "over UDP",
		script: answerOK,
		want:   outcome{Answers: 1, Over: []string{"udp"}},
	}, {
		name:    "over the client's protocol",
		script:  answerOK,
		overTCP: true,
		want:    outcome{Answers: 1, Over: []string{"tcp"}},
	}, {
		name:    "prefer_udp for a client on TCP",
		script:  answerOK,
		option:  func(f *config.Forward) { f.PreferUDP = true },
		overTCP: true,
		want:    outcome{Answers: 1, Over: []string{"udp"}},
	}, {
		name:   "force_tcp is stronger than prefer_udp",
		script: answerOK,
		option: func(f *config.Forward) { f.PreferUDP, f.ForceTCP = true, true },
		want:   outcome{Answers: 1, Over: []string{"tcp"}},
	}, {
		name:   "an upstream's error is an answer",
		script: func(r request) { r.reply(r.rcode(dns.RcodeServerFailure)) },
		want:   outcome{Rcode: wire.ServFail, Over: []string{"udp"}},
	}, {
		name:   "a bare error is an answer",
		script: func(r request) { r.send(r.headerOnly(dns.RcodeRefused)) },
		want:   outcome{Rcode: wire.Refused, Over: []string{"udp"}},
	}, {
		name:   "TC is fetched over TCP",
		script: truncateUDP(1, 40),
		want:   outcome{Answers: 40, Over: []string{"udp", "tcp"}},
	}, {
		name: "TC and no TCP gives what there is",
		script: func(r request) {
			if truncateUDP(2, 0)(r); r.conn != nil {
				r.conn.Close()
			}
		},
		want: outcome{Answers: 2, Truncated: true, Over: []string{"udp", "tcp"}},
	}, {
		name: "cut inside a record",
		script: func(r request) {
			if r.over == "tcp" {
				r.reply(r.answer(9))
				return
			}
			m := r.answer(9)
			m.Truncated = true
			b := r.pack(m)
			r.send(b[:len(b)-5])
		},
		want: outcome{Answers: 9, Over: []string{"udp", "tcp"}},
	}, {
		name:   "a datagram larger than any",
		script: func(r request) { r.reply(r.answer(400)) }, // 16 bytes each
		want:   outcome{Answers: 400, Over: []string{"udp", "tcp"}},
	}, {
		name:   "a datagram larger than asked for, but taken",
		script: func(r request) { r.reply(r.answer(200)) },
		want:   outcome{Answers: 200, Over: []string{"udp"}},
	}, {
		name:   "the largest message",
		script: func(r request) { r.reply(r.answer(4090)) },
		option: func(f *config.Forward) { f.ForceTCP = true },
		want:   outcome{Answers: 4090, Over: []string{"tcp"}},
	}, {
		name: "strays before the answer",
		script: func(r request) {
			for _, b := range unexpectedReplies(r) {
				r.send(b)
			}
			r.reply(r.answer(1))
		},
		want: outcome{Answers: 1, Over: []string{"udp"}, Strays: 7},
	}, {
		name: "strays before the answer over TCP",
		script: func(r request) {
			var b []byte
			for _, m := range append(unexpectedReplies(r), nil, r.pack(r.answer(1))) {
				b = append(binary.BigEndian.AppendUint16(b, uint16(len(m))), m...)
			}
			r.conn.Write(b)
		},
		overTCP: true,
		want:    outcome{Answers: 1, Over: []string{"tcp"}, Strays: 8},
	}, {
		name: "from another port",
		script: func(r request) {
			other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				r.fake.t.Error(err)
				return
			}
			defer other.Close()
			other.WriteToUDPAddrPort(r.pack(r.answer(7)), r.from)
			r.reply(r.answer(1))
		},
		want: outcome{Answers: 1, Over: []string{"udp"}},
	}, {
		name: "case of the question does not matter",
		script: func(r request) {
			r.Question[0].Name = "WWW.eXample.ORG."
			r.reply(r.answer(1))
		},
		want: outcome{Answers: 1, Over: []string{"udp"}},
	}, {
		name:   "FORMERR without OPT is asked again without",
		script: rejectEDNS(dns.RcodeFormatError),
		want:   outcome{Answers: 1, Over: []string{"udp", "udp"}},
	}, {
		name:   "NOTIMP without OPT is asked again without",
		script: rejectEDNS(dns.RcodeNotImplemented),
		want:   outcome{Answers: 1, Over: []string{"udp", "udp"}},
	}, {
		name:    "without EDNS over TCP",
		script:  rejectEDNS(dns.RcodeFormatError),
		overTCP: true,
		want:    outcome{Answers: 1, Over: []string{"tcp", "tcp"}},
	}, {
		name:   "FORMERR to everything",
		script: func(r request) { r.send(r.headerOnly(dns.RcodeFormatError)) },
		want:   outcome{Rcode: wire.FormErr, Over: []string{"udp", "udp"}},
	}, {
		name:   "FORMERR with OPT is an answer to a query without a cookie",
		script: func(r request) { r.reply(r.rcode(dns.RcodeFormatError).SetEdns0(1232, false)) },
		want:   outcome{Rcode: wire.FormErr, Over: []string{"udp", "udp"}},
	}, {
		name:    "the right question, then garbage",
		script:  cutOver("tcp"),
		overTCP: true,
		want:    outcome{Over: []string{"tcp", "tcp"}, Err: ErrFailed},
	}, {
		name:   "cut without TC is fetched over TCP",
		script: cutOver("udp"),
		want:   outcome{Answers: 9, Over: []string{"udp", "tcp"}},
	}, {
		name: "cut without TC between two records",
		script: func(r request) {
			if b := r.pack(r.answer(9)); r.over == "udp" {
				r.send(b[:len(b)-2*16])
			} else {
				r.send(b)
			}
		},
		want: outcome{Answers: 9, Over: []string{"udp", "tcp"}},
	}, {
		name:   "cut without TC behind the header and the question",
		script: cutBehindQuestion,
		want:   outcome{Answers: 9, Over: []string{"udp", "tcp"}},
	}, {
		name: "cut without TC, and TCP closes",
		script: func(r request) {
			if r.over == "udp" {
				cutOver("udp")(r)
			} else {
				r.conn.Close()
			}
		},
		want: outcome{Truncated: true, Over: []string{"udp", "tcp"}},
	}, {
		name:   "cut over UDP and over TCP",
		script: cutOver("udp", "tcp"),
		want:   outcome{Over: []string{"udp", "tcp", "udp", "tcp"}, Err: ErrFailed},
	}, {
		name:   "names that take too long to read",
		script: func(r request) { r.send(withPointerChains(r.pack(r.answer(0)))) },
		want:   outcome{Over: []string{"udp", "tcp", "udp", "tcp"}, Err: ErrFailed},
	}, {
		name: "TCP closed inside the message",
		script: func(r request) {
			b := r.pack(r.answer(1))
			r.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b[:20]...))
			r.conn.Close()
		},
		overTCP: true,
		want:    outcome{Over: []string{"tcp", "tcp"}, Err: ErrFailed},
	}, {
		name: "TCP reset",
		script: func(r request) {
			r.conn.(*net.TCPConn).SetLinger(0)
			r.conn.Close()
		},
		overTCP: true,
		want:    outcome{Over: []string{"tcp", "tcp"}, Err: ErrFailed},
	}, {
		name: "TCP byte by byte",
		script: func(r request) {
			b := r.pack(r.answer(1))
			for _, c := range append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) {
				r.conn.Write([]byte{c})
			}
		},
		overTCP: true,
		want:    outcome{Answers: 1, Over: []string{"tcp"}},
	}, {
		name:   "silence",
		script: ignore,
		option: func(f *config.Forward) { f.ReadTimeout = 20 * time.Millisecond },
		want:   outcome{Over: []string{"udp", "udp"}, Err: ErrTimeout},
	}, {
		name:    "silence over TCP",
		script:  ignore,
		option:  func(f *config.Forward) { f.ReadTimeout = 20 * time.Millisecond },
		overTCP: true,
		want:    outcome{Over: []string{"tcp", "tcp"}, Err: ErrTimeout},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t, tt.script)
			cfg := forwardTo(f)
			cfg.MaxFails = 0 // no probes among the queries
			if tt.option != nil {
				tt.option(cfg)
			}
			p := newPool(t, cfg)
			r, err := p.Exchange(t.Context(), question(t, "www.example.org."), tt.overTCP)
			got := outcome{Rcode: r.Rcode, Answers: r.Answers, Truncated: r.Truncated, Strays: p.Stats().Servers[0].UnexpectedReplies}
			for _, r := range f.requests() {
				got.Over = append(got.Over, r.over)
			}
			if !errors.Is(err, tt.want.Err) {
				t.Errorf("the error is %v, want %v", err, tt.want.Err)
			}
			tt.want.Err = nil
			equal(t, tt.want, got, "wrong outcome")
		})
	}
}

// truncateUDP answers with n records and TC over UDP, and with all records over TCP, or not
// at all if all is 0.
func truncateUDP(n, all int) script {
	return func(r request) {
		if r.over == "udp" {
			m := r.answer(n)
			m.Truncated = true
			r.reply(m)
			return
		}
		if all > 0 {
			r.reply(r.answer(all))
		}
	}
}

// rejectEDNS answers queries without OPT, and rejects others with a bare rcode.
func rejectEDNS(rcode int) script {
	return func(r request) {
		if r.IsEdns0() != nil {
			r.send(r.headerOnly(rcode))
			return
		}
		answerOK(r)
	}
}

// withPointerChains appends records to b, a reply without records, whose owners have a
// compression pointer after each of a hundred labels.
func withPointerChains(b []byte) []byte {
	const names, owners = 100, 200
	last := len(b) + 12
	b = append(b, 0xC0, headerLen, 0xFF, 0, 0, 1, 0, 0, 1, 44, 4*names>>8, 4*names&0xFF)
	for range names {
		at := len(b)
		b = append(b, 1, 'x', 0xC0|byte(last>>8), byte(last))
		if at == last {
			b[at+2], b[at+3] = 0, 0
		}
		last = at
	}
	for i := range owners { // none equals that of the previous record
		at := last - 4*(i%2)
		b = append(b, 0xC0|byte(at>>8), byte(at), 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 192, 0, 2, 1)
	}
	binary.BigEndian.PutUint16(b[6:], 1+owners)
	return b
}

// unexpectedReplies returns messages that do not match r, each for another reason.
func unexpectedReplies(r request) [][]byte {
	id := r.answer(1)
	id.Id++
	name := r.answer(1)
	name.Question = []dns.Question{{Name: "other.example.org.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}
	qtype := r.answer(1)
	qtype.Question = []dns.Question{{Name: r.Question[0].Name, Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}}
	empty := r.answer(0)
	empty.Question = nil // only an error reply is accepted without a question
	return [][]byte{
		r.pack(id), r.pack(name), r.pack(qtype), r.pack(empty),
		r.pack(r.Msg),                    // our own query
		r.headerOnly(dns.RcodeNameError), // NXDOMAIN without a question
		{1, 2, 3},
	}
}

func TestQueryOnTheWire(t *testing.T) {
	f := startFake(t, answerOK)
	p := newPool(t, forwardTo(f))
	m := new(dns.Msg).SetQuestion("WWW.Example.org.", dns.TypeMX)
	m.CheckingDisabled = true
	m.SetEdns0(4096, true)
	b, err := m.Pack()
	noError(t, err)
	var q wire.Query
	q.Parse(b)
	if _, err := p.Exchange(t.Context(), &q, false); err != nil {
		t.Fatal(err)
	}
	got := f.requests()[0]
	if want := (dns.Question{Name: "www.example.org.", Qtype: dns.TypeMX, Qclass: dns.ClassINET}); got.Question[0] != want {
		t.Errorf("the question sent is %v, want %v", got.Question[0], want)
	}
	if !got.RecursionDesired || !got.CheckingDisabled {
		t.Error("RD and CD of the client are lost")
	}
	opt := got.IsEdns0()
	if opt == nil {
		t.Fatal("the query has no OPT record")
	}
	if opt.UDPSize() != DefaultPayload || !opt.Do() {
		t.Errorf("the OPT record claims %d bytes and DO %t, want our own %d and the client's true", opt.UDPSize(), opt.Do(), DefaultPayload)
	}
}

func TestPayload(t *testing.T) {
	for _, tt := range []struct{ set, want int }{{0, DefaultPayload}, {100, 512}, {700, 700}, {65535, maxDatagram}} {
		f := startFake(t, answerOK)
		p := New(forwardTo(f), Options{Payload: tt.set})
		_, err := p.Exchange(t.Context(), question(t, "example.org."), false)
		p.Close()
		noError(t, err)
		if got := f.requests()[0].IsEdns0().UDPSize(); int(got) != tt.want {
			t.Errorf("payload %d claims %d bytes, want %d", tt.set, got, tt.want)
		}
	}
}

// TestRandomIDsAndPorts checks what a forger has to guess. It can't prove randomness; it
// detects counters, constants and a port that is never retired.
func TestRandomIDsAndPorts(t *testing.T) {
	const n = 10 * maxQueriesPerSocket
	f := startFake(t, answerOK)
	p := newPool(t, forwardTo(f))
	for range n {
		mustAnswer(t, p, "example.org.")
	}
	ids, ports, steps := map[uint16]bool{}, map[uint16]int{}, map[uint16]int{}
	var before uint16
	for _, r := range f.requests() {
		ids[r.Id] = true
		ports[r.from.Port()]++
		steps[r.Id-before]++
		before = r.Id
	}
	if len(ids) < n*9/10 { // by chance fewer than one in a hundred repeats
		t.Errorf("%d queries had %d different IDs", n, len(ids))
	}
	for step, times := range steps {
		if times > 8 {
			t.Errorf("the ID moved on by %d %d times", step, times)
		}
	}
	for port, times := range ports {
		if times > 2*maxQueriesPerSocket { // the kernel may choose a port twice
			t.Errorf("port %d was used %d times", port, times)
		}
	}
	if len(ports) < 5 {
		t.Errorf("%d queries came from %d ports", n, len(ports))
	}
}

func TestRefusedPort(t *testing.T) {
	for _, ip := range []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback} {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			continue // without IPv6
		}
		noError(t, err)
		closed := c.LocalAddr().(*net.UDPAddr).AddrPort()
		c.Close()
		for _, overTCP := range []bool{false, true} {
			cfg := forwardTo()
			cfg.To = []config.Target{{Addr: closed}}
			_, err := newPool(t, cfg).Exchange(t.Context(), question(t, "example.org."), overTCP)
			if !errors.Is(err, ErrFailed) {
				t.Errorf("a closed port of %v (TCP %t) is %v, want ErrFailed", ip, overTCP, err)
			}
		}
	}
}

func TestNoServers(t *testing.T) {
	if _, err := newPool(t, forwardTo()).Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrNoUpstream) {
		t.Errorf("without servers: %v, want ErrNoUpstream", err)
	}
}

// TestPaddedQueries: queries have a multiple of 128 bytes where nobody can read them, and no padding elsewhere.
func TestPaddedQueries(t *testing.T) {
	q := question(t, "example.org.")
	for _, options := range []string{"", "abcdefg"} {
		if options != "" {
			q.Options = wire.SetOption(nil, 65518, []byte(options))
		}
		for _, encrypted := range []bool{false, true} {
			x := newQuery()
			x.request, x.payload = q, 1232
			x.build(true, &server{encrypted: encrypted})
			m := new(dns.Msg)
			if err := m.Unpack(x.message()); err != nil {
				t.Fatal(err)
			}
			padded := slices.ContainsFunc(m.IsEdns0().Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0PADDING })
			if padded != encrypted || encrypted && len(x.message())%wire.QueryBlock != 0 {
				t.Errorf("encrypted %t: %d bytes, padded %t", encrypted, len(x.message()), padded)
			}
			if x.build(false, &server{encrypted: encrypted}); len(x.message()) != headerLen+len(q.Name())+4 {
				t.Errorf("%d bytes without EDNS", len(x.message()))
			}
		}
	}
}

// TestOptionsOnTheWire: the server gets the query's EDNS options, over each protocol, but no server without EDNS does.
func TestOptionsOnTheWire(t *testing.T) {
	q := question(t, "example.org.")
	q.Options = wire.SetOption(wire.SetOption(nil, 65518, []byte("abcd")), dns.EDNS0SUBNET, []byte{0, 1, 24, 0, 192, 0, 2})
	want := []string{"65518:0x61626364", "192.0.2.0/24/0"}
	for name, tt := range map[string]struct {
		script script
		want   [][]string // of each query
	}{
		"a server with EDNS":    {answerOK, [][]string{want}},
		"a truncated reply":     {truncateUDP(1, 2), [][]string{want, want}},
		"a server without EDNS": {rejectEDNS(dns.RcodeFormatError), [][]string{want, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, tt.script)
			if _, err := newPool(t, forwardTo(f)).Exchange(t.Context(), q, false); err != nil {
				t.Fatal(err)
			}
			var got [][]string
			for _, r := range f.requests() {
				var list []string
				if opt := r.IsEdns0(); opt != nil {
					for _, o := range opt.Option {
						if o.Option() != dns.EDNS0COOKIE {
							list = append(list, o.String())
						}
					}
				}
				got = append(got, list)
			}
			equal(t, tt.want, got, "options")
		})
	}
}
