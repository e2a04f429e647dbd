// Package harness is what all sections of the benchmarks share.
//
// A [Run] holds what is up during a run: binaries, the load generator with the upstream, an API
// server, and servers pinned to one core. A [Server] is a row of a table: a program with a
// configuration. A [Workload] is a set of queries and how they are sent, and a [Sample] is one
// measurement of it. A [Report] collects samples. A [Target] compares values of a report with a
// limit. A [Section] is the result of a run, which replaces its own pages in docs/benchmarks.
//
// To add a server, add a row to programs (program.go), a file to conf, and a row to the servers
// of a section. To add a workload, add a row to querySets or loadShapes (workload.go).
package harness

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
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// Plan says what to measure.
type Plan struct {
	Rounds int
	// Length is that of one measurement.
	Length time.Duration
	// Names is how many names a cache is filled with to see what they take.
	Names int
	// Section is the flag of the section that is measured, with its options; empty is the main
	// part of the page.
	Section string
	// Before is the commit whose agent is measured beside this tree's; empty is none.
	Before string
	// Cluster includes the questions that take an API server.
	Cluster bool
	// Only is the choice of workloads and servers; empty is all.
	Only filter
	// Short is for tests, which look at counts and not at figures: few queries in place of a time,
	// few names, low rates and short waits; servers run side by side or for several measurements.
	Short bool
	// Progress gets a line for each measurement.
	Progress io.Writer
}

// Run is a run: what is up while it lasts.
type Run struct {
	Plan
	Rows                   []Server // those to measure, unless they are left out
	Dir                    string
	ServerCores, LoadCores machine.Cores
	Settled                bool // this process is pinned to load
	OwnClient              bool // the section does not use dnsperf
	Loop                   *load.Loop
	Stream                 *dns.Server // the upstream over TCP
	API                    *apiserver.Server
	Kubeconfig             string // empty without an API server
	Workloads              []Workload
	binaries               map[string]string // paths, see BinaryOf
	files                  map[string]string // data files by set
	Lengths                map[string]int    // of an answer, by set
	Fresh                  uint32            // the next new name
	ports                  portSet
	Running                []*RunningServer
	Report                 *Report
}

// New makes a run of which nothing is up yet; the caller calls close.
func New(p Plan, rows []Server) (*Run, error) {
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return nil, err
	}
	return &Run{
		Plan: p, Rows: rows, Dir: dir,
		binaries: map[string]string{}, files: map[string]string{}, Lengths: map[string]int{},
		Report: &Report{Plan: p, Date: time.Now(), Samples: Results[Sample]{}},
	}, nil
}

// Build finds every binary, as long as all cores may be used for that.
func (b *Run) Build(ctx context.Context) error {
	var err error
	if b.ServerCores, b.LoadCores, err = machine.SplitCores(); err != nil {
		return err
	}
	b.Report.Facts = machine.Describe()
	if err := b.findDnsperf(ctx); err != nil {
		return err
	}
	if b.Cluster {
		if err := prepare(ctx, b.Dir); err != nil {
			return err
		}
	}
	for _, s := range b.Rows {
		if !b.Only.Server(s) {
			continue
		}
		if err := b.FindBinary(ctx, s); err != nil {
			return err
		}
	}
	if len(b.Report.Servers) == 0 {
		return errors.New("no server is left to measure")
	}
	if first := b.Report.Servers[0]; Programs[first.Program].PerSet {
		return fmt.Errorf("%s makes its answers as long as those of the row before it: choose %s as well", first.Name, "nodens")
	}
	b.Report.Commit = Commit()
	b.Report.LoadBefore = machine.LoadAverage()
	b.Report.Fact("pinning", fmt.Sprintf("server on %s, load generator and upstream on %s", b.ServerCores.List(), b.LoadCores.List()))
	return nil
}

// FindBinary finds the server's binary and makes the server a row, or notes that there
// is none.
func (b *Run) FindBinary(ctx context.Context, s Server) error {
	p := Programs[s.Program]
	if b.BinaryOf(s) == "" {
		find := p.Find
		if s.commit != "" {
			find = func(ctx context.Context, _ string) (string, error) { return peer.EarlierBinary(ctx, s.commit) }
		}
		path, err := find(ctx, b.Dir)
		if errors.Is(err, ErrAbsent) {
			b.Omit(s, err)
			return nil
		}
		if err != nil {
			return err
		}
		if err := machine.DropPageCache(path); err != nil {
			return err
		}
		b.binaries[s.binary()] = path
		if release := p.versionLine(ctx, path); release != "" {
			b.Report.Fact(strings.TrimSpace(s.Program+" "+s.commit), release)
		}
	}
	b.Report.Servers = append(b.Report.Servers, s)
	return nil
}

// BinaryOf returns the path of the server's binary; "" if it was not looked for, or not found.
func (b *Run) BinaryOf(s Server) string { return b.binaries[s.binary()] }

// FindControl finds the binary of a server that is no row of the report.
func (b *Run) FindControl(ctx context.Context, s Server) (err error) {
	if b.binaries[s.binary()], err = Programs[s.Program].Find(ctx, b.Dir); err != nil {
		return fmt.Errorf("the control: %w", err)
	}
	return nil
}

// Omit notes why there is no row of the server.
func (b *Run) Omit(s Server, err error) {
	b.Report.Notes = append(b.Report.Notes, fmt.Sprintf("The row %s is left out: %v.", s.Name, err))
}

// findDnsperf looks for the load generator.
func (b *Run) findDnsperf(ctx context.Context) error {
	if b.OwnClient {
		return nil
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		return ErrNoDnsperf
	}
	// It states its version and then complains about nothing to do.
	text, _ := exec.CommandContext(ctx, "dnsperf", "-h").CombinedOutput()
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "Version "); ok {
			b.Report.Fact("dnsperf", strings.TrimSpace(v))
		}
	}
	return nil
}

// WriteQueries writes the questions of all sets.
func (b *Run) WriteQueries() error {
	for _, q := range b.sets() {
		var err error
		if b.files[q.Name], err = q.write(b.Dir); err != nil {
			return err
		}
	}
	b.Report.Workloads = b.Workloads
	return nil
}

// sets are the questions of all workloads. Each comes once, and the first of all
// comes anyhow: by it a server shows that it is there.
func (b *Run) sets() []QuerySet {
	list := []QuerySet{b.sizedSet(QuerySets[0])}
	for _, w := range b.Workloads {
		if !slices.ContainsFunc(list, func(q QuerySet) bool { return q.Name == w.QuerySet.Name }) {
			list = append(list, w.QuerySet)
		}
	}
	return list
}

// ErrStart says why a program that is there has no row.
var ErrStart = errors.New("it does not start")

// Close ends what is up, in the reverse order, unpins this process and removes the
// files.
func (b *Run) Close() {
	for _, r := range slices.Backward(b.Running) {
		r.Stop()
	}
	if b.API != nil {
		b.API.Close()
	}
	if b.Stream != nil {
		_ = b.Stream.Shutdown()
	}
	if b.Loop != nil {
		b.Loop.Close()
	}
	if b.Settled {
		// The threads were allowed on these cores before.
		_ = machine.PinSelf(slices.Concat(b.ServerCores, b.LoadCores))
	}
	os.RemoveAll(b.Dir)
}

// prepare builds what a cluster takes while all cores may still be used.
func prepare(ctx context.Context, dir string) error {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := peer.Binary(ctx, name, dir); err != nil {
			return err
		}
	}
	return nil
}

// Choose makes those of the workloads that the plan includes the run's, as long as the form of the run has them.
func (b *Run) Choose(list []Workload) {
	for _, w := range b.Sized(list) {
		if (b.Plan.Cluster || !w.Cluster) && b.Only.Workload(w) {
			b.Workloads = append(b.Workloads, w)
		}
	}
}

// Steps calls the steps until one fails, and then notes the load of the machine.
func (b *Run) Steps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	b.Report.NoteLoad()
	return nil
}

// Add adds a sample of a round, and writes a line about it.
func (b *Run) Add(at Cell, round int, s Sample, text any) {
	b.Report.Samples[at] = append(b.Report.Samples[at], s)
	fmt.Fprintf(b.Progress, "round %d of %d, %s, %s: %s\n", round+1, b.Plan.Rounds, at.Workload, at.Server, text)
}

// SettleBesideServers leaves the servers' core to them.
func (b *Run) SettleBesideServers(context.Context) error {
	b.Settled = true
	if err := machine.PinSelf(b.LoadCores); err != nil {
		return err
	}
	var err error
	b.Loop, b.Stream, err = StartUpstream()
	return err
}

// Sleep returns after the time, or earlier if the context ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
