package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/tap"
	"github.com/nodens-dns/nodens/test/bench/world"
)

// stay is what one process did in a large cluster from its start to its end.
type stay struct {
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
	first, changed tap.Count
	changes        int
	// delays are the times from the API server's word that a change is made to the
	// answer that shows it, and whole those from asking the API server for it, both
	// in ascending order. Of the changes, unseen did not show in time, and rate is
	// how many there were a second.
	delays, whole []time.Duration
	unseen        int
	rate          float64
}

func (s stay) resident() float64  { return mebi(s.rss) }
func (s stay) most() float64      { return mebi(s.peak) }
func (s stay) growth() float64    { return float64(s.peak) / float64(s.rss) }
func (s stay) synced() float64    { return s.sync.Seconds() }
func (s stay) initial() float64   { return kibi(s.first.Received) }
func (s stay) sentFirst() float64 { return kibi(s.first.Sent) }

// news is what it received for a thousand changes, in KiB.
func (s stay) news() float64 { return kibi(s.changed.Received) * 1000 / float64(s.changes) }

func (s stay) late() float64  { return millis(percentile(s.delays, 0.99)) }
func (s stay) usual() float64 { return millis(percentile(s.delays, 0.5)) }
func (s stay) all() float64   { return millis(percentile(s.whole, 0.99)) }

func kibi(bytes uint64) float64      { return float64(bytes) / (1 << 10) }
func millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func (s stay) String() string {
	return fmt.Sprintf("synced in %.1f s, %.1f MiB, at most %.1f, %.0f watches, %.0f KiB first, %.0f KiB for 1,000 changes, change to answer p50 %.1f, p99 %.1f ms (%d unseen, %.0f a second)",
		s.synced(), s.resident(), s.most(), s.watches, s.initial(), s.news(), s.usual(), s.late(), s.unseen, s.rate)
}

// host is what a stay takes: the cluster, and what it looks like with nobody in it.
type host struct {
	*bench
	world *world.World
	gauge gauge
	// before is how many watches the API server has of its own.
	before float64
	// used are the Services of the namespaces that the node uses.
	used []world.Service
}

func newHost(ctx context.Context, b *bench, w *world.World) (*host, error) {
	client, err := b.api.Client()
	if err != nil {
		return nil, err
	}
	h := &host{bench: b, world: w, gauge: gauge{client}}
	uses := w.Uses(0)
	for _, s := range w.Services() {
		if slices.Contains(uses, s.Namespace) {
			h.used = append(h.used, s)
		}
	}
	h.before, err = h.gauge.settled(ctx)
	return h, err
}

// steadyMemory is when a process's memory stays within a hundredth for three
// seconds: what a start leaves behind is given back by then, or stays.
var steadyMemory = calm{every: 250 * time.Millisecond, looks: 12, part: 0.01, limit: 30 * time.Second}

// stay starts the server, measures it and ends it.
func (h *host) stay(ctx context.Context, s server) (st stay, err error) {
	file := filepath.Join(h.dir, "tapped.kubeconfig")
	t, err := tapped(h.api, file)
	if err != nil {
		return st, err
	}
	defer t.Close()
	h.kubeconfig = file
	start := time.Now()
	r, err := h.start(ctx, s, false)
	if err != nil {
		return st, err
	}
	defer r.stop()
	if err := h.synced(ctx, r.any()); err != nil {
		return st, err
	}
	st.sync = time.Since(start)
	for _, part := range []func(context.Context, *running, *tap.Tap, *stay) error{h.settled, h.changed, h.delayed, h.asked} {
		if err := part(ctx, r, t, &st); err != nil {
			return st, r.explain(err)
		}
	}
	return st, nil
}

// synced waits until the process says that it is ready, and answers for a headless
// Service of every namespace that the node uses.
func (h *host) synced(ctx context.Context, p process) error {
	if err := ready(ctx, p); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, s := range h.used {
		if !s.Headless || seen[s.Namespace] {
			continue
		}
		seen[s.Namespace] = true
		q := questions{names: []string{s.Member(0)}, qtype: dns.TypeA}
		err := p.Await(ctx, "an answer for "+s.Host(), func(context.Context) error {
			answer, err := ask(p.port, q)
			if err == nil && header(answer).answers == 0 {
				err = fmt.Errorf("rcode %d and no answer", header(answer).rcode)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settled measures what there is after the first list.
func (h *host) settled(ctx context.Context, r *running, t *tap.Tap, st *stay) error {
	open, err := h.gauge.settled(ctx)
	if err != nil {
		return err
	}
	st.watches = open - h.before
	if st.first, err = quietly(ctx, t); err != nil {
		return err
	}
	var now reading
	_, err = steadyMemory.await(ctx, func() (float64, error) {
		now, err = read(r.any().Pid())
		return float64(now.rss), err
	})
	st.rss, st.peak = now.rss, now.peak
	return err
}

// changed counts the bytes while slices change.
func (h *host) changed(ctx context.Context, r *running, t *tap.Tap, st *stay) error {
	st.changes = h.scale.changes()
	before := t.Read()
	if err := h.world.Shake(ctx, st.changes, 0); err != nil {
		return err
	}
	after, err := quietly(ctx, t)
	st.changed = after.Sub(before)
	return err
}

// asked measures what the answers cost.
func (h *host) asked(ctx context.Context, r *running, _ *tap.Tap, _ *stay) error {
	if len(h.workloads) == 0 {
		return nil
	}
	if err := h.gather(h.load); err != nil {
		return err
	}
	for _, w := range h.workloads {
		s, err := h.sample(ctx, r, w)
		if err != nil {
			return fmt.Errorf("with %s: %w", w.name, err)
		}
		at := cell{r.name, w.name}
		h.report.samples[at] = append(h.report.samples[at], s)
		fmt.Fprintf(h.progress, "%s, %s: %s\n", w.name, r.name, s)
	}
	return h.gather(slices.Concat(h.server, h.load))
}
