// Package attack measures the section about the most expensive queries: what a victim sees while an
// attacker sends the cases of package worst to the agent, in units of what it sees while the same
// packets go to an echo server.
package attack

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/worst"
)

// victimRate is how many queries a second the victim sends: a round of two seconds has
// twenty that are slower than its p99.
const victimRate = 1000

// controlAddr is the echo's.
var controlAddr = netip.AddrFrom4([4]byte{127, 0, 0, 3})

// result is what a victim saw beside an attack in one round, and beside the same
// packets sent to the echo.
type result struct{ attack, control victimResult }

// victimResult is what a victim saw: its latencies are sorted. cpu is the agent's CPU
// time, and attacked the number of the attacker's queries.
type victimResult struct {
	load.Result
	cpu      time.Duration
	attacked uint64
}

// lost is how many of the victim's queries got no address.
func (a result) lost() float64 {
	return float64(a.attack.Sent - a.attack.Rcodes[dns.RcodeSuccess])
}

// p50 and p99 are the victim's in units of those beside the control.
func (a result) p50() float64 { return latencyRatio(a.attack, a.control, 0.5) }
func (a result) p99() float64 { return latencyRatio(a.attack, a.control, 0.99) }

func latencyRatio(a, b victimResult, part float64) float64 { return a.micros(part) / b.micros(part) }

// micros is the time within which the part of the answers came, in microseconds; where
// none came at all, the time that the load generator waits for one.
func (v victimResult) micros(part float64) float64 {
	if len(v.Latencies) == 0 {
		return float64(time.Second.Microseconds())
	}
	return float64(figures.Percentile(v.Latencies, part).Nanoseconds()) / 1e3
}

// perQuery is the agent's CPU time for one of the attacker's queries in microseconds:
// what it spent more than beside the control. It is 0 where no queries were sent.
func (a result) perQuery() float64 {
	if a.attack.attacked == 0 {
		return 0
	}
	return float64((a.attack.cpu - a.control.cpu).Nanoseconds()) / 1e3 / float64(a.attack.attacked)
}

func (a result) String() string {
	return fmt.Sprintf("p50 %.0f µs (%.2f), p99 %.0f µs (%.2f), %.0f lost, %.0f µs of CPU for each of the attacker's queries",
		a.attack.micros(0.5), a.p50(), a.attack.micros(0.99), a.p99(), a.lost(), a.perQuery())
}

// servers are the rows.
var servers = []harness.Server{{Name: "nodens", Program: "nodens", Conf: "worst"}}

// control is the server on the same core that shows what the machine itself adds to the times.
var control = harness.Server{Name: "C echo", Program: "echo"}

// run attacks an agent.
type run struct {
	*harness.Run
	out *Report
	// busy is the program that attacks over TCP.
	busy string
}

// Report is its result.
type Report struct {
	*harness.Report
	results harness.Results[result]
}

// Measure measures what a victim sees during the most expensive queries. It stops everything that
// it started before it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	b, err := harness.New(p, p.WithBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	run := &run{Run: b, out: &Report{b.Report, harness.Results[result]{}}, busy: filepath.Join(b.Dir, "busy")}
	compile := func(ctx context.Context) error { return peer.BuildPackage(ctx, "./test/worst/busy", run.busy) }
	return run.out, b.Steps(ctx, b.Build, compile, b.SettleBesideServers, run.measureCases)
}

// attackedAgent is an agent under attack, with the echo beside it.
type attackedAgent struct {
	agent, echo harness.Process
}

// measureCases goes through all cases again and again. The order of attack and control
// changes from round to round.
func (b *run) measureCases(ctx context.Context) error {
	up, err := worst.Open()
	if err != nil {
		return err
	}
	defer up.Close()
	if err := b.FindControl(ctx, control); err != nil {
		return err
	}
	targets := &targets{run: b, upstream: up.Addr(), kept: map[string]attackedAgent{}}
	defer targets.close()
	for n := range b.Plan.Rounds {
		for _, c := range worst.Cases() {
			if !b.Only.MatchesName(c.Name) {
				continue
			}
			for _, s := range b.Report.Servers {
				a, err := b.attack(ctx, targets, s, c, n%2 == 1)
				if err != nil {
					return fmt.Errorf("measuring %s, %s: %w", s.Name, c.Name, err)
				}
				at := harness.Cell{Server: s.Name, Workload: c.Name}
				b.out.results[at] = append(b.out.results[at], a)
				fmt.Fprintf(b.Progress, "round %d of %d, %s, %s: %s\n", n+1, b.Plan.Rounds, c.Name, s.Name, a)
			}
		}
	}
	return nil
}

// targets are the agents under attack: a new one for each measurement, but in the short form one of
// each server for all.
type targets struct {
	*run
	upstream netip.AddrPort
	kept     map[string]attackedAgent // by server
}

// get returns an agent of the server. The caller calls release when it is done with it.
func (t *targets) get(ctx context.Context, s harness.Server) (a attackedAgent, release func(), err error) {
	if a, ok := t.kept[s.Name]; ok {
		return a, func() {}, nil
	}
	if a, err = t.startTarget(ctx, s, t.upstream); err != nil {
		return a, nil, err
	}
	if t.Short {
		t.kept[s.Name] = a
		return a, func() {}, nil
	}
	return a, a.stop, nil
}

func (t *targets) close() {
	for _, a := range t.kept {
		a.stop()
	}
}

func (t attackedAgent) stop() {
	t.echo.Stop()
	t.agent.Stop()
}

// attack measures one case.
func (b *run) attack(ctx context.Context, all *targets, s harness.Server, c worst.Case, controlFirst bool) (a result, err error) {
	t, release, err := all.get(ctx, s)
	if err != nil {
		return a, err
	}
	defer release()
	steps := []func() error{
		func() error {
			a.attack, err = b.measureVictim(ctx, t, c, harness.LoopbackAddr(t.agent.Port))
			return err
		},
		func() error {
			a.control, err = b.measureVictim(ctx, t, c, netip.AddrPortFrom(controlAddr, uint16(t.echo.Port)))
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
func (b *run) startTarget(ctx context.Context, s harness.Server, upstream netip.AddrPort) (t attackedAgent, err error) {
	files, err := os.MkdirTemp(b.Dir, "worst-")
	if err != nil {
		return t, err
	}
	if err := worst.Write(files); err != nil {
		return t, err
	}
	t.agent, err = b.Spawn(s, harness.Settings{Upstreams: []netip.AddrPort{upstream}, Files: files})
	if err != nil {
		return t, err
	}
	t.echo, err = b.Spawn(control, harness.Settings{Listen: controlAddr.String(), Length: udpPayload})
	if err == nil {
		err = t.agent.Await(ctx, "an answer", peer.Answers(harness.LoopbackAddr(t.agent.Port)))
	}
	if err != nil {
		t.agent.Stop()
	}
	return t, err
}

// udpPayload is the size of the echo's replies: the most that the agent sends over UDP.
const udpPayload = 1232

// measureVictim sends the victim's queries to the agent while the case's packets go to the
// address. It first waits until the agent has finished the work of an earlier attack.
func (b *run) measureVictim(ctx context.Context, t attackedAgent, c worst.Case, to netip.AddrPort) (victim victimResult, err error) {
	if err := t.agent.Await(ctx, "an answer", peer.Answers(harness.LoopbackAddr(t.agent.Port))); err != nil {
		return victim, err
	}
	streams := []load.Stream{{Questions: [][]byte{worst.Victim()}, Rate: victimRate, Sockets: harness.Clients}}
	datagrams, closeAll, err := b.beginAttack(t, c, to)
	if err != nil {
		return victim, err
	}
	defer closeAll()
	streams = append(streams, datagrams...)
	before, err := machine.CPUClock(t.agent.PID())
	if err != nil {
		return victim, err
	}
	results, err := b.Loop.Run(ctx, b.job(load.LoopJob{Server: harness.LoopbackAddr(t.agent.Port), Streams: streams}))
	if err != nil {
		return victim, err
	}
	after, err := machine.CPUClock(t.agent.PID())
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

// beginAttack opens the connections of the case's attacker to the address, and returns what
// closes them. Instead, an attacker over UDP has a stream of datagrams. No connections are
// opened to the control.
func (b *run) beginAttack(t attackedAgent, c worst.Case, to netip.AddrPort) (datagrams []load.Stream, closeAll func(), err error) {
	switch {
	case c.Streams > 0 && to.Addr() != controlAddr:
		closeAll, err = b.openBusy(b.streams(c), c, to)
		return nil, closeAll, err
	case c.Streams > 0 || len(c.Queries) == 0 && to.Addr() == controlAddr:
		return nil, func() {}, nil
	case len(c.Queries) > 0:
		return []load.Stream{{Questions: c.Queries, Rate: c.Rate, Sockets: max(1, c.Sources), Sources: c.From(), Server: to}}, func() {}, nil
	default:
		return nil, openIdle(b.connections(c), to, netip.AddrPortFrom(to.Addr(), uint16(t.agent.Metrics))), nil
	}
}

// The attack of the short form: some queries within the time that the victim's take. Nobody waits
// long for their answers.
const shortQueries, shortRate = 8, 125

// job returns the job of the victim and the attacker.
func (b *run) job(j load.LoopJob) load.LoopJob {
	j = b.Job(j)
	if b.Short && len(j.Streams) > 1 {
		a := &j.Streams[1]
		a.Rate, a.Count, a.Patience = shortRate, shortQueries, b.Length
	}
	return j
}

// shortConnections is more than the agent takes from one address at either port.
const shortConnections = 150

// connections returns how many connections an attacker opens to each port.
func (b *run) connections(c worst.Case) int {
	if b.Short {
		return min(c.Connections, shortConnections)
	}
	return c.Connections
}

// streams returns over how many connections an attacker sends queries.
func (b *run) streams(c worst.Case) int {
	if b.Short {
		return min(c.Streams, shortConnections)
	}
	return c.Streams
}

// Targets returns the section's targets. Cases that any tenant can cause have targets of their
// own.
func (r *Report) Targets() []harness.Target {
	var list []harness.Target
	for _, part := range []struct {
		what string
		has  func(worst.Case) bool
	}{
		{"cases by tenants", func(c worst.Case) bool { return c.Who == worst.Tenant }},
		{"the other cases", func(c worst.Case) bool { return c.Who != worst.Tenant }},
	} {
		list = append(list,
			harness.Target{What: "p50 of a victim, " + part.what + ", relative to the control", Limit: 1.2, Of: r.valuesOf(part.has, result.p50)},
			harness.Target{What: "p99 of a victim, " + part.what + ", relative to the control", Limit: 1.2, Of: r.valuesOf(part.has, result.p99)},
			harness.Target{What: "queries that a victim lost, " + part.what, Limit: 0, Of: r.valuesOf(part.has, result.lost)})
	}
	return list
}

// valuesOf are nodens' values in the cases that has is true for.
func (r *Report) valuesOf(has func(worst.Case) bool, f func(result) float64) (list []harness.TargetValue) {
	for _, c := range worst.Cases() {
		if has(c) {
			list = append(list, r.results.Value(c.Name, harness.Cell{Server: "nodens", Workload: c.Name}, f))
		}
	}
	return list
}

// caseTable has a row for each case of one server; empty if none was measured.
func (r *Report) caseTable(s harness.Server) string {
	var rows []harness.Row
	for _, c := range worst.Cases() {
		rows = append(rows, harness.Row{Labels: []string{c.Name, c.Who, strconv.Itoa(c.Rate)}, At: harness.Cell{Server: s.Name, Workload: c.Name}})
	}
	micros := func(part float64) func(result) float64 {
		return func(a result) float64 { return a.attack.micros(part) }
	}
	lost, sent := r.results.Sum("", result.lost), r.results.Sum("", func(a result) float64 { return float64(a.attack.Sent) })
	return r.results.Table([]string{"case", "made by", "attack, queries/s"}, rows,
		r.results.Median("p50 µs", "%.0f", micros(0.5)), r.results.MedianRange("relative to control", "%.2f", result.p50),
		r.results.Median("p99 µs", "%.0f", micros(0.99)), r.results.MedianRange("relative to control", "%.2f", result.p99),
		harness.Column{Head: "lost", Text: func(at harness.Cell) string { return lost.Text(at) + " of " + sent.Text(at) }},
		harness.Column{Head: "agent's CPU µs per query of the attack", Text: func(at harness.Cell) string {
			cpu, _ := r.results.Spread(at, result.perQuery)
			return cpuText(cpu.Median)
		}})
}

// cpuNoise is the error of the difference of two CPU times of the agent, in microseconds per
// query of the attacker.
const cpuNoise = 300

func cpuText(micros float64) string {
	if micros < cpuNoise {
		return fmt.Sprintf("below %d", cpuNoise)
	}
	return fmt.Sprintf("%.0f", micros)
}

// Tables returns the tables of all servers as text for a terminal.
func (r *Report) Tables() (list []string) {
	for _, s := range r.Servers {
		if t := r.caseTable(s); t != "" {
			list = append(list, s.Name+"\n\n"+t)
		}
	}
	return list
}

//go:embed section.md.tmpl
var sectionText string

// Render returns the page about the most expensive queries.
func (r *Report) Render(plots []figures.PlotFile) ([]harness.Page, error) {
	data := struct {
		harness.SectionData
		Cases    []worst.Case
		Tables   []harness.TableEntry
		Rate     int
		Corefile string
	}{SectionData: r.NewSectionData(r.Targets(), plots), Cases: worst.Cases(), Rate: victimRate, Corefile: worst.Corefile()}
	for _, s := range r.Servers {
		data.Tables = append(data.Tables, harness.TableEntry{Name: s.Name, Table: r.caseTable(s)})
	}
	return harness.OnePage("attacks.md", sectionText, data)
}
