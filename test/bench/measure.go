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
	// section is the flag of the section that is measured, with its options; empty is the main
	// part of the page.
	section string
	// before is the commit whose agent is measured beside this tree's; empty is none.
	before string
	// cluster includes the questions that take an API server.
	cluster bool
	// only is the choice of workloads and servers; empty is all.
	only filter
	// progress gets a line for each measurement.
	progress io.Writer
}

// Run is a run: what is up while it lasts.
type Run struct {
	plan
	rows                   []server // those to measure, unless they are left out
	dir                    string
	serverCores, loadCores cores
	settled                bool // this process is pinned to load
	ownClient              bool // the section does not use dnsperf
	loop                   *loadgen.Loop
	stream                 *dns.Server // the upstream over TCP
	api                    *apiserver.Server
	kubeconfig             string // empty without an API server
	binaries               map[string]string
	workloads              []workload
	files                  map[string]string // data files by set
	lengths                map[string]int    // of an answer, by set
	fresh                  uint32            // the next new name
	running                []*runningServer
	report                 *report
}

// New makes a run of which nothing is up yet; the caller calls close.
func New(p plan, rows []server) (*Run, error) {
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return nil, err
	}
	return &Run{
		plan: p, rows: rows, dir: dir,
		binaries: map[string]string{}, files: map[string]string{}, lengths: map[string]int{},
		report: &report{plan: p, date: time.Now(), samples: map[cell][]sample{}},
	}, nil
}

// build finds every binary, as long as all cores may be used for that.
func (b *Run) build(ctx context.Context) error {
	var err error
	if b.serverCores, b.loadCores, err = splitCores(); err != nil {
		return err
	}
	b.report.facts = describeMachine()
	if err := b.findDnsperf(ctx); err != nil {
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
		if err := b.findBinary(ctx, s); err != nil {
			return err
		}
	}
	if len(b.report.servers) == 0 {
		return errors.New("no server is left to measure")
	}
	if first := b.report.servers[0]; programs[first.program].perSet {
		return fmt.Errorf("%s makes its answers as long as those of the row before it: choose %s as well", first.name, "nodens")
	}
	b.report.commit = commit()
	b.report.loadBefore = loadAverage()
	b.report.fact("pinning", fmt.Sprintf("server on %s, load generator and upstream on %s", b.serverCores.list(), b.loadCores.list()))
	return nil
}

// findBinary finds the server's binary and makes the server a row, or notes that there
// is none.
func (b *Run) findBinary(ctx context.Context, s server) error {
	p := programs[s.program]
	if b.binaries[s.binary()] == "" {
		find := p.find
		if s.commit != "" {
			find = func(ctx context.Context, _ string) (string, error) { return peer.EarlierBinary(ctx, s.commit) }
		}
		path, err := find(ctx, b.dir)
		if errors.Is(err, errAbsent) {
			b.omit(s, err)
			return nil
		}
		if err != nil {
			return err
		}
		b.binaries[s.binary()] = path
		if release := p.versionLine(ctx, path); release != "" {
			b.report.fact(strings.TrimSpace(s.program+" "+s.commit), release)
		}
	}
	b.report.servers = append(b.report.servers, s)
	return nil
}

// omit notes why there is no row of the server.
func (b *Run) omit(s server, err error) {
	b.report.notes = append(b.report.notes, fmt.Sprintf("The row %s is left out: %v.", s.name, err))
}

// findDnsperf looks for the load generator.
func (b *Run) findDnsperf(ctx context.Context) error {
	if b.ownClient {
		return nil
	}
	if _, err := exec.LookPath("dnsperf"); err != nil {
		return errNoDnsperf
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

// writeQueries writes the questions of all sets.
func (b *Run) writeQueries() error {
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
func (b *Run) sets() []querySet {
	list := querySets[:1:1]
	for _, w := range b.workloads {
		if !slices.ContainsFunc(list, func(q querySet) bool { return q.name == w.querySet.name }) {
			list = append(list, w.querySet)
		}
	}
	return list
}

// errStart says why a program that is there has no row.
var errStart = errors.New("it does not start")

// close ends what is up, in the reverse order, unpins this process and removes the
// files.
func (b *Run) close() {
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
		_ = pinSelf(slices.Concat(b.serverCores, b.loadCores))
	}
	os.RemoveAll(b.dir)
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

// settleBesideServers leaves the servers' core to them.
func (b *Run) settleBesideServers(context.Context) error {
	b.settled = true
	if err := pinSelf(b.loadCores); err != nil {
		return err
	}
	var err error
	b.loop, b.stream, err = startUpstream()
	return err
}

// sleep returns after the time, or earlier if the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
