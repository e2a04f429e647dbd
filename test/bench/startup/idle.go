package startup

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
)

// Idle is what a process did while it got no queries.
type Idle struct {
	Elapsed, CPU time.Duration
	// Wakeups counts how often its threads began to run: each voluntary and involuntary context switch
	// ends a run.
	Wakeups uint64
	// RSS is its resident memory in bytes.
	RSS uint64
}

// idleSettle is the time from the first answer to the first measurement. What a start leaves for later,
// such as lists of the cluster and memory to return to the kernel, is done by then.
const idleSettle = 10 * time.Second

// idleLength is the length of a measurement of idle processes in a plan with measurements of this length.
// By default it is ten seconds, because an agent has tasks that it repeats every five.
func idleLength(length time.Duration) time.Duration { return 5 * length }

// idleProcess is a row that runs.
type idleProcess struct {
	row
	process
	at     time.Time // of before
	before machine.ProcStat
}

// measureIdle starts the rows on all cores, as on a node, and measures all of them at the same time, in
// each round.
func (r *run) measureIdle(ctx context.Context) error {
	var running []*idleProcess
	defer func() {
		for _, p := range running {
			p.Stop()
		}
	}()
	for _, w := range r.rows() {
		if !w.idle {
			continue
		}
		p, err := r.start(w, slices.Concat(r.ServerCores, r.LoadCores))
		if err != nil {
			return err
		}
		running = append(running, &idleProcess{row: w, process: p})
		if _, err := r.question(w).await(ctx, p); err != nil {
			return p.explain(w, err)
		}
	}
	if len(running) == 0 {
		return nil
	}
	if err := harness.Sleep(ctx, r.Wait(idleSettle)); err != nil {
		return err
	}
	for n := range r.Plan.Rounds {
		if err := r.idleRound(ctx, n, running); err != nil {
			return err
		}
	}
	return nil
}

// idleRound measures all processes once.
func (r *run) idleRound(ctx context.Context, n int, running []*idleProcess) (err error) {
	for _, p := range running {
		p.at = time.Now()
		if p.before, err = machine.ReadProcStat(p.PID()); err != nil {
			return p.explain(p.row, err)
		}
	}
	if err := harness.Sleep(ctx, idleLength(r.Plan.Length)); err != nil {
		return err
	}
	for _, p := range running {
		elapsed := time.Since(p.at)
		after, err := machine.ReadProcStat(p.PID())
		if err != nil {
			return p.explain(p.row, err)
		}
		switches := after.Switches + after.Preemptions
		// Threads that ended take their count with them.
		i := Idle{
			Elapsed: elapsed, CPU: after.CPU - p.before.CPU, RSS: after.RSS,
			Wakeups: switches - min(switches, p.before.Switches+p.before.Preemptions),
		}
		r.out.Idles[p.cell()] = append(r.out.Idles[p.cell()], i)
		fmt.Fprintf(r.Progress, "round %d of %d, %s, %s, idle: %.1f wake-ups/s, %.0f µs of CPU/s\n",
			n+1, r.Plan.Rounds, p.setting.name, p.Name, i.wakeupsPerSecond(), i.cpuPerSecond())
	}
	return nil
}
