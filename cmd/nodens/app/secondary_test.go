// This test uses the generations' parts, which are not exported.

package app

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// startPrimary serves z.test with the serial in the pointer, which is also the last byte of its address.
func startPrimary(t *testing.T) (s *fakedns.Server, serial *atomic.Int32) {
	t.Helper()
	serial = new(atomic.Int32)
	serial.Store(1)
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		soa, _ := dns.NewRR(fmt.Sprintf("z.test. 60 SOA ns host %d 3600 600 86400 30", serial.Load()))
		www, _ := dns.NewRR(fmt.Sprintf("www.z.test. 60 A 192.0.2.%d", serial.Load()))
		m := new(dns.Msg).SetReply(q)
		if m.Answer = []dns.RR{soa}; q.Question[0].Qtype == dns.TypeAXFR {
			m.Answer = []dns.RR{soa, www, soa}
		}
		return m
	})), serial
}

// TestSecondaryReload: the agent has transferred a zone when it answers its first query; a NOTIFY brings the next version;
// a reload keeps the zone without asking the primary server, which may be down.
func TestSecondaryReload(t *testing.T) {
	primary, serial := startPrimary(t)
	port := peer.Ports(t, 1)[0]
	secondary := fmt.Sprintf("secondary z.test {\n transfer from %s\n}", primary.Addr())
	l := lookedAt(t, blockText("z.test", port, "bind 127.0.0.1", secondary))
	at := fmt.Sprintf("127.0.0.1:%d", port)
	exchange := func(q *dns.Msg) string {
		c := dns.Client{Timeout: 5 * time.Second}
		m, _, err := c.Exchange(q, at)
		check.NoError(t, err)
		if len(m.Answer) > 0 {
			return m.Answer[0].String()
		}
		return fmt.Sprintf("%s %s aa=%t edns=%t", dns.OpcodeToString[m.Opcode], dns.RcodeToString[m.Rcode], m.Authoritative, m.IsEdns0() != nil)
	}
	www := func() string { return exchange(new(dns.Msg).SetQuestion("www.z.test.", dns.TypeA)) }
	if got := www(); !strings.HasSuffix(got, "192.0.2.1") {
		t.Fatalf("the first answer is %s; the log:\n%s", got, l.log)
	}
	serial.Store(2)
	if got := exchange(new(dns.Msg).SetNotify("Z.test.")); got != "NOTIFY NOERROR aa=true edns=false" {
		t.Errorf("the reply to NOTIFY is %s", got)
	}
	if got := exchange(new(dns.Msg).SetNotify("z.test.").SetEdns0(1232, false)); got != "NOTIFY NOERROR aa=true edns=true" {
		t.Errorf("the reply to NOTIFY with EDNS is %s", got)
	}
	poll.Until(t, "the next version", func() bool { return strings.HasSuffix(www(), "192.0.2.2") })
	if got := exchange(new(dns.Msg).SetNotify("y.test.")); got != "NOTIFY NOTIMP aa=false edns=false" {
		t.Errorf("the reply to a NOTIFY for another zone is %s", got)
	}
	primary.Close()
	agenttest.WriteFile(t, l.conf, blockText("z.test", port, "bind 127.0.0.1", "minimal", secondary))
	before := part[*zoneTable](l.current.Load().blocks[0], "secondary")
	if !l.look() || part[*zoneTable](l.current.Load().blocks[0], "secondary") != before {
		t.Error("the zone was not kept")
	}
	if got := www(); !strings.HasSuffix(got, "192.0.2.2") {
		t.Errorf("after the reload: %s", got)
	}
}
