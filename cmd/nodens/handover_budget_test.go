//go:build linux

package main

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// TestBudgetDuringHandover: two agents of which one takes over from the other, and gives back, send no more than the
// budget together, and the one that serves has all of it.
func TestBudgetDuringHandover(t *testing.T) {
	const perSecond, burst = 40, 80
	port := peer.Ports(t, 1)[0]
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 300, "192.0.2.1") }))
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n cache\n forward . %s {\n max_rate %d %d\n read_timeout 500ms\n health_check 0s\n }\n}\n", port, up.Addr(), perSecond, burst)
	dir := filepath.Join(t.TempDir(), "handover")
	begin := time.Now()
	old := newAgentProcess(t, corefile, []string{"KUBERNETES_SERVICE_HOST=127.0.0.1"}, "-handover-dir", dir) // it does not end by itself
	old.AwaitLog("msg=serving")
	askUnique(t, port)
	sendsMore := func(what string, n int) {
		t.Helper()
		n += up.Count()
		old.Await(what, func() bool { return up.Count() >= n })
		if most := burst + perSecond*time.Since(begin).Seconds(); float64(up.Count()) > most {
			t.Errorf("%s: %d queries were sent, want at most %.0f", what, up.Count(), most)
		}
	}
	sendsMore("the agent to use its burst", burst+perSecond/2)
	next := startAgentProcess(t, corefile, "-handover-dir", dir)
	sendsMore("the successor to send", 2*perSecond)
	next.end()
	old.AwaitLog("serving again")
	sendsMore("the agent to send again", 2*perSecond)
}

// askUnique asks an agent for a new name every few milliseconds until the test ends, and ignores the replies.
func askUnique(t *testing.T, port uint16) {
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port))
	check.NoError(t, err)
	end, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(end)
		<-ended
		_ = conn.Close()
	})
	go func() {
		defer close(ended)
		asked := &dns.Conn{Conn: conn}
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
				_ = asked.WriteMsg(new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
			}
		}
	}()
}
