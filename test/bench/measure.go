package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/loadgen"
	"github.com/nodens-dns/nodens/test/peer"
)

// plan says what to measure.
type plan struct {
	rounds int
	// length is that of one measurement.
	length time.Duration
	// names is how many names a cache is filled with to see what they take.
	names int
	// scale measures the section about a large cluster, and nothing else.
	scale cluster
	// failing measures the section about upstreams that fail, and nothing else.
	failing failing
	// faults measures the section about agents that go away, and nothing else.
	faults bool
	// kernel measures the section about answers from inside the kernel, and nothing else.
	kernel bool
	// worst measures the section about the dearest queries, and nothing else.
	worst bool
	// before is the commit whose agent is measured beside this tree's; empty is none.
	before string
	// upgrades is how many upgrades there are in a row; 0 is upgradesInARow.
	upgrades int
	// cluster includes the questions that take an API server.
	cluster bool
	// only is the choice of workloads and servers; empty is all.
	only choice
	// progress gets a line for each measurement.
	progress io.Writer
}

// bench is a run: what is up while it lasts.
type bench struct {
	plan
	rows         []server // those to measure, unless they are left out
	dir          string
	server, load cores
	settled      bool // this process is pinned to load
	loop         *loadgen.Loop
	stream       *dns.Server // the upstream over TCP
	api          *apiserver.Server
	kubeconfig   string // empty without an API server
	binaries     map[string]string
	workloads    []workload
	files        map[string]string // data files by set
	lengths      map[string]int    // of an answer, by set
	fresh        uint32            // the next new name
	running      []*running
	report       *report
}

// newBench makes a run of which nothing is up yet; the caller calls close.
func newBench(p plan, rows []server) (*bench, error) {
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return nil, err
	}
	return &bench{
		plan: p, rows: rows, dir: dir,
		binaries: map[string]string{}, files: map[string]string{}, lengths: map[string]int{},
		report: &report{plan: p, date: time.Now(), samples: map[cell][]sample{}, rests: map[string][]rest{}, holds: map[string]hold{}},
	}, nil
}

// measure does what the plan says. Nothing that it started runs when it returns.
func measure(ctx context.Context, p plan) (*report, error) {
	b, err := newBench(p, p.withBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.close()
	for _, w := range workloads() {
		if (p.cluster || !w.cluster) && p.only.workload(w) {
			b.workloads = append(b.workloads, w)
		}
	}
	b.cluster = slices.ContainsFunc(b.workloads, func(w workload) bool { return w.questions.cluster })
	for _, step := range []func(context.Context) error{b.build, b.surround, b.startAll, b.warm, b.rounds, b.memories} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.report.judge()
	b.report.fact("load average", b.report.loadBefore+" before, "+loadAverage()+" after")
	return b.report, nil
}

// build finds every binary, as long as all cores may be used for that.
func (b *bench) build(ctx context.Context) error {
	var err error
	if b.server, b.load, err = split(); err != nil {
		return err
	}
	b.report.facts = machine()
	if err := b.findLoad(ctx); err != nil {
		return err
	}
	if b.cluster {
		if err := prepare(ctx, b.dir); err != nil {
			return err
		}
	}
	for _, s := range b.rows {
		if !b.only.server(s) {
			continue
		}
		if err := b.find(ctx, s); err != nil {
			return err
		}
	}
	if len(b.report.servers) == 0 {
		return errors.New("no server is left to measure")
	}
	if first := b.report.servers[0]; programs[first.program].each {
		return fmt.Errorf("%s makes its answers as long as those of the row before it: choose %s as well", first.name, servers[0].name)
	}
	b.report.commit = commit()
	b.report.loadBefore = loadAverage()
	b.report.fact("pinning", fmt.Sprintf("server on %s, load generator and upstream on %s", b.server.list(), b.load.list()))
	return nil
}

// find finds the server's binary and makes the server a row, or notes that there
// is none.
func (b *bench) find(ctx context.Context, s server) error {
	p := programs[s.program]
	if b.binaries[s.binary()] == "" {
		find := p.find
		if s.commit != "" {
			find = func(ctx context.Context, _ string) (string, error) { return peer.EarlierBinary(ctx, s.commit) }
		}
		path, err := find(ctx, b.dir)
		if errors.Is(err, errAbsent) {
			b.leave(s, err)
			return nil
		}
		if err != nil {
			return err
		}
		b.binaries[s.binary()] = path
		if release := p.release(ctx, path); release != "" {
			b.report.fact(strings.TrimSpace(s.program+" "+s.commit), release)
		}
	}
	b.report.servers = append(b.report.servers, s)
	return nil
}

// leave notes why there is no row of the server.
func (b *bench) leave(s server, err error) {
	b.report.notes = append(b.report.notes, fmt.Sprintf("The row %s is left out: %v.", s.name, err))
}

// findLoad looks for the load generator.
func (b *bench) findLoad(ctx context.Context) error {
	if b.plan.kernel {
		return nil // its client is its own
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		return errNoLoad
	}
	// It states its version and then complains about nothing to do.
	text, _ := exec.CommandContext(ctx, "dnsperf", "-h").CombinedOutput()
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "Version "); ok {
			b.report.fact("dnsperf", strings.TrimSpace(v))
		}
	}
	return nil
}

// surround starts what the servers talk to, on the load generator's cores.
func (b *bench) surround(ctx context.Context) error {
	b.settled = true
	if err := settle(b.load); err != nil {
		return err
	}
	var err error
	if b.loop, b.stream, err = startUpstream(); err != nil {
		return err
	}
	if b.cluster {
		if b.api, err = startCluster(ctx, b.dir); err != nil {
			return err
		}
		b.kubeconfig = b.api.Kubeconfig(apiserver.Agent)
	}
	return b.write()
}

// write writes the questions of all sets.
func (b *bench) write() error {
	for _, q := range b.sets() {
		var err error
		if b.files[q.name], err = q.write(b.dir); err != nil {
			return err
		}
	}
	b.report.workloads = b.workloads
	return nil
}

// sets are the questions of all workloads. Each comes once, and the first of all
// comes anyhow: by it a server shows that it is there.
func (b *bench) sets() []questions {
	list := sets[:1:1]
	for _, w := range b.workloads {
		if !slices.ContainsFunc(list, func(q questions) bool { return q.name == w.questions.name }) {
			list = append(list, w.questions)
		}
	}
	return list
}

// startAll starts every server. One of the machine's own may be of a version that
// wants another configuration; then there is no row of it.
func (b *bench) startAll(ctx context.Context) error {
	var rows []server
	for _, s := range b.report.servers {
		r, err := b.start(ctx, s, false)
		if err != nil && programs[s.program].foreign && ctx.Err() == nil {
			fmt.Fprintln(b.progress, err)
			b.leave(s, fmt.Errorf("%w with test/bench/conf/%s", errStart, s.conf))
			continue
		}
		if err != nil {
			return err
		}
		b.running, rows = append(b.running, r), append(rows, s)
	}
	b.report.servers = rows
	return nil
}

// errStart says why a program that is there has no row.
var errStart = errors.New("it does not start")

// warm asks every server every question once, which fills its cache, and then
// for a while, which lets its heap and its sockets reach their size.
func (b *bench) warm(ctx context.Context) error {
	for _, r := range b.running {
		for _, w := range b.workloads {
			if !w.asks(r.server) {
				continue
			}
			if err := b.fill(ctx, r, w); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.name, w.name, r.explain(err))
			}
			if w.tool != saturate && w.tool != stream {
				continue
			}
			if _, err := b.loadOf(r, w, min(b.length, time.Second)).run(ctx, b.load); err != nil {
				return fmt.Errorf("warming up %s with %s: %w", r.name, w.name, r.explain(err))
			}
		}
	}
	return nil
}

// rounds measures everything in turn, again and again. Every other round goes through the
// servers backwards: the first one of a round has a core whose caches and clock are another
// load's.
func (b *bench) rounds(ctx context.Context) error {
	for n := range b.plan.rounds {
		order := slices.Clone(b.running)
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for _, w := range b.workloads {
			for _, r := range order {
				if !w.asks(r.server) {
					continue
				}
				s, err := b.sample(ctx, r, w)
				if err != nil {
					return fmt.Errorf("measuring %s with %s: %w", r.name, w.name, r.explain(err))
				}
				at := cell{r.name, w.name}
				b.report.samples[at] = append(b.report.samples[at], s)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %s\n", n+1, b.plan.rounds, w.name, r.name, s)
			}
		}
		if err := b.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// close ends what is up, in the reverse order, unpins this process and removes the
// files.
func (b *bench) close() {
	for _, r := range slices.Backward(b.running) {
		r.stop()
	}
	if b.api != nil {
		b.api.Close()
	}
	if b.stream != nil {
		_ = b.stream.Shutdown()
	}
	if b.loop != nil {
		b.loop.Close()
	}
	if b.settled {
		// The threads were allowed on these cores before.
		_ = settle(slices.Concat(b.server, b.load))
	}
	os.RemoveAll(b.dir)
}
