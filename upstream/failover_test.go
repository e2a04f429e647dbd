// Inside the package: a test starts a probe.

package upstream

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// answerRcode is a script that answers every query with rcode.
func answerRcode(rcode int) script { return func(r request) { r.reply(r.rcode(rcode)) } }

// exchangeAll sends one query and returns its rcode and how often each fake was asked.
func exchangeAll(t *testing.T, p *Pool, fakes ...*fake) (rcode wire.Rcode, times []int) {
	t.Helper()
	answer := mustExchange(t, p, 0)
	for _, f := range fakes {
		times = append(times, queriesReceived(f))
	}
	return answer.Rcode, times
}

func TestFailover(t *testing.T) {
	servfail, refused, good := answerRcode(dns.RcodeServerFailure), answerRcode(dns.RcodeRefused), script(answerOK)
	for _, tt := range []struct {
		name    string
		on      []wire.Rcode
		scripts []script
		want    wire.Rcode
		times   []int
	}{
		{"none is asked for", nil, []script{servfail, good}, wire.ServFail, []int{1, 0}},
		{"to the next", []wire.Rcode{wire.ServFail}, []script{servfail, good}, wire.NoError, []int{1, 1}},
		{"not for another rcode", []wire.Rcode{wire.ServFail}, []script{refused, good}, wire.Refused, []int{1, 0}},
		{"over two", []wire.Rcode{wire.ServFail, wire.Refused}, []script{servfail, refused, good}, wire.NoError, []int{1, 1, 1}},
		{"all fail: the last one's answer, and each was asked once", []wire.Rcode{wire.ServFail, wire.Refused}, []script{servfail, refused}, wire.Refused, []int{1, 1}},
		{"the only one", []wire.Rcode{wire.ServFail}, []script{servfail}, wire.ServFail, []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var fakes []*fake
			for _, s := range tt.scripts {
				fakes = append(fakes, startFake(t, s))
			}
			cfg := longTimeout(fakes...)
			cfg.Failover = tt.on
			rcode, times := exchangeAll(t, newPool(t, cfg), fakes...)
			if rcode != tt.want || !equalInts(times, tt.times) {
				t.Errorf("the answer is %s after %v queries, want %s after %v", rcode, times, tt.want, tt.times)
			}
		})
	}
}

// TestFailoverLate: a server that has failed over is not asked again while the next one is
// late, and its reply does not end the exchange.
func TestFailoverLate(t *testing.T) {
	bad := startFake(t, answerRcode(dns.RcodeServerFailure))
	late := startFake(t, func(r request) {
		time.AfterFunc(20*defaultHedgeDelay, func() { r.reply(r.answer(1)) })
	})
	cfg := longTimeout(bad, late)
	cfg.Failover, cfg.Policy = []wire.Rcode{wire.ServFail}, config.PolicySequential
	p := newPool(t, cfg)
	p.hedgeBudget = newHedgeBudgets()
	rcode, times := exchangeAll(t, p, bad, late)
	if rcode != wire.NoError || times[0] != 1 {
		t.Errorf("the answer is %s after %v queries, want NOERROR after one to the first server", rcode, times)
	}
}

func equalInts(a, b []int) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestNextOnRcode(t *testing.T) {
	nodata := func(r request) { r.reply(r.answer(0)) }
	other := wire.Name("\x05other\x00")
	for _, tt := range []struct {
		name  string
		first script
		on    []wire.Rcode
		empty bool
		from  wire.Name // of the second forward; the third covers all names
		want  wire.Rcode
		times []int
	}{
		{"an answer", answerOK, []wire.Rcode{wire.NXDomain}, true, wire.Root, wire.NoError, []int{1, 0, 0}},
		{"no option", answerRcode(dns.RcodeNameError), nil, false, wire.Root, wire.NXDomain, []int{1, 0, 0}},
		{"its rcode", answerRcode(dns.RcodeNameError), []wire.Rcode{wire.NXDomain}, false, wire.Root, wire.Refused, []int{1, 1, 0}},
		{"another rcode", answerRcode(dns.RcodeNameError), []wire.Rcode{wire.ServFail}, true, wire.Root, wire.NXDomain, []int{1, 0, 0}},
		{"no data", nodata, nil, true, wire.Root, wire.Refused, []int{1, 1, 0}},
		{"no data and only rcodes", nodata, []wire.Rcode{wire.NXDomain}, false, wire.Root, wire.NoError, []int{1, 0, 0}},
		{"over one that doesn't take the name", answerRcode(dns.RcodeNameError), []wire.Rcode{wire.NXDomain}, false, other, wire.NotImp, []int{1, 0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fakes := []*fake{startFake(t, tt.first), startFake(t, answerRcode(dns.RcodeRefused)), startFake(t, func(r request) {
				r.reply(r.rcode(dns.RcodeNotImplemented).SetEdns0(1232, false))
			})}
			var pools []*Pool
			for i, f := range fakes {
				cfg := longTimeout(f)
				if i == 0 {
					cfg.NextOn, cfg.NextOnNodata = tt.on, tt.empty
				}
				if i == 1 {
					cfg.From = tt.from
				}
				pools = append(pools, newPool(t, cfg))
			}
			rcode, times := exchangeAll(t, Chain(pools)[0], fakes...)
			if rcode != tt.want || !equalInts(times, tt.times) {
				t.Errorf("the answer is %s after %v queries, want %s after %v", rcode, times, tt.want, tt.times)
			}
		})
	}
	f := startFake(t, answerRcode(dns.RcodeNameError))
	cfg := longTimeout(f)
	cfg.NextOn = []wire.Rcode{wire.NXDomain}
	if rcode, _ := exchangeAll(t, Chain([]*Pool{newPool(t, cfg)})[0], f); rcode != wire.NXDomain {
		t.Errorf("without a next forward the answer is %s", rcode)
	}
}

func TestMaxConnectAttempts(t *testing.T) {
	for _, tt := range []struct{ set, want int }{{0, 4}, {1, 1}, {3, 3}, {-1, maxAttempts}} {
		a, b := startFake(t, nil), startFake(t, nil)
		garbage := func(r request) { // the right question, then garbage
			m := r.pack(r.answer(1))
			r.send(m[:len(m)-3])
		}
		a.setScript(garbage)
		b.setScript(garbage)
		cfg := longTimeout(a, b)
		cfg.MaxConnectAttempts, cfg.MaxFails = tt.set, 0
		p := newPool(t, cfg)
		_, err := p.Exchange(t.Context(), question(t, "example.org."), true)
		if n := queriesReceived(a) + queriesReceived(b); !errors.Is(err, ErrFailed) || n != tt.want {
			t.Errorf("max_connect_attempts %d: %d attempts, error %v; want %d", tt.set, n, err, tt.want)
		}
	}
}

func TestSourceAddress(t *testing.T) {
	f := startFake(t, answerOK)
	cfg := longTimeout(f)
	cfg.SourceAddress = netip.MustParseAddr("127.0.0.9")
	p := newPool(t, cfg)
	for _, overTCP := range []bool{false, true} {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Fatal(err)
		}
	}
	p.startProbe(p.servers()[0])
	eventually(t, "a probe has come", func() bool { return len(f.requests()) == 3 })
	for _, r := range f.requests() {
		if r.from.Addr() != cfg.SourceAddress {
			t.Errorf("a query over %s came from %s", r.over, r.from)
		}
	}
}

// TestBrokenTLSConfig: an upstream with an unusable TLS configuration fails with the
// reason, and other upstreams still answer.
func TestBrokenTLSConfig(t *testing.T) {
	f := startFake(t, answerOK)
	cfg := longTimeout()
	cfg.TLS = &config.TLSClient{CA: t.TempDir() + "/gone.pem"}
	cfg.To = []config.Target{{Transport: config.DNSOverTLS, Addr: f.addr}}
	p := newPool(t, cfg)
	_, err := p.Exchange(t.Context(), question(t, "example.org."), false)
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "gone.pem") || !strings.Contains(err.Error(), f.addr.String()) {
		t.Errorf("error %v", err)
	}
	cfg.To = append(cfg.To, config.Target{Addr: f.addr})
	mustExchange(t, newPool(t, cfg), 0)
}
