// These tests use reload and current, which are not exported.

package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
)

// heldUpstream answers queries for held.test when it is told to, and others after a while.
type heldUpstream struct{ held chan *fakedns.Query }

func (u *heldUpstream) answer(q *fakedns.Query) {
	if q.Question[0].Name == "held.test." {
		u.held <- q
		return
	}
	q.ReplyAfter(5*time.Millisecond, fakedns.Address(q.Msg, 60, "192.0.2.1"))
}

// askOverGRPC asks for the A records of name.
func askOverGRPC(c *grpcpeer.Client, name string) error {
	packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), agenttest.Timeout)
	defer cancel()
	reply, err := c.Query(ctx, packet)
	if err != nil {
		return err
	}
	m := new(dns.Msg)
	if err := m.Unpack(reply); err != nil {
		return err
	}
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return fmt.Errorf("not the answer: %v", m)
	}
	return nil
}

// TestReloadGRPCTLS: a reload adds TLS to a block over gRPC, and takes it out. From then on new connections have to use the
// new form; a query on its way is answered over its old connection, which ends then; another block loses no query.
func TestReloadGRPCTLS(t *testing.T) {
	p := peer.Ports(t, 2)
	authority := ca.ForTest(t)
	cert, key := authority.ServerFiles(t, t.TempDir(), "a server", time.Now().Add(time.Hour))
	up := &heldUpstream{make(chan *fakedns.Query)}
	upstream := fakedns.Start(t, up.answer).Addr()
	corefile := func(secure bool) string {
		directive := ""
		if secure {
			directive = fmt.Sprintf(" tls %s %s\n", cert, key)
		}
		const answers = " bind 127.0.0.1\n hosts {\n  192.0.2.9 here.test\n  fallthrough\n }\n"
		return fmt.Sprintf("grpc://.:%d {\n%s%s forward . %s\n}\n.:%d {\n%s cache 30\n forward . %s\n}\n", p[0], answers, directive, upstream, p[1], answers, upstream)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p[0])
	dial := func(secure bool) *grpcpeer.Client {
		if secure {
			return grpcpeer.Dial(t, at, &tls.Config{RootCAs: authority.Pool()})
		}
		return grpcpeer.Dial(t, at, nil)
	}
	l := lookedAt(t, corefile(false))
	var asked, bad atomic.Int64
	done := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() { askOn(t, fmt.Sprintf("127.0.0.1:%d", p[1]), i, &asked, &bad, done) })
	}
	for i := range 4 {
		secure := i%2 == 1 // before the reload
		before := dial(secure)
		waits := make(chan error, 1)
		go func() { waits <- askOverGRPC(before, "held.test.") }()
		held := <-up.held
		agenttest.WriteFile(t, l.conf, corefile(!secure))
		if !l.look() {
			t.Fatalf("reload %d was refused:\n%s", i, l.log)
		}
		if err := askOverGRPC(dial(!secure), "here.test."); err != nil {
			t.Errorf("reload %d, in the new form: %v", i, err)
		}
		if err := askOverGRPC(dial(secure), "here.test."); err == nil {
			t.Errorf("reload %d: a new connection in the old form is answered", i)
		}
		held.Reply(fakedns.Address(held.Msg, 60, "192.0.2.1"))
		if err := <-waits; err != nil {
			t.Errorf("reload %d, the query on its way: %v", i, err)
		}
		poll.Until(t, "the old connection to end", func() bool { return askOverGRPC(before, "here.test.") != nil })
	}
	close(done)
	clients.Wait()
	if n := bad.Load(); n > 0 || asked.Load() == 0 {
		t.Errorf("%d of %d queries of the other block were not answered:\n%s", n, asked.Load(), l.log)
	}
}

// TestReloadWithoutCertificate: a reload that takes the certificate away from a block that needs one is refused, and the
// block goes on with it.
func TestReloadWithoutCertificate(t *testing.T) {
	authority := ca.ForTest(t)
	cert, key := authority.ServerFiles(t, t.TempDir(), "a server", time.Now().Add(time.Hour))
	for _, scheme := range []string{"tls", "https", "quic", "https3"} {
		p := peer.Ports(t, 1)
		corefile := fmt.Sprintf("%s://.:%d {\n bind 127.0.0.1\n tls %s %s\n hosts {\n  192.0.2.9 here.test\n }\n}\n", scheme, p[0], cert, key)
		l := lookedAt(t, corefile)
		agenttest.WriteFile(t, l.conf, strings.Replace(corefile, " tls ", " # ", 1))
		if l.look() || !strings.Contains(l.log.String(), "needs a certificate") {
			t.Errorf("%s: the reload was not refused:\n%s", scheme, l.log)
		}
	}
}
