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

// attackSample is what a victim saw beside an attack in one round, and beside the same
// packets sent to the echo.
type attackSample struct{ attack, control victimResult }

// victimResult is what a victim saw: its latencies are sorted. cpu is the agent's CPU
// time, and attacked the number of the attacker's queries.
type victimResult struct {
	loadgen.Result
	cpu      time.Duration
	attacked uint64
}

// lost is how many of the victim's queries got no address.
func (a attackSample) lost() float64 {
	return float64(a.attack.Sent - a.attack.Rcodes[dns.RcodeSuccess])
}

// p50 and p99 are the victim's in units of those beside the control.
func (a attackSample) p50() float64 { return latencyRatio(a.attack, a.control, 0.5) }
func (a attackSample) p99() float64 { return latencyRatio(a.attack, a.control, 0.99) }

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
func (a attackSample) perQuery() float64 {
	if a.attack.attacked == 0 {
		return 0
	}
	return float64((a.attack.cpu - a.control.cpu).Nanoseconds()) / 1e3 / float64(a.attack.attacked)
}

func (a attackSample) String() string {
	return fmt.Sprintf("p50 %.0f µs (%.2f), p99 %.0f µs (%.2f), %.0f lost, %.0f µs of CPU for each of the attacker's queries",
		a.attack.micros(0.5), a.p50(), a.attack.micros(0.99), a.p99(), a.lost(), a.perQuery())
}

// worstServers are the rows.
var worstServers = []server{{name: "nodens", program: "nodens", conf: "worst"}}

// measureWorst measures what a victim sees beside the dearest queries. Nothing that it
// started runs when it returns.
func measureWorst(ctx context.Context, p plan) (*report, error) {
	b, err := newBench(p, p.withBefore(worstServers))
	if err != nil {
		return nil, err
	}
	defer b.close()
	b.report.attacks = map[cell][]attackSample{}
	for _, step := range []func(context.Context) error{b.build, b.besideServers, b.worstRounds} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return b.report, nil
}

// target is an agent under attack, with the echo beside it.
type target struct {
	agent, echo process
}

// worstRounds goes through all cases again and again. The order of attack and control
// changes from round to round.
func (b *bench) worstRounds(ctx context.Context) error {
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
			if !b.only.named(c.Name) {
				continue
			}
			for _, s := range b.report.servers {
				a, err := b.attack(ctx, s, c, up.Addr(), n%2 == 1)
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.name, c.Name, err)
				}
				at := cell{s.name, c.Name}
				b.report.attacks[at] = append(b.report.attacks[at], a)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, c.Name, s.name, a)
			}
		}
	}
	return nil
}

// attack starts an agent and the echo and measures one case.
func (b *bench) attack(ctx context.Context, s server, c worst.Case, upstream netip.AddrPort, controlFirst bool) (a attackSample, err error) {
	t, err := b.startTarget(ctx, s, upstream)
	if err != nil {
		return a, err
	}
	defer t.agent.Stop()
	defer t.echo.Stop()
	steps := []func() error{
		func() error { a.attack, err = b.besideAttack(ctx, t, c, local(t.agent.port)); return err },
		func() error {
			a.control, err = b.besideAttack(ctx, t, c, netip.AddrPortFrom(controlAddr, uint16(t.echo.port)))
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
func (b *bench) startTarget(ctx context.Context, s server, upstream netip.AddrPort) (t target, err error) {
	files, err := os.MkdirTemp(b.dir, "worst-")
	if err != nil {
		return t, err
	}
	if err := worst.Write(files); err != nil {
		return t, err
	}
	t.agent, err = b.spawn(s, settings{to: []netip.AddrPort{upstream}, files: files})
	if err != nil {
		return t, err
	}
	t.echo, err = b.spawn(server{name: "C echo", program: "echo"}, settings{listen: controlAddr.String(), length: udpPayload})
	if err == nil {
		err = t.agent.Await(ctx, "an answer", peer.Answers(local(t.agent.port)))
	}
	if err != nil {
		t.agent.Stop()
	}
	return t, err
}

// udpPayload is the size of the echo's replies: the most that the agent sends over UDP.
const udpPayload = 1232

// besideAttack asks the agent as the victim does while the case's packets go to the
// address. What an attack before it has left to do is done by then.
func (b *bench) besideAttack(ctx context.Context, t target, c worst.Case, to netip.AddrPort) (victim victimResult, err error) {
	if err := t.agent.Await(ctx, "an answer", peer.Answers(local(t.agent.port))); err != nil {
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
	results, err := b.loop.Run(ctx, loadgen.Job{Server: local(t.agent.port), Length: b.length, Streams: streams})
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

// worstClaims are what nodens has to show beside the dearest queries. What tenants make
// comes apart from the rest: anybody may be one.
func worstClaims() []claim {
	var list []claim
	for _, part := range []struct {
		what string
		has  func(worst.Case) bool
	}{
		{"what tenants make", func(c worst.Case) bool { return c.Who == worst.Tenant }},
		{"the other cases", func(c worst.Case) bool { return c.Who != worst.Tenant }},
	} {
		list = append(list,
			claim{what: "p50 of a victim, " + part.what + ", beside the control = 1", limit: 1.2, of: attackValues(part.has, attackSample.p50)},
			claim{what: "p99 of a victim, " + part.what + ", beside the control = 1", limit: 1.2, of: attackValues(part.has, attackSample.p99)},
			claim{what: "queries that a victim lost, " + part.what, limit: 0, of: attackValues(part.has, attackSample.lost)})
	}
	return list
}

// attackValues are nodens' values in the cases that has is true for.
func attackValues(has func(worst.Case) bool, f func(attackSample) float64) (list []value) {
	for _, c := range worst.Cases() {
		if has(c) {
			list = append(list, value{c.Name, func(r *report) (spread, bool) { return r.attacked(f, cell{"nodens", c.Name}) }})
		}
	}
	return list
}

// attacked applies f to the samples of a row; false if there is none.
func (r *report) attacked(f func(attackSample) float64, at cell) (spread, bool) {
	var values []float64
	for _, a := range r.attacks[at] {
		values = append(values, f(a))
	}
	if len(values) == 0 {
		return spread{}, false
	}
	return spreadOf(values), true
}

// worstTable has a row for each case of one server; empty if none was measured.
func (r *report) worstTable(s server) string {
	rows := [][]string{{"case", "made by", "attack, queries/s", "p50 µs", "control = 1", "p99 µs", "control = 1", "lost", "agent's CPU µs per query of the attack"}}
	micros := func(part float64) func(attackSample) float64 {
		return func(a attackSample) float64 { return a.attack.micros(part) }
	}
	for _, c := range worst.Cases() {
		at := cell{s.name, c.Name}
		if len(r.attacks[at]) == 0 {
			continue
		}
		row := []string{c.Name, c.Who, strconv.Itoa(c.Rate)}
		for _, col := range []struct {
			format string
			of     func(attackSample) float64
			ratio  bool
		}{{"%.0f", micros(0.5), false}, {"%.2f", attackSample.p50, true}, {"%.0f", micros(0.99), false}, {"%.2f", attackSample.p99, true}} {
			v, _ := r.attacked(col.of, at)
			text := fmt.Sprintf(col.format, v.median)
			if col.ratio {
				text += fmt.Sprintf(" ("+col.format+"–"+col.format+")", v.least, v.most)
			}
			row = append(row, text)
		}
		lost, total := 0.0, uint64(0)
		for _, a := range r.attacks[at] {
			lost += a.lost()
			total += a.attack.Sent
		}
		cpu, _ := r.attacked(attackSample.perQuery, at)
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

// worstTables are those of all servers, as text for a terminal.
func (r *report) worstTables() (list []string) {
	for _, s := range r.servers {
		if t := r.worstTable(s); t != "" {
			list = append(list, s.name+"\n\n"+t)
		}
	}
	return list
}

//go:embed worst.md.tmpl
var worstText string

// worstSection is the report about the dearest queries as a section of the page.
func (r *report) worstSection() ([]byte, error) {
	data := struct {
		frame
		Cases    []worst.Case
		Tables   []entry
		Rate     int
		Corefile string
	}{frame: r.frame(worstPart, worstClaims()), Cases: worst.Cases(), Rate: victimRate, Corefile: worst.Corefile()}
	for _, s := range r.servers {
		data.Tables = append(data.Tables, entry{Name: s.name, Table: r.worstTable(s)})
	}
	return render(worstText, data)
}
