package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// step is one thing that a scenario does.
type step interface {
	// run does it. It blocks until it is done, or something is found that is not as
	// the scenario says.
	run(ctx context.Context, st *run) error
}

// scenarioStep is a step and its line.
type scenarioStep struct {
	line int
	step
}

// steps adds the statements that do something.
func (p *parser) steps(table map[string]keyword) {
	table["QUERY"] = keyword{queryUsage, p.query}
	table["EXPECT"] = keyword{expectUsage, p.expected}
	table["ADVANCE"] = keyword{"DURATION", func(w *tokens) { p.add(&advance{w.duration("time", maxAdvance)}) }}
	table["FLUSH"] = keyword{"NAME [subtree] [count N]", p.flush}
	table["RELOAD"] = keyword{"[refused TEXT], the lines of the Corefile, and END", p.reload}
	table["EXPECT-UPSTREAM"] = keyword{"NAME [QNAME|*] [TYPE|*] [over TRANSPORT] count N|N..M|N..", p.expectUpstream}
	table["EXPECT-CONNECTIONS"] = keyword{"NAME count N|N..M|N..", p.expectConnections}
	table["EXPECT-METRIC"] = keyword{`NAME[{LABEL="VALUE",…}] N|N..M|N..`, p.expectMetric}
	table["EXPECT-LOG"] = keyword{"TEXT", func(w *tokens) { p.add(&expectLog{p.rest(w, "a text")}) }}
	table["EXPECT-NO-LOG"] = keyword{"TEXT", func(w *tokens) { p.add(&expectNoLog{p.rest(w, "a text")}) }}
	for name, do := range map[string]func(*server) error{
		"SILENCE": func(s *server) error { s.setSilent(true); return nil },
		"REVIVE":  (*server).revive,
		"STOP":    func(s *server) error { s.stop(); return nil },
		"DROP":    func(s *server) error { s.dns.CloseConns(); return nil },
		"RELEASE": func(s *server) error { s.releaseHeld(); return nil },
	} {
		table[name] = keyword{"UPSTREAM…", func(w *tokens) {
			c := &change{do: do}
			for c.names = append(c.names, p.use(w)); w.more(); {
				c.names = append(c.names, p.use(w))
			}
			p.add(c)
		}}
	}
}

// use takes the name of an upstream.
func (p *parser) use(w *tokens) string {
	name := w.next("an upstream")
	p.uses = append(p.uses, use{line: p.line, name: name})
	return name
}

// change makes upstreams behave otherwise.
type change struct {
	names []string
	do    func(*server) error
}

func (c *change) run(_ context.Context, st *run) error {
	for _, name := range c.names {
		if err := c.do(st.servers[name]); err != nil {
			return err
		}
	}
	return nil
}

// revive ends silence, and starts a server that is stopped.
func (s *server) revive() error {
	s.setSilent(false)
	if !s.stopped {
		return nil
	}
	return s.start()
}

// advance moves the agent's clock.
type advance struct{ by time.Duration }

func (a *advance) run(_ context.Context, st *run) error {
	st.agent.Advance(a.by)
	return nil
}

// write puts a file into the folder.
type write struct{ scenarioFile }

func (w *write) run(_ context.Context, st *run) error { return st.write(w.scenarioFile) }

// flush takes names out of the agent's caches.
type flush struct {
	name    string
	subtree bool
	counted bool
	count   countRange
}

func (p *parser) flush(w *tokens) {
	f := &flush{name: w.name("name")}
	w.options(map[string]func(){
		"subtree": func() { f.subtree = true },
		"count":   func() { f.counted, f.count = true, w.countRange("count") },
	})
	p.add(f)
}

func (f *flush) run(_ context.Context, st *run) error {
	n, err := st.agent.Flush(f.name, f.subtree)
	if err != nil {
		return fmt.Errorf("flushing %s: %w", f.name, err)
	}
	if f.counted && !f.count.has(n) {
		return fmt.Errorf("%d entries are flushed, want %s", n, f.count)
	}
	return nil
}

// reload gives the agent another Corefile.
type reload struct {
	text
	refused string // what the error holds; "" for none
}

func (p *parser) reload(w *tokens) {
	r := new(reload)
	if w.accept("refused") {
		r.refused = p.rest(w, "a text of the error")
	}
	w.end()
	r.text = p.body(w)
	p.add(r)
}

func (r *reload) run(ctx context.Context, st *run) error {
	corefile, err := st.fill(r.text)
	if err != nil {
		return err
	}
	return checkRefusal(st.agent.Reload(ctx, corefile), r.refused)
}

// checkRefusal compares the error that came with the text that it must hold, "" for none.
func checkRefusal(err error, want string) error {
	switch {
	case err == nil && want != "":
		return fmt.Errorf("the Corefile is taken, want it refused with %q", want)
	case err != nil && want == "":
		return fmt.Errorf("the Corefile is refused: %w", err)
	case err != nil && !strings.Contains(err.Error(), want):
		return fmt.Errorf("the Corefile is refused with %w; want %q in it", err, want)
	}
	return nil
}

// expectLog waits for a line in the agent's log.
type expectLog struct{ text string }

func (e *expectLog) run(ctx context.Context, st *run) error {
	want, err := st.replace(e.text)
	if err != nil {
		return err
	}
	return st.waitFor(ctx, func() error {
		if log := st.agent.Log(); !strings.Contains(log, want) {
			return fmt.Errorf("the log does not say %q; it says:\n%s", want, log)
		}
		return nil
	})
}

// expectNoLog holds that the agent's log does not say something, now.
type expectNoLog struct{ text string }

func (e *expectNoLog) run(_ context.Context, st *run) error {
	text, err := st.replace(e.text)
	if err != nil {
		return err
	}
	if log := st.agent.Log(); strings.Contains(log, text) {
		return fmt.Errorf("the log says %q:\n%s", text, log)
	}
	return nil
}
