// Package startup measures the section about starting and stopping: the time from the start of a
// process to its first correct answer, the time from SIGTERM to its end, and the CPU time and
// wake-ups of an idle process.
//
// The API server is a scripted one with ten thousand Services, in this process. It encodes each object
// once, before the first round that counts. A client sends queries all the time while a process starts
// (see [question.await]).
package startup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// nodens is the row of this tree's agent.
const nodens = "nodens"

// servers are the rows.
var servers = []harness.Server{
	{Name: nodens, Program: "nodens", Env: []string{"NODE_NAME=" + apiobjects.Node(0), "NODE_ZONE=" + apiobjects.Zone(0)}},
	{Name: harness.CoreDNS, Program: "coredns"},
}

// setting is a configuration that servers are started with.
type setting struct {
	name string
	// bare is a Corefile with `forward` and `cache` alone, without the manifest's other directives and flags.
	bare bool
	// lameduck is the option of `health`.
	lameduck time.Duration
	// cluster adds the cluster's zone, scope is an option of its kubernetes directive, and saved says
	// that a view is saved and read.
	cluster bool
	scope   string
	saved   bool
	// coredns says that CoreDNS is started with it, too.
	coredns bool
	// idle says that idle processes are measured with it.
	idle bool
}

// The names that targets are about.
const (
	forwardOnly   = "forward only"
	scopeNode     = "cluster"
	scopeNodeView = "cluster, saved view"
	scopeAll      = "scope cluster"
	scopeAllView  = "scope cluster, saved view"
)

// maxLameduck is the longest lameduck that an agent uses, which the overlay for Cilium sets.
const maxLameduck = 2 * time.Second

// settings are the configurations that the tables list, in this order.
var settings = []setting{
	{name: forwardOnly, coredns: true, idle: true},
	{name: "forward only, bare", bare: true, coredns: true},
	{name: "forward only, lameduck", lameduck: maxLameduck, coredns: true},
	{name: scopeNode, cluster: true, coredns: true, idle: true},
	{name: scopeNodeView, cluster: true, saved: true},
	{name: scopeAll, cluster: true, scope: "scope cluster"},
	{name: scopeAllView, cluster: true, scope: "scope cluster", saved: true},
}

// row is a server with a setting.
type row struct {
	harness.Server
	setting
	// view is the path of the saved view; empty: the setting has none.
	view string
}

func (w row) cell() harness.Cell { return harness.Cell{Server: w.Name, Workload: w.setting.name} }

// run measures.
type run struct {
	*harness.Run
	out      *Report
	cluster  *cluster
	upstream *fakedns.Server
	mu       sync.Mutex // guards out and Progress: in the short form rows are measured side by side
}

// upstreamName is a name of the upstream, and upstreamAddr its address.
const (
	upstreamName = "name.bench.example."
	upstreamAddr = "192.0.2.1"
)

// Measure measures all settings. It stops everything that it started before it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	b, err := harness.New(p, p.WithBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.OwnClient, b.Cluster = true, false // the API server needs no build
	r := &run{Run: b, out: newReport(b.Report)}
	defer r.close()
	return r.out, b.Steps(ctx, b.Build, r.open, r.measureStarts, r.measureIdle)
}

// open leaves the servers' core to them, and starts the upstream and the API server.
func (r *run) open(context.Context) (err error) {
	r.Settled = true
	if err := machine.PinSelf(r.LoadCores); err != nil {
		return err
	}
	r.upstream, err = fakedns.Open(fakedns.Answers(func(q *dns.Msg) *dns.Msg {
		return fakedns.Address(q, 3600, upstreamAddr) // nothing expires in a measurement
	}), fakedns.Options{})
	if err != nil {
		return err
	}
	r.cluster, err = openCluster(r.Dir, apiobjects.LargeCluster(r.services()))
	if err == nil {
		r.Report.Fact("the cluster", fmt.Sprintf("%d Services with %d endpoints", r.cluster.services, r.cluster.endpoints))
	}
	return err
}

func (r *run) close() {
	if r.upstream != nil {
		r.upstream.Close()
	}
	if r.cluster != nil {
		r.cluster.Close()
	}
}

// services is the number of Services, without those of ten endpoints.
func (r *run) services() int {
	if r.Plan.Short {
		return 100
	}
	return 10000
}

// rows are the rows that are measured.
func (r *run) rows() (list []row) {
	for _, c := range settings {
		for _, s := range r.Report.Servers {
			if !r.Only.MatchesName(c.name) || s.Program == "coredns" && !c.coredns {
				continue
			}
			w := row{Server: s, setting: c}
			if c.saved {
				w.view = r.Dir + fmt.Sprintf("/view-%d", len(list))
			}
			w.lameduck = r.Wait(c.lameduck)
			list = append(list, w)
		}
	}
	return list
}

// Start is one start and stop of a process.
type Start struct {
	// Answer is the time from the start of the process to its first correct answer, and CPU its CPU
	// time until then.
	Answer, CPU time.Duration
	// Others counts the replies before that were something else.
	Others int
	// Stop is the time from SIGTERM to the end of the process.
	Stop time.Duration
}

// measureStarts starts and stops all rows in turn; the order changes from round to round. The first
// round does not count: it reads the programs from disk, has the API server encode its objects, and
// saves the views.
func (r *run) measureStarts(ctx context.Context) error {
	rows := r.rows()
	for n := range r.Plan.Rounds + 1 {
		var list []func() error
		for _, w := range rows {
			if r.Short && n == 0 && !w.saved {
				continue
			}
			list = append(list, func() error {
				s, err := r.measureHandled(ctx, w, n > 0)
				if err == nil && n > 0 {
					r.add(w, n, s)
				}
				return err
			})
		}
		if err := r.RunAll(list); err != nil {
			return err
		}
		slices.Reverse(rows)
	}
	return nil
}

func (r *run) add(w row, round int, s Start) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Starts[w.cell()] = append(r.out.Starts[w.cell()], s)
	fmt.Fprintf(r.Progress, "round %d of %d, %s, %s: first answer after %.1f ms and %.1f ms of CPU, stopped in %.1f ms\n",
		round, r.Plan.Rounds, w.setting.name, w.Name, s.answerMillis(), s.cpuMillis(), s.stopMillis())
}

const (
	// settleTime is the time from the first answer to SIGTERM. An agent that starts from a saved view
	// has the cluster's lists by then.
	settleTime = time.Second
	// stopLimit is the time that a process has to end.
	stopLimit = time.Minute
	// maxTries is how often a CoreDNS is started that does not listen to signals yet when it is stopped.
	maxTries = 10
)

// errUnhandled says that SIGTERM has ended a process that did not handle it. CoreDNS answers before it listens to signals.
var errUnhandled = errors.New("SIGTERM was not handled")

// measureHandled is measureStart, again if the process did not handle SIGTERM yet.
func (r *run) measureHandled(ctx context.Context, w row, restored bool) (s Start, err error) {
	for range maxTries {
		if s, err = r.measureStart(ctx, w, restored); !errors.Is(err, errUnhandled) {
			break
		}
	}
	return s, err
}

// measureStart starts and stops the row once. With restored a row with a saved view must start from it;
// else its view must be complete, so that the stop saves it.
func (r *run) measureStart(ctx context.Context, w row, restored bool) (s Start, err error) {
	p, err := r.start(w, r.ServerCores)
	if err != nil {
		return s, err
	}
	defer p.Stop()
	answer, err := r.question(w).await(ctx, p)
	if err != nil {
		return s, p.explain(w, err)
	}
	s.Answer, s.Others = answer.at.Sub(p.began), answer.others
	if s.CPU, err = machine.CPUClock(p.PID()); err != nil {
		return s, p.explain(w, err)
	}
	if err := p.awaitView(ctx, w, restored); err != nil {
		return s, err
	}
	if err := harness.Sleep(ctx, r.Wait(settleTime)); err != nil {
		return s, err
	}
	if s.Stop, err = p.end(ctx, w); err != nil {
		return s, p.explain(w, err)
	}
	if w.saved {
		_, err = os.Stat(w.view)
	}
	return s, err
}

// awaitView waits until the log says that the row's view, if it is saved, is restored or complete.
func (p process) awaitView(ctx context.Context, w row, restored bool) error {
	line := "view synced"
	switch {
	case !w.saved:
		return nil
	case restored:
		line = "saved view restored"
	}
	return p.Await(ctx, "the log line "+line, func(context.Context) error {
		if !strings.Contains(p.Tail(), line) {
			return errors.New("it is not in the log")
		}
		return nil
	})
}

// endedBySIGTERM reports whether err says that the signal has ended a process that did not handle it.
func endedBySIGTERM(err error) bool {
	exit := new(exec.ExitError)
	return errors.As(err, &exit) && exit.Sys() == syscall.WaitStatus(syscall.SIGTERM)
}

// end sends SIGTERM, waits until the process has ended, and returns how long that took.
func (p process) end(ctx context.Context, w row) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	began := time.Now()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-p.Done():
		err := p.Err()
		if w.Name != nodens && endedBySIGTERM(err) {
			err = errUnhandled
		}
		return time.Since(began), err
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for the end: %w", ctx.Err())
	}
}

// explain adds the row and the process's last words to an error.
func (p process) explain(w row, err error) error {
	return fmt.Errorf("%s, %s: %w; it wrote:\n%s", w.Name, w.setting.name, err, p.Tail())
}

// ports returns n ports of 127.0.0.1.
func ports(n int) ([]harness.Port, error) {
	list := make([]harness.Port, n)
	for i := range list {
		port, err := peer.Port()
		if err != nil {
			return nil, err
		}
		list[i] = harness.Port(port)
	}
	return list, nil
}
