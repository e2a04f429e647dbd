package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

// clusterRun is what one process did in a large cluster from its start to its end.
type clusterRun struct {
	// sync is the time from the start until it is ready and answers for every
	// namespace in use.
	sync time.Duration
	// rss is its memory once that has come to rest, and peak the most until then, in
	// bytes.
	rss, peak uint64
	// watches is how many it has open.
	watches float64
	// first are the bytes between it and the API server until it was synced, and
	// changed those while changes slices changed.
	first, changed wiretap.Count
	changes        int
	// delays are the times from the API server's word that a change is made to the
	// answer that shows it, and whole those from asking the API server for it, both
	// in ascending order. Of the changes, unseen did not show in time, and rate is
	// how many there were a second.
	delays, whole []time.Duration
	unseen        int
	rate          float64
}

func (s clusterRun) memory() float64        { return figures.Mebi(s.rss) }
func (s clusterRun) peakMemory() float64    { return figures.Mebi(s.peak) }
func (s clusterRun) growth() float64        { return float64(s.peak) / float64(s.rss) }
func (s clusterRun) syncSeconds() float64   { return s.sync.Seconds() }
func (s clusterRun) firstReceived() float64 { return figures.Kibi(s.first.Received) }
func (s clusterRun) firstSent() float64     { return figures.Kibi(s.first.Sent) }

// changeReceived is what it received for a thousand changes, in KiB.
func (s clusterRun) changeReceived() float64 {
	return figures.Kibi(s.changed.Received) * 1000 / float64(s.changes)
}

func (s clusterRun) p99() float64          { return figures.Millis(figures.Percentile(s.delays, 0.99)) }
func (s clusterRun) p50() float64          { return figures.Millis(figures.Percentile(s.delays, 0.5)) }
func (s clusterRun) p99WithWrite() float64 { return figures.Millis(figures.Percentile(s.whole, 0.99)) }

func (s clusterRun) String() string {
	return fmt.Sprintf("synced in %.1f s, %.1f MiB, at most %.1f, %.0f watches, %.0f KiB first, %.0f KiB for 1,000 changes, change to answer p50 %.1f, p99 %.1f ms (%d unseen, %.0f a second)",
		s.syncSeconds(), s.memory(), s.peakMemory(), s.watches, s.firstReceived(), s.changeReceived(), s.p50(), s.p99(), s.unseen, s.rate)
}

// setup is what a run needs: the cluster, and its state without an agent.
type setup struct {
	*run
	gauge apiserverMetrics
	// before is how many watches the API server has of its own.
	before float64
	// usedServices are the Services of the namespaces that the node uses.
	usedServices []apiobjects.Service
}

func newSetup(ctx context.Context, b *run) (*setup, error) {
	client, err := b.API.Client()
	if err != nil {
		return nil, err
	}
	h := &setup{run: b, gauge: apiserverMetrics{client, b.Plan}}
	uses := b.world.Uses(0)
	for _, s := range b.world.Services() {
		if slices.Contains(uses, s.Namespace) {
			h.usedServices = append(h.usedServices, s)
		}
	}
	h.before, err = h.gauge.settledWatches(ctx)
	return h, err
}

// memorySettles is when a process's memory stays within a hundredth for three
// seconds: what a start leaves behind is given back by then, or stays.
var memorySettles = settleRule{every: 250 * time.Millisecond, samples: 12, part: 0.01, limit: 30 * time.Second}

// measure starts the server, measures it and ends it.
func (h *setup) measure(ctx context.Context, s harness.Server) (st clusterRun, err error) {
	file := filepath.Join(h.Dir, "tapped.kubeconfig")
	t, err := openTap(h.API, file)
	if err != nil {
		return st, err
	}
	defer t.Close()
	h.Kubeconfig = file
	start := time.Now()
	r, err := h.Start(ctx, s, false)
	if err != nil {
		return st, err
	}
	defer r.Stop()
	if err := h.awaitSynced(ctx, r.Any()); err != nil {
		return st, err
	}
	st.sync = time.Since(start)
	for _, part := range []func(context.Context, *harness.RunningServer, *wiretap.Tap, *clusterRun) error{h.measureSettled, h.measureChanges, h.measureDelays, h.measureQueries} {
		if err := part(ctx, r, t, &st); err != nil {
			return st, r.Explain(err)
		}
	}
	return st, nil
}

// awaitSynced waits until the process says that it is ready, and answers for a headless
// Service of every namespace that the node uses.
func (h *setup) awaitSynced(ctx context.Context, p harness.Process) error {
	if err := harness.Ready(ctx, p); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, s := range h.usedServices {
		if !s.Headless || seen[s.Namespace] {
			continue
		}
		seen[s.Namespace] = true
		q := harness.QuerySet{Names: []string{s.Member(0)}, Qtype: dns.TypeA}
		err := p.Await(ctx, "an answer for "+s.Host(), func(context.Context) error {
			answer, err := harness.Exchange(p.Port, q)
			if err == nil && harness.ParseHeader(answer).Answers == 0 {
				err = fmt.Errorf("rcode %d and no answer", harness.ParseHeader(answer).Rcode)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// measureSettled measures what there is after the first list.
func (h *setup) measureSettled(ctx context.Context, r *harness.RunningServer, t *wiretap.Tap, st *clusterRun) error {
	open, err := h.gauge.settledWatches(ctx)
	if err != nil {
		return err
	}
	st.watches = open - h.before
	if st.first, err = awaitQuiet(ctx, h.Plan, t); err != nil {
		return err
	}
	var now machine.ProcStat
	_, err = memorySettles.of(h.Plan).await(ctx, func() (float64, error) {
		now, err = machine.ReadProcStat(r.Any().PID())
		return float64(now.RSS), err
	})
	st.rss, st.peak = now.RSS, now.Peak
	return err
}

// measureChanges counts the bytes while slices change.
func (h *setup) measureChanges(ctx context.Context, r *harness.RunningServer, t *wiretap.Tap, st *clusterRun) error {
	st.changes = h.Number(h.size.changes())
	before := t.Read()
	if err := h.world.ChangeSlices(ctx, st.changes, 0); err != nil {
		return err
	}
	after, err := awaitQuiet(ctx, h.Plan, t)
	st.changed = after.Sub(before)
	return err
}

// measureQueries measures what the answers cost.
func (h *setup) measureQueries(ctx context.Context, r *harness.RunningServer, _ *wiretap.Tap, _ *clusterRun) error {
	if len(h.Workloads) == 0 {
		return nil
	}
	if err := h.pinAll(h.LoadCores); err != nil {
		return err
	}
	for _, w := range h.Workloads {
		s, err := h.Sample(ctx, r, w)
		if err != nil {
			return fmt.Errorf("with %s: %w", w.Name, err)
		}
		at := harness.Cell{Server: r.Name, Workload: w.Name}
		h.Report.Samples[at] = append(h.Report.Samples[at], s)
		fmt.Fprintf(h.Progress, "%s, %s: %s\n", w.Name, r.Name, s)
	}
	return h.pinAll(slices.Concat(h.ServerCores, h.LoadCores))
}
