// These tests use epochs, links and state, which are not exported.

package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/wire"
)

// wireName returns a name in wire form.
func wireName(t *testing.T, text string) []byte {
	t.Helper()
	name, err := wire.ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(name)
}

// TestCopies checks what is reported of the copies of a name, and that no query is counted.
func TestCopies(t *testing.T) {
	l := newTestProgram(t)
	if err := l.SetListeners(map[netip.AddrPort]uint32{listener4: 7, otherDoor4: 8}); err != nil {
		t.Fatal(err)
	}
	cluster, _ := l.Epochs()
	const name = "web.default.svc.cluster.local."
	put := func(listener uint32, qtype uint16, expires time.Duration, form func(*dns.Msg)) {
		t.Helper()
		a := answerTo(t, ask(t, name, qtype, form), func(r *wire.Reply) {
			if qtype == dns.TypeAAAA {
				r.SetRcode(wire.NXDomain)
			}
			r.Add(wire.Answer, wire.AtQuestion, wire.TypeA, 5, []byte{10, 96, 0, 7})
		})
		a.Listener, a.Expires = listener, expires
		l.put(a)
	}
	put(7, dns.TypeA, 0, nil)
	put(7, dns.TypeA, clock.Now()+time.Hour, func(m *dns.Msg) { m.SetEdns0(1232, true) })
	put(7, dns.TypeAAAA, time.Nanosecond, func(m *dns.Msg) { m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled = false, true, true })
	put(8, dns.TypeA, 0, nil)
	put(9, dns.TypeA, 0, nil) // at no listener any more
	before := l.Counters()
	reported := func(qtype uint16, at netip.AddrPort) map[string]bool {
		list := make(map[string]bool)
		for _, c := range l.Copies(wireName(t, name), qtype, at) {
			form := []string{c.Listener.String(), dns.TypeToString[c.Type]}
			for i, set := range []bool{c.Form.RD, c.Form.AD, c.Form.CD, c.Form.EDNS, c.Form.DO} {
				if set {
					form = append(form, []string{"RD", "AD", "CD", "EDNS", "DO"}[i])
				}
			}
			form = append(form, c.Rcode.String(), c.State.String())
			if c.Left > 0 {
				form = append(form, "ends")
			}
			if c.Idle >= 0 {
				form = append(form, "given")
			}
			list[strings.Join(form, " ")] = true
		}
		return list
	}
	expect := func(what string, got map[string]bool, want ...string) {
		t.Helper()
		all := make(map[string]bool)
		for _, text := range want {
			all[text] = true
		}
		if diff := cmp.Diff(all, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	const plain, secure, denial = "169.254.20.10:53 A RD NOERROR valid", "169.254.20.10:53 A RD EDNS DO NOERROR valid ends", "169.254.20.10:53 AAAA AD CD NXDOMAIN expired"
	expect("all", reported(0, netip.AddrPort{}), plain, secure, denial, "10.96.0.10:53 A RD NOERROR valid")
	expect("of one type", reported(dns.TypeAAAA, netip.AddrPort{}), denial)
	expect("of one listener", reported(0, otherDoor4), "10.96.0.10:53 A RD NOERROR valid")
	expect("of an unknown listener", reported(0, listener6))
	if list := l.Copies(wireName(t, "other."+name), 0, netip.AddrPort{}); len(list) > 0 {
		t.Errorf("of another name: %v", list)
	}
	if list := l.Copies([]byte(strings.Repeat("\x3fa", 100)), 0, netip.AddrPort{}); len(list) > 0 {
		t.Errorf("of a name that is too long: %v", list)
	}
	if diff := cmp.Diff(before, l.Counters()); diff != "" {
		t.Errorf("counted: %s", diff)
	}
	if verdict, _ := l.runAnswer(frame(client4, listener4, ask(t, name, dns.TypeA, nil))); verdict != redirected {
		t.Fatal("the copy is not given")
	}
	expect("after an answer", reported(dns.TypeA, listener4), plain+" given", secure)
	cluster.Bump(5)
	expect("after a change", reported(dns.TypeA, listener4), strings.Replace(plain, "valid", "outdated", 1)+" given", strings.Replace(secure, "valid", "outdated", 1))
}

// TestClientInfo checks what is reported of a client. In the other tests of admission, isAnswered compares the
// reported result with what happens.
func TestClientInfo(t *testing.T) {
	s := newAdmissionTest(t)
	const result = "answered"
	for _, client := range []netip.AddrPort{client4, client6} {
		reported := func() (ClientInfo, bool) { return s.Client(client.Addr(), listenerFor(client)) }
		if c, ok := reported(); ok {
			t.Errorf("%s before it asks: %+v", client, c)
		}
		s.isAnswered(client, portA)
		if c, ok := reported(); !ok || c != (ClientInfo{Interface: portA, Result: "unknown_client"}) {
			t.Errorf("%s without a reply: %+v, %t", client, c, ok)
		}
		s.replied(client, portA)
		s.links[portA] = &attachment{answer: noLink, admit: noLink, front: noLink, answering: true}
		if c, ok := reported(); !ok || c != (ClientInfo{Interface: portA, Answering: true, Result: result}) {
			t.Errorf("%s after a reply: %+v, %t", client, c, ok)
		}
		delete(s.links, portA)
		if c, ok := s.Client(client.Addr(), netip.MustParseAddrPort("192.0.2.1:53")); ok {
			t.Errorf("%s at no listener: %+v", client, c)
		}
		s.KeepOut(func(netip.Addr) bool { return true }, time.Minute)
		if c, _ := reported(); c.Result != "client_moved" {
			t.Errorf("%s while it is kept out: %+v", client, c)
		}
	}
	s.Stop()
	if c, _ := s.Client(client4.Addr(), listener4); c.Result != "heartbeat_expired" {
		t.Errorf("after Stop: %+v", c)
	}
}

// TestUnsupported checks which queries and replies the kernel path does not support.
func TestUnsupported(t *testing.T) {
	long := strings.Repeat("a123456789b123456789c123456789d12345.", 3) // 111 bytes
	for name, c := range map[string]struct {
		query []byte
		reply int
		want  string
	}{
		"plain":          {ask(t, "a.test.", dns.TypeA, nil), 512 - 368, ""},
		"no reply":       {ask(t, "a.test.", dns.TypeA, nil), 0, ""},
		"the longest":    {ask(t, long+"a123456789b1234.", dns.TypeA, nil), 512, ""},
		"a long name":    {ask(t, long+"a123456789b12345.", dns.TypeA, nil), 0, "128"},
		"a long reply":   {ask(t, long+"a123456789b1234.", dns.TypeA, nil), 513, "512"},
		"a long tail":    {ask(t, "a.test.", dns.TypeA, nil), 400, "368"},
		"another opcode": {ask(t, "a.test.", dns.TypeA, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }), 0, "flags"},
		"another class":  {ask(t, "a.test.", dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), 0, "flags"},
		"an EDNS option": {ask(t, "a.test.", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
		}), 0, "options"},
	} {
		var q wire.Query
		q.Parse(c.query)
		var reply []byte
		if c.reply > 0 {
			reply = make([]byte, c.reply)
		}
		if got := Unsupported(&q, reply); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
