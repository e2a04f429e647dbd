// Inside the package: the tests start a probe and set the budget of hedges.

package upstream

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestSecureTargets: TLS, HTTPS and QUIC targets are asked as configured, and verified by the
// right name.
func TestSecureTargets(t *testing.T) {
	a := newAuthority(t)
	dot := startFakeTLS(t, a.server("dns.test"), answerOK)
	numbered := startFakeTLS(t, a.server("127.0.0.1"), answerOK)
	doq := startFakeQUIC(t, a.server("dns.test"), nil, answerOK)
	numberedDoQ := startFakeQUIC(t, a.server("127.0.0.1"), nil, answerOK)
	doh := startDoHServer(t, a, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/dns-query" && r.URL.Path != "/q" {
			http.NotFound(w, r)
			return
		}
		answerDoH(w, r)
	})
	for _, tt := range []struct {
		name   string
		target config.Target
		server string // tls_servername
		want   string // of the error
	}{
		{"a name in the target", config.Target{Transport: config.DNSOverTLS, Addr: dot.addr, ServerName: "dns.test"}, "", ""},
		{"tls_servername", config.Target{Transport: config.DNSOverTLS, Addr: dot.addr}, "dns.test", ""},
		{"the address", config.Target{Transport: config.DNSOverTLS, Addr: numbered.addr}, "", ""},
		{"no name", config.Target{Transport: config.DNSOverTLS, Addr: dot.addr}, "", "127.0.0.1"},
		{"another name", config.Target{Transport: config.DNSOverTLS, Addr: dot.addr, ServerName: "other.test"}, "", "other.test"},
		{"QUIC, a name in the target", config.Target{Transport: config.DNSOverQUIC, Addr: doq.addr, ServerName: "dns.test"}, "", ""},
		{"QUIC, tls_servername", config.Target{Transport: config.DNSOverQUIC, Addr: doq.addr}, "dns.test", ""},
		{"QUIC, the address", config.Target{Transport: config.DNSOverQUIC, Addr: numberedDoQ.addr}, "", ""},
		{"QUIC, no name", config.Target{Transport: config.DNSOverQUIC, Addr: doq.addr}, "", "127.0.0.1"},
		{"QUIC, another name", config.Target{Transport: config.DNSOverQUIC, Addr: doq.addr, ServerName: "other.test"}, "", "other.test"},
		{"HTTPS", config.Target{Transport: config.DNSOverHTTPS, Addr: doh.addr()}, "dns.test", ""},
		{"HTTPS with a path", config.Target{Transport: config.DNSOverHTTPS, Addr: doh.addr(), Path: "/q", ServerName: "dns.test"}, "", ""},
		{"HTTPS with another path", config.Target{Transport: config.DNSOverHTTPS, Addr: doh.addr(), Path: "/x"}, "dns.test", "404"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := longTimeout()
			cfg.TLS, cfg.ServerName, cfg.To = &config.TLSClient{CA: a.file}, tt.server, []config.Target{tt.target}
			p := New(cfg, Options{Deadline: 30 * time.Second, ProbeTimeout: 20 * time.Second})
			t.Cleanup(func() { p.Close() })
			p.hedgeBudget.credit.Store(-1 << 40)
			for _, overTCP := range []bool{false, true} {
				answer, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP)
				switch {
				case tt.want == "" && (err != nil || answer.Answers != 1):
					t.Errorf("%d answers, error %v", answer.Answers, err)
				case tt.want != "" && (!errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("error %v, want one that says %s", err, tt.want)
				}
			}
			if tt.want != "" {
				return
			}
			s := p.servers()[0]
			s.consecutiveProbeFailures.Store(9)
			p.startProbe(s)
			eventually(t, "a probe is answered", func() bool { return s.consecutiveProbeFailures.Load() == 0 })
			st := p.Stats().Servers[0]
			used := map[config.Transport]Reuse{config.DNSOverTLS: st.TLS, config.DNSOverQUIC: st.QUIC, config.DNSOverHTTPS: st.TCP}[tt.target.Transport]
			if all := st.UDP.Misses + st.TCP.Misses + st.TLS.Misses + st.QUIC.Misses; used.Misses == 0 || all != used.Misses || st.RTT == 0 {
				t.Errorf("connections over UDP %+v, TCP %+v, TLS %+v, QUIC %+v, RTT %v", st.UDP, st.TCP, st.TLS, st.QUIC, st.RTT)
			}
		})
	}
}

// TestFrozen: a server that freezes behind TLS or QUIC is avoided like one over UDP.
func TestFrozen(t *testing.T) {
	a := newAuthority(t)
	for via, start := range map[config.Transport]func() *fake{
		config.DNSOverTLS:  func() *fake { return startFakeTLS(t, a.server("127.0.0.1"), answerOK) },
		config.DNSOverQUIC: func() *fake { return startFakeQUIC(t, a.server("127.0.0.1"), nil, answerOK) },
	} {
		t.Run(via.String(), func(t *testing.T) { testFrozen(t, a, via, start(), start()) })
	}
}

func testFrozen(t *testing.T, a *authority, via config.Transport, x, y *fake) {
	cfg := longTimeout()
	cfg.TLS, cfg.MaxFails = &config.TLSClient{CA: a.file}, 0
	for _, f := range []*fake{x, y} {
		cfg.To = append(cfg.To, config.Target{Transport: via, Addr: f.addr})
	}
	p := newHedgingPool(t, cfg)
	for i := range 20 {
		mustExchange(t, p, i)
	}
	before := queriesReceived(x)
	x.setScript(ignore)
	for i := range 200 {
		mustExchange(t, p, 20+i)
	}
	// Stalled connections are closed and their queries sent again, so each query may be
	// received maxResends times more.
	if n, most := queriesReceived(x)-before, (1+maxStreamResends)*(suspectAfterUnanswered+1+maxHedgeBurst+220/queriesPerHedge); n > most {
		t.Errorf("%d of 200 queries were asked of the server that is frozen, want %d at most", n, most)
	}
	eventually(t, "it answers a scout, and is trusted", func() bool {
		x.setScript(answerOK)
		p.nextShadow.Store(0)
		mustExchange(t, p, int(time.Now().UnixNano()))
		return !p.Stats().Servers[0].Suspected
	})
}
