// These tests use rule, write and askedOf, which are not exported.

package resolver

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// plainLog logs by rule, as lines of text.
func plainLog(out io.Writer, rule LogRule) *QueryLog {
	rule.Success, rule.Denial, rule.Error = true, true, true
	logger := slog.New(slog.NewTextHandler(out, nil))
	if rule.Aggregate != nil {
		rule.Aggregate.Logger = logger
	}
	return &QueryLog{Logger: logger, Rules: []LogRule{rule}}
}

// send logs a finished query for name.
func (l *QueryLog) send(t *testing.T, name string, latency time.Duration, rt *Routes) {
	t.Helper()
	x, msg := askedOf(t, func(q *dns.Msg) { q.Question[0].Name = name }, address)
	x.Latency, x.routes = latency, rt
	if r := l.rule(x); r != nil {
		l.write(r, x, msg)
	}
}

// TestLogChoice: which queries have a line, by slow and sample.
func TestLogChoice(t *testing.T) {
	const n = 2000
	for name, c := range map[string]struct {
		rule              LogRule
		fast, slow        [2]int // least and most lines
		fastSays, noField string
	}{
		"all":             {LogRule{}, [2]int{n, n}, [2]int{n, n}, "", "sample="},
		"slow":            {LogRule{Slow: time.Second}, [2]int{0, 0}, [2]int{n, n}, "", "sample="},
		"sample 1":        {LogRule{Sample: 1, Slow: time.Second}, [2]int{n, n}, [2]int{n, n}, "", "sample="},
		"sample 10":       {LogRule{Sample: 10}, [2]int{n / 20, n / 5}, [2]int{n / 20, n / 5}, "sample=10", "x="},
		"sample and slow": {LogRule{Sample: 10, Slow: time.Second}, [2]int{n / 20, n / 5}, [2]int{n, n}, "sample=10", "x="},
	} {
		t.Run(name, func(t *testing.T) {
			for latency, want := range map[time.Duration][2]int{time.Millisecond: c.fast, time.Second: c.slow} {
				var out bytes.Buffer
				log := plainLog(&out, c.rule)
				for range n {
					log.send(t, "a.test.", latency, nil)
				}
				if lines := strings.Count(out.String(), "\n"); lines < want[0] || lines > want[1] {
					t.Errorf("of %d queries of %v %d have a line, want %v", n, latency, lines, want)
				}
				if latency < time.Second && !strings.Contains(out.String(), c.fastSays) || strings.Contains(out.String(), c.noField) {
					t.Errorf("the lines of %v are like %.300q", latency, out.String())
				}
			}
		})
	}
}

// lines are what a log has written. It is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns the lines since the last call, without time and level.
func (l *lines) take() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(regexp.MustCompile(`time=\S+ level=INFO `).ReplaceAllString(l.text.String(), "")) {
		list = append(list, strings.TrimSpace(line))
	}
	l.text.Reset()
	return list
}

// TestAggregate: queries are counted by workload, name and rcode, and logged after the interval.
func TestAggregate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		log := plainLog(&out, LogRule{Slow: time.Second, Aggregate: &Aggregate{Interval: time.Minute}})
		rt := NewRoutes(nil, NewStats())
		rt.Owners = clients.New(clients.Options{})
		rt.Owners.SetPod(netip.MustParseAddr("192.0.2.7"), clients.Pod{Namespace: "shop", Name: "web-1", UID: "u", Workload: clients.Workload{Kind: "Deployment", Name: "web"}})
		told := func() []string {
			synctest.Wait()
			return out.take()
		}
		check := func(step string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, told()); diff != "" {
				t.Errorf("%s: %s", step, diff)
			}
		}
		for range 3 {
			log.send(t, "a.test.", 0, rt)
		}
		log.send(t, "b.test.", 0, rt)
		check("within the interval")
		time.Sleep(time.Minute)
		const line = `msg=queries namespace=shop workload=Deployment/web qname=%s rcode=NOERROR queries=%d interval=1m0s`
		check("after it", fmt.Sprintf(line, "a.test.", 3), fmt.Sprintf(line, "b.test.", 1))
		time.Sleep(time.Hour)
		check("without queries")
		log.send(t, "slow.test.", time.Second, rt)
		if lines := told(); len(lines) != 1 || !strings.Contains(lines[0], "qname=slow.test.") || strings.Contains(lines[0], "queries=") {
			t.Errorf("a slow query: %q", lines)
		}
		for i := range maxAggregated + 7 {
			log.send(t, fmt.Sprintf("n%d.test.", i), 0, rt)
		}
		log.send(t, "n0.test.", 0, rt)
		time.Sleep(time.Minute)
		lines := told()
		if len(lines) != maxAggregated+1 || lines[0] != fmt.Sprintf(line, "n0.test.", 2) || lines[maxAggregated] != `msg=queries namespace="" workload="" qname=(other) rcode="" queries=7 interval=1m0s` {
			t.Errorf("beyond the bound: %d lines, from %s to %s", len(lines), lines[0], lines[len(lines)-1])
		}
		log.send(t, "c.test.", 0, rt)
		log.Stop()
		check("the end", fmt.Sprintf(line, "c.test.", 1))
		log.send(t, "d.test.", 0, rt)
		log.Stop()
		(*QueryLog)(nil).Stop()
		time.Sleep(time.Hour)
		check("afterwards")
	})
}

// TestAggregateNoReply: queries without a reply have no rcode.
func TestAggregateNoReply(t *testing.T) {
	var out bytes.Buffer
	a := &Aggregate{Interval: time.Hour, Logger: slog.New(slog.NewTextHandler(&out, nil))}
	x, _ := askedOf(t, func(*dns.Msg) {}, func(r *wire.Reply) { r.Fail(wire.Refused) })
	a.add(x, false)
	a.Stop()
	if text := out.String(); !strings.Contains(text, `rcode="" queries=1`) {
		t.Error(text)
	}
}
