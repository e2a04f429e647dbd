// Inside the package: the tests start probes and read their counters.

package upstream

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/testlog"
)

// fastProbes returns a directive with a short read timeout.
func fastProbes(to ...*fake) *config.Forward {
	cfg := forwardTo(to...)
	cfg.ReadTimeout = 250 * time.Millisecond
	return cfg
}

func (f *fake) setScript(s script) { f.script.Store(&s) }

func isDown(p *Pool, i int) func() bool {
	return func() bool { return p.Stats().Servers[i].Down }
}

func TestOneOfTwoDown(t *testing.T) {
	dead := startFake(t, ignore)
	var early atomic.Int32 // queries to the dead server by the time the other one gets its first
	var first sync.Once
	alive := startFake(t, func(r request) {
		first.Do(func() { early.Store(int32(queriesReceived(dead))) })
		answerOK(r)
	})
	p := newPool(t, fastProbes(dead, alive))
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
		t.Fatalf("with the second server alive: %v", err)
	}
	if n := early.Load(); n != 1 {
		t.Errorf("the dead server was asked %d times before the second one, want 1", n)
	}
	eventually(t, "the dead server is down", isDown(p, 0))
	before := queriesReceived(dead)
	for range 5 {
		mustAnswer(t, p, "example.org.")
	}
	count(t, queriesReceived(dead)-before, 0, "queries went to the server that is down")
	s := p.Stats()
	if s.Servers[0].HealthcheckFailures < 3 {
		t.Errorf("%d failed probes counted, want at least the 3 that make it down", s.Servers[0].HealthcheckFailures)
	}
	if s.HealthcheckBroken != 0 {
		t.Errorf("healthcheck_broken is %d with one server alive", s.HealthcheckBroken)
	}
	dead.setScript(answerOK)
	eventually(t, "the server is back", func() bool { return !isDown(p, 0)() })
	mustAnswer(t, p, "example.org.")
	count(t, queriesReceived(dead)-before, 1, "queries went to the server that is back")
}

// queriesReceived counts the queries without probes.
func queriesReceived(f *fake) int {
	n := 0
	for _, r := range f.requests() {
		if r.Question[0].Name != "." {
			n++
		}
	}
	return n
}

func TestAllDownThenRecover(t *testing.T) {
	a, b := startFake(t, ignore), startFake(t, ignore)
	var log testlog.Buffer
	p := New(fastProbes(a, b), Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), ProbeTimeout: 50 * time.Millisecond, Deadline: 30 * time.Second,
	})
	defer p.Close()
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrTimeout) {
		t.Fatalf("with both servers silent: %v, want ErrTimeout", err)
	}
	eventually(t, "both are down", func() bool { return isDown(p, 0)() && isDown(p, 1)() })
	before := queriesReceived(a) + queriesReceived(b)
	broken := p.Stats().HealthcheckBroken
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrTimeout) {
		t.Errorf("with both down: %v, want ErrTimeout", err)
	}
	if n := queriesReceived(a) + queriesReceived(b) - before; n < 1 || n > 2 {
		t.Errorf("with both down %d servers were tried, want one at random and perhaps the other when that is late", n)
	}
	if n := p.Stats().HealthcheckBroken - broken; n != 1 {
		t.Errorf("healthcheck_broken went up by %d, want 1", n)
	}
	a.setScript(answerOK)
	b.setScript(answerOK)
	eventually(t, "both are back", func() bool { return !isDown(p, 0)() && !isDown(p, 1)() })
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); err != nil {
		t.Errorf("with both back: %v", err)
	}
	p.Close()
	for _, line := range []string{"upstream is down", "upstream answers again"} {
		if n := strings.Count(log.String(), line); n != 2 {
			t.Errorf("%q is logged %d times, want once per server:\n%s", line, n, log.String())
		}
	}
}

func TestFailfast(t *testing.T) {
	f := startFake(t, ignore)
	cfg := fastProbes(f)
	cfg.FailfastAllUnhealthy = true
	p := newPool(t, cfg)
	p.Exchange(t.Context(), question(t, "example.org."), false)
	eventually(t, "the server is down", isDown(p, 0))
	before := queriesReceived(f)
	if _, err := p.Exchange(t.Context(), question(t, "example.org."), false); !errors.Is(err, ErrNoUpstream) {
		t.Errorf("with all down: %v, want ErrNoUpstream", err)
	}
	count(t, queriesReceived(f)-before, 0, "queries were sent")
}

func TestMaxFailsZero(t *testing.T) {
	f := startFake(t, ignore)
	cfg := fastProbes(f)
	cfg.MaxFails = 0
	cfg.ReadTimeout = 5 * time.Millisecond
	p := newPool(t, cfg)
	for range 5 {
		p.Exchange(t.Context(), question(t, "example.org."), false)
	}
	if p.servers()[0].probing.Load() || p.servers()[0].probeFailures.Load() != 0 || isDown(p, 0)() {
		t.Error("max_fails 0 probed, or took the server out of service")
	}
	if n := queriesReceived(f); n != len(f.requests()) {
		t.Errorf("%d probes were sent", len(f.requests())-n)
	}
}

func TestProbe(t *testing.T) {
	tests := []struct {
		name   string
		option func(*config.Forward)
		want   dns.Question
		rd     bool
		over   string
	}{
		{"by default", func(*config.Forward) {}, dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, true, "udp"},
		{"no_rec", func(f *config.Forward) { f.HealthNoRec = true }, dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, false, "udp"},
		{"domain", func(f *config.Forward) { f.HealthDomain = "\x07example\x03org\x00" }, dns.Question{Name: "example.org.", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, true, "udp"},
		{"no domain at all", func(f *config.Forward) { f.HealthDomain = "" }, dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, true, "udp"},
		{"force_tcp", func(f *config.Forward) { f.ForceTCP = true }, dns.Question{Name: ".", Qtype: dns.TypeNS, Qclass: dns.ClassINET}, true, "tcp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t, answerOK)
			cfg := forwardTo(f)
			tt.option(cfg)
			p := New(cfg, Options{ProbeTimeout: time.Minute}) // the first probe must be answered
			defer p.Close()
			p.startProbe(p.servers()[0])
			eventually(t, "the probe is over", func() bool {
				return len(f.requests()) == 1 && !p.servers()[0].probing.Load()
			})
			got := f.requests()[0]
			if got.Question[0] != tt.want || got.RecursionDesired != tt.rd || got.over != tt.over || got.IsEdns0() != nil {
				t.Errorf("the probe is %v over %s; want %v, RD %t, over %s, no OPT", got.Msg, got.over, tt.want, tt.rd, tt.over)
			}
			count(t, p.Stats().Servers[0].HealthcheckFailures, 0, "failures counted for a probe that was answered")
		})
	}
}

func TestProbeTakesAnyReply(t *testing.T) {
	tests := []struct {
		name   string
		script script
	}{
		{"REFUSED", func(r request) { r.send(r.headerOnly(dns.RcodeRefused)) }},
		{"an empty header", func(r request) { r.send(r.headerOnly(dns.RcodeSuccess)) }},
		{"SERVFAIL", func(r request) { r.reply(r.rcode(dns.RcodeServerFailure)) }},
		{"a broken answer", func(r request) {
			b := r.pack(r.answer(1))
			r.send(b[:len(b)-3])
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t, tt.script)
			p := newPool(t, forwardTo(f))
			p.servers()[0].consecutiveProbeFailures.Store(7)
			p.startProbe(p.servers()[0])
			eventually(t, "the server is back", func() bool { return !isDown(p, 0)() })
		})
	}
}

// silentTransport never gets a reply.
type silentTransport struct{ asked atomic.Int32 }

func (d *silentTransport) start(*query)                 { d.asked.Add(1) }
func (d *silentTransport) cancel(*query) bool           { return true }
func (d *silentTransport) closeIdle(time.Time)          {}
func (d *silentTransport) close()                       {}
func (d *silentTransport) reuse() (hits, misses uint64) { return 0, 0 }

// TestOneProbeAtATime: at most one probe per server runs, however many queries fail.
func TestOneProbeAtATime(t *testing.T) {
	p := New(forwardTo(startFake(t, ignore)), Options{})
	var d silentTransport
	p.servers()[0].probes = &d
	for range 10 {
		p.startProbe(p.servers()[0])
	}
	p.Close() // afterwards every started probe has sent one query
	count(t, d.asked.Load(), 1, "probes were under way")
}

// TestProbeIgnoresOthersID: a message that does not match the probe is ignored.
func TestProbeIgnoresOthersID(t *testing.T) {
	f := startFake(t, func(r request) {
		m := r.answer(1)
		m.Id++
		r.reply(m)
	})
	p := newPool(t, forwardTo(f))
	p.startProbe(p.servers()[0])
	eventually(t, "a probe has failed", func() bool { return p.Stats().Servers[0].HealthcheckFailures > 0 })
	eventually(t, "the reply with another ID is counted", func() bool { return p.Stats().Servers[0].UnexpectedReplies > 0 })
}
