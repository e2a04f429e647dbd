package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/loadgen"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/worst"
)

// victimRate is how many queries a second the victim sends: a round of two seconds has
// twenty that are slower than its p99.
const victimRate = 1000

// attackerAddr is where attacks come from: not the victim's address, so that the agent
// sees two clients. controlAddr is the echo's.
var (
	attackerAddr = netip.AddrFrom4([4]byte{127, 0, 0, 9})
	controlAddr  = netip.AddrFrom4([4]byte{127, 0, 0, 3})
)

// attackResult is what a victim saw beside an attack in one round, and beside the same
// packets sent to the echo.
type attackResult struct{ attack, control victimResult }

// victimResult is what a victim saw: its latencies are sorted. cpu is the agent's CPU
// time, and attacked the number of the attacker's queries.
type victimResult struct {
	loadgen.Result
	cpu      time.Duration
	attacked uint64
}

// lost is how many of the victim's queries got no address.
func (a attackResult) lost() float64 {
	return float64(a.attack.Sent - a.attack.Rcodes[dns.RcodeSuccess])
}

// p50 and p99 are the victim's in units of those beside the control.
func (a attackResult) p50() float64 { return latencyRatio(a.attack, a.control, 0.5) }
func (a attackResult) p99() float64 { return latencyRatio(a.attack, a.control, 0.99) }

func latencyRatio(a, b victimResult, part float64) float64 { return a.micros(part) / b.micros(part) }

// micros is the time within which the part of the answers came, in microseconds; where
// none came at all, the time that the load generator waits for one.
func (v victimResult) micros(part float64) float64 {
	if len(v.Latencies) == 0 {
		return float64(time.Second.Microseconds())
	}
	return float64(percentile(v.Latencies, part).Nanoseconds()) / 1e3
}

// perQuery is the agent's CPU time for one of the attacker's queries in microseconds:
// what it spent more than beside the control. It is 0 where no queries were sent.
func (a attackResult) perQuery() float64 {
	if a.attack.attacked == 0 {
		return 0
	}
	return float64((a.attack.cpu - a.control.cpu).Nanoseconds()) / 1e3 / float64(a.attack.attacked)
}

func (a attackResult) String() string {
	return fmt.Sprintf("p50 %.0f µs (%.2f), p99 %.0f µs (%.2f), %.0f lost, %.0f µs of CPU for each of the attacker's queries",
		a.attack.micros(0.5), a.p50(), a.attack.micros(0.99), a.p99(), a.lost(), a.perQuery())
}

// attackServers are the rows.
var attackServers = []server{{name: "nodens", program: "nodens", conf: "worst"}}

// attackRun attacks an agent.
type attackRun struct {
	*Run
	out *attackReport
}

// attackReport is its result.
type attackReport struct {
	*report
	results map[cell][]attackResult
}

// measureAttacks measures what a victim sees beside the dearest queries. Nothing that it
// started runs when it returns.
func measureAttacks(ctx context.Context, p plan) (*attackReport, error) {
	b, err := New(p, p.withBefore(attackServers))
	if err != nil {
		return nil, err
	}
	defer b.close()
	run := &attackRun{b, &attackReport{b.report, map[cell][]attackResult{}}}
	for _, step := range []func(context.Context) error{b.build, b.settleBesideServers, run.measureCases} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return run.out, nil
}

// attackedAgent is an agent under attack, with the echo beside it.
type attackedAgent struct {
	agent, echo process
}

// measureCases goes through all cases again and again. The order of attack and control
// changes from round to round.
func (b *attackRun) measureCases(ctx context.Context) error {
	up, err := worst.Open()
	if err != nil {
		return err
	}
	defer up.Close()
	if b.binaries["echo"], err = programs["echo"].find(ctx, b.dir); err != nil {
		return fmt.Errorf("the control: %w", err)
	}
	for n := range b.plan.rounds {
		for _, c := range worst.Cases() {
			if !b.only.matchesName(c.Name) {
				continue
			}
			for _, s := range b.report.servers {
				a, err := b.attack(ctx, s, c, up.Addr(), n%2 == 1)
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, c.Name, err)
				}
				at := cell{s.name, c.Name}
				b.out.results[at] = append(b.out.results[at], a)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, c.Name, s.name, a)
			}
		}
	}
	return nil
}

// attack starts an agent and the echo and measures one case.
func (b *attackRun) attack(ctx context.Context, s server, c worst.Case, upstream netip.AddrPort, controlFirst bool) (a attackResult, err error) {
	t, err := b.startTarget(ctx, s, upstream)
	if err != nil {
		return a, err
	}
	defer t.agent.Stop()
	defer t.echo.Stop()
	steps := []func() error{
		func() error { a.attack, err = b.measureVictim(ctx, t, c, loopbackAddr(t.agent.port)); return err },
		func() error {
			a.control, err = b.measureVictim(ctx, t, c, netip.AddrPortFrom(controlAddr, uint16(t.echo.port)))
			return err
		},
	}
	if controlFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return a, err
		}
	}
	return a, nil
}

// startTarget starts an agent with all cases, and the echo at another address of the
// same core.
func (b *attackRun) startTarget(ctx context.Context, s server, upstream netip.AddrPort) (t attackedAgent, err error) {
	files, err := os.MkdirTemp(b.dir, "worst-")
	if err != nil {
		return t, err
	}
	if err := worst.Write(files); err != nil {
		return t, err
	}
	t.agent, err = b.spawn(s, settings{upstreams: []netip.AddrPort{upstream}, files: files})
	if err != nil {
		return t, err
	}
	t.echo, err = b.spawn(server{name: "C echo", program: "echo"}, settings{listen: controlAddr.String(), length: udpPayload})
	if err == nil {
		err = t.agent.Await(ctx, "an answer", peer.Answers(loopbackAddr(t.agent.port)))
	}
	if err != nil {
		t.agent.Stop()
	}
	return t, err
}

// udpPayload is the size of the echo's replies: the most that the agent sends over UDP.
const udpPayload = 1232

// measureVictim asks the agent as the victim does while the case's packets go to the
// address. What an attack before it has left to do is done by then.
func (b *attackRun) measureVictim(ctx context.Context, t attackedAgent, c worst.Case, to netip.AddrPort) (victim victimResult, err error) {
	if err := t.agent.Await(ctx, "an answer", peer.Answers(loopbackAddr(t.agent.port))); err != nil {
		return victim, err
	}
	streams := []loadgen.Stream{{Questions: [][]byte{worst.Victim()}, Rate: victimRate, Sockets: clients}}
	if len(c.Queries) > 0 {
		streams = append(streams, loadgen.Stream{Questions: c.Queries, Rate: c.Rate, Sockets: 1, From: attackerAddr, Server: to})
	} else if to.Addr() != controlAddr {
		closeAll := openIdle(c.Connections, to, netip.AddrPortFrom(to.Addr(), uint16(t.agent.metrics)))
		defer closeAll()
	}
	before, err := cpuClock(t.agent.Pid())
	if err != nil {
		return victim, err
	}
	results, err := b.loop.Run(ctx, loadgen.Job{Server: loopbackAddr(t.agent.port), Length: b.length, Streams: streams})
	if err != nil {
		return victim, err
	}
	after, err := cpuClock(t.agent.Pid())
	if err != nil {
		return victim, err
	}
	victim = victimResult{Result: results[0], cpu: after - before}
	slices.Sort(victim.Latencies)
	if len(results) > 1 {
		victim.attacked = results[1].Sent
	}
	return victim, nil
}

// openIdle opens n connections to each address, sends the start of a request on each,
// and returns what closes them. Connections that are refused are left out: that is what
// is tried.
func openIdle(n int, to ...netip.AddrPort) (closeAll func()) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: attackerAddr.AsSlice()}, Timeout: time.Second}
	var open []net.Conn
	for _, at := range to {
		for range n {
			conn, err := dialer.Dial("tcp", at.String())
			if err != nil {
				continue
			}
			_, _ = conn.Write([]byte{0})
			open = append(open, conn)
		}
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}

// Targets are what nodens has to show beside the dearest queries. What tenants make
// comes apart from the rest: anybody may be one.
func (r *attackReport) Targets() []target {
	var list []target
	for _, part := range []struct {
		what string
		has  func(worst.Case) bool
	}{
		{"what tenants make", func(c worst.Case) bool { return c.Who == worst.Tenant }},
		{"the other cases", func(c worst.Case) bool { return c.Who != worst.Tenant }},
	} {
		list = append(list,
			target{what: "p50 of a victim, " + part.what + ", beside the control = 1", limit: 1.2, of: r.valuesOf(part.has, attackResult.p50)},
			target{what: "p99 of a victim, " + part.what + ", beside the control = 1", limit: 1.2, of: r.valuesOf(part.has, attackResult.p99)},
			target{what: "queries that a victim lost, " + part.what, limit: 0, of: r.valuesOf(part.has, attackResult.lost)})
	}
	return list
}

// valuesOf are nodens' values in the cases that has is true for.
func (r *attackReport) valuesOf(has func(worst.Case) bool, f func(attackResult) float64) (list []targetValue) {
	for _, c := range worst.Cases() {
		if has(c) {
			list = append(list, targetValue{c.Name, func() (spread, bool) { return r.resultSpread(f, cell{"nodens", c.Name}) }})
		}
	}
	return list
}

// resultSpread applies f to the samples of a row; false if there is none.
func (r *attackReport) resultSpread(f func(attackResult) float64, at cell) (spread, bool) {
	var values []float64
	for _, a := range r.results[at] {
		values = append(values, f(a))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// caseTable has a row for each case of one server; empty if none was measured.
func (r *attackReport) caseTable(s server) string {
	rows := [][]string{{"case", "made by", "attack, queries/s", "p50 µs", "control = 1", "p99 µs", "control = 1", "lost", "agent's CPU µs per query of the attack"}}
	micros := func(part float64) func(attackResult) float64 {
		return func(a attackResult) float64 { return a.attack.micros(part) }
	}
	for _, c := range worst.Cases() {
		at := cell{s.name, c.Name}
		if len(r.results[at]) == 0 {
			continue
		}
		row := []string{c.Name, c.Who, strconv.Itoa(c.Rate)}
		for _, col := range []struct {
			format string
			of     func(attackResult) float64
			ratio  bool
		}{{"%.0f", micros(0.5), false}, {"%.2f", attackResult.p50, true}, {"%.0f", micros(0.99), false}, {"%.2f", attackResult.p99, true}} {
			v, _ := r.resultSpread(col.of, at)
			text := fmt.Sprintf(col.format, v.median)
			if col.ratio {
				text += fmt.Sprintf(" ("+col.format+"–"+col.format+")", v.least, v.most)
			}
			row = append(row, text)
		}
		lost, total := 0.0, uint64(0)
		for _, a := range r.results[at] {
			lost += a.lost()
			total += a.attack.Sent
		}
		cpu, _ := r.resultSpread(attackResult.perQuery, at)
		rows = append(rows, append(row, fmt.Sprintf("%.0f of %d", lost, total), cpuText(cpu.median)))
	}
	if len(rows) == 1 {
		return ""
	}
	return table(rows)
}

// cpuNoise is how far the difference of two of the agent's CPU times is from the truth, in
// microseconds for each of the attacker's queries.
const cpuNoise = 300

func cpuText(micros float64) string {
	if micros < cpuNoise {
		return fmt.Sprintf("below %d", cpuNoise)
	}
	return fmt.Sprintf("%.0f", micros)
}

// Tables are those of all servers, as text for a terminal.
func (r *attackReport) Tables() (list []string) {
	for _, s := range r.servers {
		if t := r.caseTable(s); t != "" {
			list = append(list, s.name+"\n\n"+t)
		}
	}
	return list
}

//go:embed worst.md.tmpl
var worstText string

// Render returns the report about the dearest queries as a section of the page.
func (r *attackReport) Render([]plotFile) ([]byte, error) {
	data := struct {
		sectionData
		Cases    []worst.Case
		Tables   []tableEntry
		Rate     int
		Corefile string
	}{sectionData: r.newSectionData(r.Targets()), Cases: worst.Cases(), Rate: victimRate, Corefile: worst.Corefile()}
	for _, s := range r.servers {
		data.Tables = append(data.Tables, tableEntry{Name: s.name, Table: r.caseTable(s)})
	}
	return fillTemplate(worstText, data)
}
