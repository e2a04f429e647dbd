package fairness

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The rows of floods that targets are about.
const (
	nodensRow  = "nodens"
	limitedRow = "nodens, client limit"
)

// The limit of a client in the rows with one: twenty times what a victim asks.
const clientLimit = "1000 1000 drop"

// limitFlag sets it.
func limitFlag() []string { return []string{"-client-limit", clientLimit} }

// floodServers are the servers that are flooded.
func floodServers() []harness.Server {
	return []harness.Server{
		{Name: nodensRow, Program: "nodens", Conf: "deployed"},
		{Name: limitedRow, Program: "nodens", Conf: "deployed", Flags: append(limitFlag(), "-kernel-path", "on")},
		{Name: harness.CoreDNS, Program: "coredns", Conf: "deployed"},
		{Name: "unbound", Program: "unbound", Conf: "unbound"},
	}
}

// What the victims ask.
const (
	victimCount = 20
	// victimRate is the queries a second of one victim; half of them are hits.
	victimRate = 50
	// hotNames is the number of names of the hits.
	hotNames   = 100
	hotPattern = "name-%04d.bench.example."
	// victimZone has the victims' misses.
	victimZone = "pod." + load.Late
)

// floodCase is a kind of flood.
type floodCase struct {
	name, what string
	// connections says that the flood is of connections, and not of queries.
	connections bool
	stream      func(d *node) load.Stream
}

// floodSockets is the number of the flooding pod's sockets: those of a busy program. floodConns is the number of connections that it
// keeps open.
const floodSockets, floodConns = 8, 512

func floodCases() []floodCase {
	return []floodCase{
		{name: "unique names", what: "Every name is new, and the upstream takes 2 ms for it.",
			stream: func(d *node) load.Stream { return d.newNames(load.Stream{}, "flood."+load.Late) }},
		{name: "unique names of a slow upstream", what: "Every name is new, and the upstream takes 500 ms for it.",
			stream: func(d *node) load.Stream { return d.newNames(load.Stream{}, "flood."+load.Slow) }},
		{name: "hits", what: "A hundred names, all of them in the cache.",
			stream: func(*node) load.Stream { return names(load.Stream{}, hotPattern, hotNames) }},
		{name: "connections", connections: true, what: fmt.Sprintf("TCP connections on which nothing is sent. The pod keeps %d of them open.", floodConns),
			stream: func(*node) load.Stream {
				return load.Stream{Connect: true, Questions: [][]byte{nil}, Sockets: floodConns}
			}},
	}
}

// The rates of a flood, in queries or connections a second, of which the highest is taken at which the victims of the control
// lose nothing.
var (
	queryRates      = []int{20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 150_000, 200_000}
	connectionRates = []int{500, 1000, 2000, 4000, 8000}
)

// victims is what the victims saw in one measurement.
type victims struct {
	hits, misses load.Result
	// flood is the number of packets or connections of the flood, and cpu the server's CPU time.
	flood   uint64
	cpu     time.Duration
	elapsed time.Duration
}

// lost is how many of the victims' queries were not answered.
func (v victims) lost() float64 { return float64(v.hits.Lost + v.misses.Lost) }

// failed is how many answers had another rcode than NOERROR.
func (v victims) failed() float64 {
	return float64(v.hits.Answered + v.misses.Answered - v.hits.Rcodes[dns.RcodeSuccess] - v.misses.Rcodes[dns.RcodeSuccess])
}

// micros is the time within which the part of the answers came, in microseconds. Where none came, it is the time that
// the load generator waits for one.
func micros(r load.Result, part float64) float64 {
	if len(r.Latencies) == 0 {
		return float64(time.Second.Microseconds())
	}
	return float64(figures.Percentile(r.Latencies, part).Nanoseconds()) / 1e3
}

// floodResult is what the victims saw beside a flood of their server in one round, and beside the same flood of
// the echo.
type floodResult struct{ flood, control victims }

func (r floodResult) lost() float64     { return r.flood.lost() }
func (r floodResult) failures() float64 { return r.flood.failed() }
func (r floodResult) hits(part float64) float64 {
	return micros(r.flood.hits, part) / micros(r.control.hits, part)
}
func (r floodResult) misses(part float64) float64 {
	return micros(r.flood.misses, part) / micros(r.control.misses, part)
}
func (r floodResult) hitsP99() float64   { return r.hits(0.99) }
func (r floodResult) missesP99() float64 { return r.misses(0.99) }

func (v victims) String() string {
	return fmt.Sprintf("hits p50 %.0f p99 %.0f µs, misses p50 %.0f p99 %.0f µs, %.0f failed, %.0f lost of %d, %d without a time, %.0f a second flooded, server busy for %.0f %%",
		micros(v.hits, 0.5), micros(v.hits, 0.99), micros(v.misses, 0.5), micros(v.misses, 0.99), v.failed(), v.lost(), v.hits.Sent+v.misses.Sent, v.hits.Blurred+v.misses.Blurred,
		float64(v.flood)/v.elapsed.Seconds(), 100*v.cpu.Seconds()/v.elapsed.Seconds())
}

// flooded is a server that is flooded, with the echo beside it.
type flooded struct {
	*node
	server *peer.Process
}

// measureFloods floods every server in every way, again and again.
func (b *run) measureFloods(ctx context.Context) error {
	if len(b.floodServers) == 0 {
		return nil
	}
	d := b.node
	if err := b.startEcho(ctx, d); err != nil {
		return err
	}
	if err := b.findRates(ctx, d); err != nil {
		return err
	}
	for n := range b.rounds() {
		for _, s := range slices.Clone(b.floodServers) {
			if err := b.floodServer(ctx, d, s, n); err != nil {
				if err := b.leaveOut(ctx, s, err); err != nil {
					return err
				}
				b.floodServers = slices.DeleteFunc(b.floodServers, func(o harness.Server) bool { return o.Name == s.Name })
			}
		}
	}
	return nil
}

// victims is the number of victims.
func (b *run) victims() int {
	if b.Short {
		return 3
	}
	return victimCount
}

// leaveOut notes why there is no row of the server. It returns the error if there has to be one.
func (b *run) leaveOut(ctx context.Context, s harness.Server, err error) error {
	if ctx.Err() != nil || s.Name == nodensRow {
		return err
	}
	fmt.Fprintf(b.Progress, "%s: %v\n", s.Name, err)
	b.Omit(s, fmt.Errorf("%w: %s", harness.ErrStart, reason(err)))
	return nil
}

// startEcho starts the control's target, which the node stops.
func (b *run) startEcho(ctx context.Context, d *node) error {
	control := harness.Server{Name: "C echo", Program: "echo", Flags: []string{strconv.Itoa(floodConns)}}
	if err := b.FindControl(ctx, control); err != nil {
		return err
	}
	_, err := d.start(ctx, control, echoAddr, harness.Settings{Length: echoLength})
	return err
}

// echoLength is the length of an answer with one address for a name of the flood.
const echoLength = 64

// findRates finds the highest rate of queries, and of connections, at which the victims of the control lose nothing.
func (b *run) findRates(ctx context.Context, d *node) error {
	t, err := b.startFlooded(ctx, d, b.floodServers[0])
	if err != nil {
		return err
	}
	defer t.server.Stop()
	for _, kind := range []struct {
		connections bool
		rates       []int
	}{{false, queryRates}, {true, connectionRates}} {
		rate := 0
		for _, c := range floodCases() {
			if c.connections != kind.connections || !b.Only.MatchesName(c.name) {
				continue
			}
			if rate == 0 {
				if rate, err = b.highestRate(ctx, t, c, kind.rates); err != nil {
					return err
				}
			}
			b.out.floodRates[c.name] = rate
		}
	}
	return nil
}

// highestRate returns the highest of the rates at which the victims of the control lose nothing, twice in a row, and which
// the load generator reaches. It is the lowest rate if there is none.
func (b *run) highestRate(ctx context.Context, t flooded, c floodCase, rates []int) (int, error) {
	best := rates[0]
	if b.Short {
		return b.Rate(best), nil
	}
	const tries, enough = 2, 0.95
	for _, rate := range rates {
		for range tries {
			v, err := b.flood(ctx, t, c, echoAddr, rate)
			if err != nil {
				return 0, err
			}
			fmt.Fprintf(b.Progress, "flood of %s, %d a second to the echo: %s\n", c.name, rate, v)
			if v.lost() > 0 || v.failed() > 0 || float64(v.flood) < enough*float64(rate)*b.Length.Seconds() {
				if rate == rates[0] {
					b.note("**The machine was not quiet.** The control of a flood of %s lost queries, or the load generator was late, at the lowest rate.", c.name)
				}
				return best, nil
			}
		}
		best = rate
	}
	return best, nil
}

// startFlooded starts a server.
func (b *run) startFlooded(ctx context.Context, d *node, s harness.Server) (flooded, error) {
	p, err := d.start(ctx, s, serverAddr, harness.Settings{})
	return flooded{d, p}, err
}

// floodServer floods a new process of a server in every way. The order of flood and control changes from round to round.
func (b *run) floodServer(ctx context.Context, d *node, s harness.Server, round int) error {
	t, err := b.startFlooded(ctx, d, s)
	if err != nil {
		return err
	}
	defer t.server.Stop()
	for _, c := range floodCases() {
		if !b.Only.MatchesName(c.name) {
			continue
		}
		var r floodResult
		steps := []struct {
			to  netip.AddrPort
			out *victims
		}{{serverAddr, &r.flood}, {echoAddr, &r.control}}
		if round%2 == 1 {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if *step.out, err = b.flood(ctx, t, c, step.to, b.out.floodRates[c.name]); err != nil {
				return fmt.Errorf("flood of %s: %w", c.name, err)
			}
		}
		at := harness.Cell{Server: s.Name, Workload: c.name}
		b.out.floods[at] = append(b.out.floods[at], r)
		fmt.Fprintf(b.Progress, "round %d of %d, flood of %s, %s: %s\n  control: %s\n", round+1, b.rounds(), c.name, s.Name, r.flood, r.control)
	}
	return nil
}

// flood has the first pod flood an address while the others ask the server.
func (b *run) flood(ctx context.Context, t flooded, c floodCase, to netip.AddrPort, rate int) (v victims, err error) {
	hits := names(load.Stream{}, hotPattern, b.Number(hotNames))
	if err := t.fill(ctx, t.server, serverAddr, hits); err != nil {
		return v, err
	}
	n := b.victims()
	hits.Rate, hits.Sockets, hits.Open = b.Rate(victimCount*victimRate/2), n, open(t.pods[1:1+n]...)
	misses := t.newNames(load.Stream{Rate: hits.Rate, Sockets: n, Open: hits.Open}, victimZone)
	flood := c.stream(t.node)
	flood.Rate, flood.Server, flood.Open, flood.RefusedIsLost = rate, to, open(t.pods[0]), true
	if flood.Sockets == 0 {
		flood.Sockets = floodSockets
	}
	job := b.Job(load.LoopJob{Server: serverAddr, Streams: []load.Stream{hits, misses, flood}})
	if b.Short {
		job.Streams[2].Patience = b.Length
	}
	before, err := machine.CPUClock(t.server.PID())
	if err != nil {
		return v, err
	}
	results, err := t.loop.Run(ctx, job)
	if err != nil {
		return v, err
	}
	after, err := machine.CPUClock(t.server.PID())
	if err != nil {
		return v, err
	}
	v = victims{hits: results[0], misses: results[1], flood: results[2].Sent, cpu: after - before, elapsed: b.Length}
	if b.Short {
		v.elapsed = results[0].Elapsed
	}
	slices.Sort(v.hits.Latencies)
	slices.Sort(v.misses.Latencies)
	return v, nil
}
