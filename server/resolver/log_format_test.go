// These tests use class, failure and reply, which are not exported.

package resolver

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
)

// askedOf is an exchange that has come to its end: a query, and the reply that edit
// makes of an empty one.
func askedOf(t *testing.T, edit func(q *dns.Msg), reply func(r *wire.Reply)) (*Request, []byte) {
	t.Helper()
	m := new(dns.Msg).SetQuestion("WWW.example.org.", dns.TypeA)
	m.Id = 4711
	edit(m)
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	x := &Request{result: result{zone: new(Zone)}, Client: netip.MustParseAddrPort("192.0.2.7:4242"), Latency: 1500 * time.Microsecond}
	if x.Query.Parse(packet) != wire.Serve {
		t.Fatal("no query")
	}
	x.reply.Start(nil, &x.Query)
	reply(&x.reply)
	return x, x.reply.Finish(wire.MaxMessage)
}

func address(r *wire.Reply) {
	r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 60, []byte{192, 0, 2, 1})
}

func soa(r *wire.Reply) {
	r.Add(wire.Authority, wire.AtQuestion, wire.TypeSOA, 60, make([]byte, 22))
}

func referral(r *wire.Reply) {
	r.Add(wire.Authority, wire.AtQuestion, wire.TypeNS, 60, []byte{0})
}

// TestFormat: each placeholder, and what is none; the lines are those that CoreDNS
// writes of the same queries.
func TestFormat(t *testing.T) {
	const all = "{remote} {port} {local} {name} {type} {class} {proto} {size} {>id} {>opcode} {>do} {>bufsize} {rcode} {>rflags} {rsize} {duration}"
	plain := func(*dns.Msg) {}
	x, msg := askedOf(t, plain, func(r *wire.Reply) {
		address(r)
		r.SetAuthoritative()
	})
	other, otherMsg := askedOf(t, func(q *dns.Msg) {
		q.RecursionDesired, q.CheckingDisabled = false, true
		q.Question[0].Qtype = 65280
		q.SetEdns0(4000, true)
	}, func(r *wire.Reply) { r.Fail(wire.NXDomain) })
	other.Proto, other.Client = TCP, netip.MustParseAddrPort("[2001:db8::7]:53")
	mapped, mappedMsg := askedOf(t, func(q *dns.Msg) { q.SetEdns0(100, false) }, func(r *wire.Reply) { r.Fail(3000) })
	mapped.Client = netip.MustParseAddrPort("[::ffff:192.0.2.7]:1")
	silent, _ := askedOf(t, plain, address)
	silent.verdicts |= dropped
	local := netip.MustParseAddr("169.254.20.10")
	for _, c := range []struct {
		name, format, want string
		x                  *Request
		msg                []byte
		local              netip.Addr
	}{
		{"all", all, "192.0.2.7 4242 169.254.20.10 www.example.org. A IN udp 33 4711 0 false 512 NOERROR qr,aa,rd 49 0.0015s", x, msg, local},
		{"all over TCP and IPv6", all, "[2001:db8::7] 53 [::1] www.example.org. TYPE65280 IN tcp 44 4711 0 true 65535 NXDOMAIN qr,cd 44 0.0015s", other, otherMsg, netip.IPv6Loopback()},
		{"small buffer, mapped client, unknown rcode, unknown address", "{remote} {>bufsize} {rcode} {local}", "192.0.2.7 512 3000 -", mapped, mappedMsg, netip.IPv6Unspecified()},
		{"no reply yet", all, "192.0.2.7 4242 - www.example.org. A IN udp 33 4711 0 false 512 - - - -", x, nil, netip.Addr{}},
		{"no reply at all", "{rcode} {>rflags} {rsize} {duration} {/log/class}", "- - 0 0.0015s error", silent, nil, local},
		{"metadata", "{/log/class} {/log/type} {/forward/upstream}", "success NOERROR -", x, msg, local},
		{"no placeholders", "{} {x} { {name} } }{ {type", "{} {x} { www.example.org. } }{ {type", x, msg, local},
		{"closed before it is opened", "a } {type}", "a } A", x, msg, local},
		{"nothing", "", "", x, msg, local},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(ParseFormat(c.format).line(nil, c.x, c.msg, c.local)); got != c.want {
				t.Errorf("line\n%s, want\n%s", got, c.want)
			}
		})
	}
}

// FuzzFormat holds that a format without anything known in it is its own line.
func FuzzFormat(f *testing.F) {
	for _, text := range []string{"{", "}", "}{", "{{name}}", "{type", "{/x}", "a{name}b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		format, rest := ParseFormat(text), text
		for name := range placeholders {
			rest = strings.ReplaceAll(rest, name, "")
		}
		if rest != text || strings.Contains(text, "{/") {
			return
		}
		if got := string(format.line(nil, &Request{}, nil, netip.Addr{})); got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// TestKinds: which class a reply is of.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply func(*wire.Reply)
		class class
		kind  string
	}{
		{"an address", address, success, "NOERROR"},
		{"none", soa, denial, "NODATA"},
		{"a referral", referral, success, "DELEGATION"},
		{"none, signed", func(r *wire.Reply) {
			r.Add(wire.Authority, wire.AtQuestion, wire.TypeNSEC, 60, []byte{0})
			soa(r)
		}, denial, "NODATA"},
		{"nothing at all", func(*wire.Reply) {}, success, "NOERROR"},
		{"no such name", func(r *wire.Reply) { r.Fail(wire.NXDomain); soa(r) }, denial, "NXDOMAIN"},
		{"an alias of no such name", func(r *wire.Reply) { r.Fail(wire.NXDomain); address(r) }, failure, "OTHERERROR"},
		{"failed", func(r *wire.Reply) { r.Fail(wire.ServFail) }, failure, "SERVERERROR"},
		{"refused", func(r *wire.Reply) { r.Fail(wire.Refused) }, failure, "OTHERERROR"},
	} {
		x, _ := askedOf(t, func(*dns.Msg) {}, c.reply)
		if k := x.kind(); k.class() != c.class || k.String() != c.kind {
			t.Errorf("%s is %s, %s; want %s, %s", c.name, k.class(), k, c.class, c.kind)
		}
	}
}

// TestQueryLog: the first rule that has a name decides, also that nothing is logged.
func TestQueryLog(t *testing.T) {
	var out bytes.Buffer
	strip := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	log := &QueryLog{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: strip})), Rules: []LogRule{
		{Names: []wire.Name{nameOf(t, "www.example.org")}, Denial: true, Format: ParseFormat("denied {name}")},
		{Names: []wire.Name{nameOf(t, "org")}, Success: true, Denial: true, Error: true},
	}}
	send := func(name string, reply func(*wire.Reply)) string {
		out.Reset()
		x, msg := askedOf(t, func(q *dns.Msg) { q.Question[0].Name = name }, reply)
		if r := log.rule(x); r != nil {
			log.write(r, x, msg)
		}
		return strings.TrimSpace(out.String())
	}
	const rest = ` client_ip=192.0.2.7 client_port=4242 qname=%s qtype=A qclass=IN protocol=udp id=4711 opcode=0 request_size=%d dnssec_ok=false bufsize=512 rcode=%s response_size=%d duration_seconds=0.0015`
	fill := func(line, name string, size int, rcode string, rsize int) string {
		return line + fmt.Sprintf(rest, name, size, rcode, rsize)
	}
	for _, c := range []struct {
		name  string
		reply func(*wire.Reply)
		want  string
	}{
		{"www.example.org.", address, ""},
		{"a.www.example.org.", soa, fill(`level=INFO msg="denied a.www.example.org."`, "a.www.example.org.", 35, "NOERROR", 69)},
		{"b.org.", address, fill("level=INFO msg=query", "b.org.", 23, "NOERROR", 39)},
		{"b.test.", address, ""},
	} {
		if got := send(c.name, c.reply); got != c.want {
			t.Errorf("%s: %q, want\n%q", c.name, got, c.want)
		}
	}
	log.Plain = true
	if got, want := send("www.example.org.", soa), `level=INFO msg="denied www.example.org."`; got != want {
		t.Errorf("plain: %q, want %q", got, want)
	}
	if (*QueryLog)(nil).rule(&Request{}) != nil {
		t.Error("no log has a rule")
	}
}

func nameOf(t *testing.T, text string) wire.Name {
	t.Helper()
	name, err := wire.ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return name
}
