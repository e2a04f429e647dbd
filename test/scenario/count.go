package scenario

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/scrape"
)

// expectUpstream waits until an upstream has got so many queries.
type expectUpstream struct {
	name  string
	qname string // "*" is any
	qtype uint16 // 0 is any
	over  string // "" is any
	count countRange
}

func (p *parser) expectUpstream(w *tokens) {
	e := &expectUpstream{name: p.use(w), qname: "*", count: countRange{-1, -1}}
	if w.more() && w.list[0] != "over" && w.list[0] != "count" && !w.accept("*") {
		e.qname = strings.ToLower(w.name("name"))
	}
	if w.more() && w.list[0] != "over" && w.list[0] != "count" && !w.accept("*") {
		e.qtype = w.qtype()
	}
	w.options(map[string]func(){
		"over":  func() { e.over = w.transport() },
		"count": func() { e.count = w.countRange("count") },
	})
	if e.count.least < 0 {
		w.fail("the count is missing")
	}
	p.add(e)
}

func (e *expectUpstream) run(ctx context.Context, st *run) error {
	s := st.servers[e.name]
	return st.waitFor(ctx, func() error {
		n := s.count(func(q fakedns.Record) bool {
			return (e.qname == "*" || e.qname == q.Name) && (e.qtype == 0 || e.qtype == q.Type) && (e.over == "" || e.over == q.Transport)
		})
		if e.count.has(n) {
			return nil
		}
		return fmt.Errorf("upstream %s got %d queries of that kind, want %s; it got: %s", e.name, n, e.count, s.list())
	})
}

// maxListed is how many queries an error lists.
const maxListed = 20

func (s *server) list() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, q := range s.seen[:min(len(s.seen), maxListed)] {
		fmt.Fprintf(&b, "%s %s over %s; ", q.Name, dns.Type(q.Type), q.Transport)
	}
	return b.String() + strconv.Itoa(len(s.seen)) + " in all"
}

// expectConnections waits until an upstream has so many connections.
type expectConnections struct {
	name  string
	count countRange
}

func (p *parser) expectConnections(w *tokens) {
	e := &expectConnections{name: p.use(w)}
	if !w.accept("count") {
		w.fail("the count is missing")
	}
	e.count = w.countRange("count")
	p.add(e)
}

func (e *expectConnections) run(ctx context.Context, st *run) error {
	return st.waitFor(ctx, func() error {
		if n := st.servers[e.name].dns.Conns(); !e.count.has(n) {
			return fmt.Errorf("upstream %s has %d connections, want %s", e.name, n, e.count)
		}
		return nil
	})
}

// expectMetric waits until the sum of a metric's samples that have the labels is as it
// should be.
type expectMetric struct {
	name   string
	labels []string // as `name="value"`
	count  countRange
}

func (p *parser) expectMetric(w *tokens) {
	e := new(expectMetric)
	name, labels, labelled := strings.Cut(w.next("a metric"), "{")
	e.name = name
	if labelled {
		labels, closed := strings.CutSuffix(labels, "}")
		for l := range strings.SplitSeq(labels, ",") {
			if !strings.Contains(l, `="`) || !strings.HasSuffix(l, `"`) || !closed {
				w.fail("%q is no label", l)
			}
			e.labels = append(e.labels, l)
		}
	}
	e.count = w.countRange("number")
	p.add(e)
}

func (e *expectMetric) run(ctx context.Context, st *run) error {
	labels := make([]string, len(e.labels))
	for i, l := range e.labels {
		var err error
		if labels[i], err = st.replace(l); err != nil {
			return err
		}
	}
	return st.waitFor(ctx, func() error {
		text, err := st.agent.Metrics()
		if err != nil {
			return fmt.Errorf("reading the metrics: %w", err)
		}
		m, err := scrape.Parse(text)
		if err != nil {
			return err
		}
		sum := m.Sum(e.name, labels...)
		if sum != float64(int(sum)) || !e.count.has(int(sum)) {
			samples := regexp.MustCompile("(?m)^"+e.name+"[ {].*$").FindAllString(text, -1)
			return fmt.Errorf("%s with %v is %v in sum, want %s; its samples are:\n%s", e.name, labels, sum, e.count, strings.Join(samples, "\n"))
		}
		return nil
	})
}
