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
)

// plan says what to measure.
type plan struct {
	rounds int
	// length is that of one measurement.
	length time.Duration
	// cluster includes the workloads that take an API server.
	cluster bool
	// progress gets a line for each measurement.
	progress io.Writer
}

// sample is one measurement.
type sample struct {
	outcome
	// cpu is the server's time and kernel the part of it that the kernel's work
	// takes, from 0 to 1.
	cpu    time.Duration
	kernel float64
	// idle is how long the server's core had nothing to do.
	idle time.Duration
	// switches counts how often the server went to sleep.
	switches uint64
	// rss is the server's memory afterwards, in bytes.
	rss uint64
	// misses counts the questions that the upstream was asked meanwhile.
	misses uint64
}

// price is the CPU time of a query in microseconds.
func (s sample) price() float64 { return float64(s.cpu.Nanoseconds()) / 1e3 / float64(s.completed) }

// others is the part of the core's time that went neither to the server nor to
// waiting: to other processes, or to other virtual machines.
func (s sample) others() float64 {
	// The core's clock has ticks, so the sum may be a little over the time.
	return max(0, 1-(s.cpu+s.idle).Seconds()/s.elapsed.Seconds())
}

// cell names a row of a table: a server under a workload.
type cell struct{ server, workload string }

// bench is a run: what is up while it lasts.
type bench struct {
	plan
	dir          string
	server, load cores
	settled      bool // this process is pinned to load
	upstream     *upstream
	api          *apiserver.Server
	kubeconfig   string // empty without an API server
	binaries     map[string]string
	workloads    []workload
	files        map[string]string // data files by workload
	lengths      map[string]int    // of an answer, by workload
	running      []*running
	report       *report
}

// measure does what the plan says. Nothing that it started runs when it returns.
func measure(ctx context.Context, p plan) (*report, error) {
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &bench{
		plan: p, dir: dir,
		binaries: map[string]string{}, files: map[string]string{}, lengths: map[string]int{},
		report: &report{plan: p, date: time.Now(), samples: map[cell][]sample{}},
	}
	defer b.close()
	for _, w := range workloads {
		if p.cluster || !w.cluster {
			b.workloads = append(b.workloads, w)
		}
	}
	for _, step := range []func(context.Context) error{b.build, b.surround, b.startAll, b.warm, b.rounds} {
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
	for _, s := range servers {
		if err := b.find(ctx, s); err != nil {
			return err
		}
	}
	b.report.commit = commit()
	b.report.loadBefore = loadAverage()
	b.report.fact("pinning", fmt.Sprintf("server on %s, load generator on %s", b.server.list(), b.load.list()))
	return nil
}

// find finds the server's binary and makes the server a row, or notes that there
// is none.
func (b *bench) find(ctx context.Context, s server) error {
	p := programs[s.program]
	if b.binaries[s.program] == "" {
		path, err := p.find(ctx, b.dir)
		if errors.Is(err, errAbsent) {
			b.report.notes = append(b.report.notes, fmt.Sprintf("The row %s is left out: %v.", s.name, err))
			return nil
		}
		if err != nil {
			return err
		}
		b.binaries[s.program] = path
		if release := p.release(ctx, path); release != "" {
			b.report.fact(s.program, release)
		}
	}
	b.report.servers = append(b.report.servers, s)
	return nil
}

// findLoad looks for the load generator.
func (b *bench) findLoad(ctx context.Context) error {
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
	if b.upstream, err = startUpstream(); err != nil {
		return err
	}
	if b.cluster {
		if b.api, err = startCluster(ctx, b.dir); err != nil {
			return err
		}
		b.kubeconfig = b.api.Kubeconfig(apiserver.Agent)
	}
	for _, w := range b.workloads {
		if b.files[w.name], err = w.write(b.dir); err != nil {
			return err
		}
	}
	b.report.workloads = b.workloads
	return nil
}

// startAll starts every server.
func (b *bench) startAll(ctx context.Context) error {
	for _, s := range b.report.servers {
		r, err := b.start(ctx, s)
		if err != nil {
			return err
		}
		b.running = append(b.running, r)
	}
	return nil
}

// warm asks every server every question once, which fills its cache, and then
// for a while, which lets its heap and its sockets reach their size.
func (b *bench) warm(ctx context.Context) error {
	for _, r := range b.running {
		for _, w := range b.workloads {
			for _, length := range []time.Duration{0, min(b.length, time.Second)} {
				o, err := load{server: r.procs[w.name].port, file: b.files[w.name], length: length}.run(ctx, b.load)
				if err != nil {
					return err
				}
				if err := o.check(dns.RcodeToString[w.rcode]); err != nil {
					return fmt.Errorf("warming up %s with %s: %w", r.name, w.name, err)
				}
			}
		}
	}
	return nil
}

// rounds measures everything in turn, again and again.
func (b *bench) rounds(ctx context.Context) error {
	for n := range b.plan.rounds {
		for _, w := range b.workloads {
			for _, r := range b.running {
				s, err := b.sample(ctx, r, w)
				if err != nil {
					return fmt.Errorf("measuring %s with %s: %w", r.name, w.name, err)
				}
				at := cell{r.name, w.name}
				b.report.samples[at] = append(b.report.samples[at], s)
				fmt.Fprintf(b.progress, "round %d of %d, %s, %s: %.2f µs\n", n+1, b.plan.rounds, w.name, r.name, s.price())
			}
		}
	}
	return nil
}

// sample makes one measurement.
func (b *bench) sample(ctx context.Context, r *running, w workload) (sample, error) {
	p := r.procs[w.name]
	idle, err := idleTime(b.server)
	if err != nil {
		return sample{}, err
	}
	before, err := read(p.Pid())
	if err != nil {
		return sample{}, err
	}
	asked := b.upstream.asked.Load()
	o, err := load{server: p.port, file: b.files[w.name], length: b.length}.run(ctx, b.load)
	if err != nil {
		return sample{}, err
	}
	after, err := read(p.Pid())
	if err != nil {
		return sample{}, err
	}
	idleAfter, err := idleTime(b.server)
	if err != nil {
		return sample{}, err
	}
	if err := o.check(dns.RcodeToString[w.rcode]); err != nil {
		return sample{}, err
	}
	s := sample{
		outcome: o, cpu: after.cpu - before.cpu, idle: idleAfter - idle, rss: after.rss,
		misses: b.upstream.asked.Load() - asked,
		// Threads that ended take their count with them.
		switches: after.switches - min(after.switches, before.switches),
	}
	kernel := after.kernel - before.kernel
	if ticks := kernel + after.user - before.user; ticks > 0 {
		s.kernel = float64(kernel) / float64(ticks)
	}
	return s, nil
}

// close ends what is up, in the reverse order, and unpins this process.
func (b *bench) close() {
	for _, r := range slices.Backward(b.running) {
		r.stop()
	}
	if b.api != nil {
		b.api.Close()
	}
	if b.upstream != nil {
		b.upstream.close()
	}
	if b.settled {
		// The threads were allowed on these cores before.
		_ = settle(slices.Concat(b.server, b.load))
	}
}
