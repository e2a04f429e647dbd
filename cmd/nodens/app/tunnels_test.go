// This test uses the generations' parts, which are not exported.

package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/tunnel"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestTunnelStatus: nodens status names a client that may send data in names. A reload that changes something else keeps what is
// known of clients, and the rules of rpz.
func TestTunnelStatus(t *testing.T) {
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeNameError) }))
	port := peer.Ports(t, 1)[0]
	rules := agenttest.WriteCorefile(t, "$TTL 60\n@ SOA ns host 1 2 3 4 5\nevil.test CNAME .\n")
	block := func(more string) string {
		return blockText(".", port, "bind 127.0.0.1", "forward . "+up.Addr().String(), "tunnel {\nnames 50\nbytes 1024\n}", "rpz rpz.test {\nfile "+rules+"\n}", more)
	}
	l := lookedAt(t, block(""))
	found := func() []report.Problem {
		return slices.DeleteFunc(l.status().Problems, func(p report.Problem) bool { return p.Code != "dns-tunnel" })
	}
	if p := found(); len(p) > 0 {
		t.Fatalf("problems before: %v", p)
	}
	c := dns.Client{Timeout: 5 * time.Second}
	for i := range 80 {
		_, _, err := c.Exchange(new(dns.Msg).SetQuestion(fmt.Sprintf("%s%d.evil.example.", strings.Repeat("x", 40), i), dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
		check.NoError(t, err)
	}
	before := l.current.Load().blocks[0]
	agenttest.WriteFile(t, l.conf, block("minimal"))
	if !l.look() {
		t.Fatal("the change was not taken on")
	}
	after := l.current.Load().blocks[0]
	if part[*tunnel.Detector](after, "tunnel") != part[*tunnel.Detector](before, "tunnel") || part[*zonefile.Policies](after, "rpz") != part[*zonefile.Policies](before, "rpz") {
		t.Error("a part was not kept")
	}
	if p := found(); len(p) != 1 || !strings.HasPrefix(p[0].Text, "127.0.0.1 may send data in names below evil.example.: ") {
		t.Errorf("the problems are %v", p)
	}
}
