package fairness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The upstream's budget, in queries a second and queries at once, and what the servers with a budget of their own are told.
const (
	upstreamBudget, upstreamBurst = 1000, 100
	maxRate                       = 950
)

// What the pods ask. One pod more asks for cached names, and another one for expired ones.
const (
	askingPods = 10
	// offered is the misses a second of all pods, polite those of each pod but one in the case with a greedy one.
	offered, polite = 3000, 50
	cachedRate      = 500
	// staleNames is few enough that their refreshes are a small part of the budget.
	staleNames, staleRate = 50, 100
	stalePattern          = "name-%04d." + load.Brief
	// answerWait is how long the pods wait for an answer. Resolver libraries wait for five seconds.
	answerWait = 5 * time.Second
)

// budgetRow is the row that targets are about.
const budgetRow = "nodens, max_rate 950"

// budgetServers are the servers before the upstream.
func budgetServers() []harness.Server {
	return []harness.Server{
		{Name: budgetRow, Program: "nodens", Conf: "budget"},
		{Name: "nodens, no max_rate", Program: "nodens", Conf: "budget"},
		{Name: harness.CoreDNS, Program: "coredns", Conf: "budget"},
		{Name: "dnsdist, qps 950", Program: "dnsdist", Conf: "budget-dnsdist"},
	}
}

// budgetSettings are those of a row.
func budgetSettings(s harness.Server) harness.Settings {
	with := harness.Settings{Stale: "serve_stale 1h"}
	switch {
	case s.Name == budgetRow:
		with.Budget = fmt.Sprintf("max_rate %d", maxRate)
	case s.Program == "coredns":
		with.Stale += " immediate"
	}
	return with
}

// budgetResult is what became of one round.
type budgetResult struct{ equal, greedy budgetSample }

// budgetSample is what became of the queries of a few seconds.
type budgetSample struct {
	// pods are the results of the pods that ask for new names; the last one may be greedy.
	pods []load.Result
	// cached and stale are those of cached and of expired names.
	cached, stale load.Result
	// most is the number of queries in the upstream's busiest second, dropped how many it dropped, and arrived how many came.
	most, dropped, arrived int
	length                 time.Duration
}

// share is how far the pod's answers are from the mean, at most, as a part of it.
func (s budgetSample) share() float64 {
	least, most, sum := s.range_()
	if sum == 0 {
		return 1
	}
	mean := sum / float64(len(s.pods))
	return max(mean-least, most-mean) / mean
}

// range_ returns the answers of the pods with the fewest and the most of them, and those of all.
func (s budgetSample) range_() (least, most, sum float64) {
	for i, r := range s.pods {
		n := float64(r.Rcodes[dns.RcodeSuccess])
		if i == 0 || n < least {
			least = n
		}
		most, sum = max(most, n), sum+n
	}
	return least, most, sum
}

// sent, answered, prompt and failed are sums over the pods: queries, answers without an error, those of them that
// came within a second, and other answers.
func (s budgetSample) sums() (sent, answered, prompt, failed, lost float64) {
	for _, r := range s.pods {
		sent += float64(r.Sent)
		answered += float64(r.Rcodes[dns.RcodeSuccess])
		prompt += float64(r.Prompt)
		failed += float64(r.Answered - r.Rcodes[dns.RcodeSuccess])
		lost += float64(r.Lost)
	}
	return sent, answered, prompt, failed, lost
}

// polite is the part of its queries that the polite pod with the fewest answers had answered.
func (s budgetSample) polite() float64 {
	least := 1.0
	for _, r := range s.pods[:len(s.pods)-1] {
		least = min(least, float64(r.Rcodes[dns.RcodeSuccess])/float64(max(r.Sent, 1)))
	}
	return least
}

// failures is how many queries got no answer with an address.
func failures(r load.Result) float64 { return float64(r.Sent - r.Rcodes[dns.RcodeSuccess]) }

func (s budgetSample) String() string {
	least, most, _ := s.range_()
	sent, answered, prompt, failed, lost := s.sums()
	return fmt.Sprintf("%d in the upstream's busiest second, %d dropped, each pod %.0f to %.0f answers, of %.0f queries %.0f answered, %.0f within a second, %.0f failed, %.0f lost; cached names: %.0f failed, p99 %.0f µs; expired names: %.0f failed, p99 %.0f µs",
		s.most, s.dropped, least, most, sent, answered, prompt, failed, lost, failures(s.cached), micros(s.cached, 0.99), failures(s.stale), micros(s.stale, 0.99))
}

// measureBudgets puts every server before the upstream with a budget, again and again.
func (b *run) measureBudgets(ctx context.Context) error {
	if len(b.budgetServers) == 0 {
		return nil
	}
	for n := range b.rounds() {
		for _, s := range slices.Clone(b.budgetServers) {
			r, err := b.budget(ctx, b.node, s)
			if err != nil {
				if ctx.Err() != nil || s.Name == budgetRow {
					return err
				}
				if err := b.leaveOut(ctx, s, err); err != nil {
					return err
				}
				b.budgetServers = slices.DeleteFunc(b.budgetServers, func(o harness.Server) bool { return o.Name == s.Name })
				continue
			}
			at := harness.Cell{Server: s.Name}
			b.out.budgets[at] = append(b.out.budgets[at], r)
			fmt.Fprintf(b.Progress, "round %d of %d, budget, %s: %s\n  greedy pod: %s\n", n+1, b.rounds(), s.Name, r.equal, r.greedy)
		}
	}
	return nil
}

// budget measures a new process of a server.
func (b *run) budget(ctx context.Context, d *node, s harness.Server) (r budgetResult, err error) {
	p, err := d.start(ctx, s, serverAddr, budgetSettings(s))
	if err != nil {
		return r, err
	}
	defer p.Stop()
	equal, greedy := make([]int, askingPods), make([]int, askingPods)
	for i := range askingPods {
		equal[i], greedy[i] = offered/askingPods, polite
	}
	greedy[askingPods-1] = offered - polite*(askingPods-1)
	if r.equal, err = b.askBeyond(ctx, d, p, equal); err != nil {
		return r, err
	}
	r.greedy, err = b.askBeyond(ctx, d, p, greedy)
	return r, err
}

// askBeyond fills the cache, waits until some of the names have expired, and has the pods ask for new names at the rates, while the
// upstream drops what exceeds its budget.
func (b *run) askBeyond(ctx context.Context, d *node, p *peer.Process, rates []int) (s budgetSample, err error) {
	cached := names(load.Stream{}, hotPattern, b.Number(hotNames))
	stale := names(load.Stream{}, stalePattern, b.Number(staleNames))
	for _, known := range []load.Stream{cached, stale} {
		if err := d.fill(ctx, p, serverAddr, known); err != nil {
			return s, err
		}
	}
	if err := harness.Sleep(ctx, b.Wait(load.BriefTTL*time.Second+100*time.Millisecond)); err != nil {
		return s, err
	}
	job := b.budgetJob(d, rates, cached, stale)
	budget := load.NewBudget(upstreamBudget, upstreamBurst)
	if err := d.loop.Limit(budget); err != nil {
		return s, err
	}
	results, err := d.loop.Run(ctx, job)
	if err := errors.Join(err, d.loop.Limit(nil)); err != nil {
		return s, err
	}
	for i := range results {
		slices.Sort(results[i].Latencies)
	}
	n := len(rates)
	return budgetSample{
		pods: results[:n], cached: results[n], stale: results[n+1],
		most: budget.MostPerSecond(), dropped: budget.Dropped(), arrived: budget.Arrived(), length: job.Length,
	}, nil
}

// budgetJob has the pods ask for new names at the rates, and two more pods for cached and for expired names.
func (b *run) budgetJob(d *node, rates []int, cached, stale load.Stream) load.LoopJob {
	var streams []load.Stream
	for i, rate := range rates {
		streams = append(streams, d.newNames(load.Stream{Rate: rate, Sockets: 1, Open: open(d.pods[i])}, load.Late))
	}
	cached.Rate, cached.Sockets, cached.Open = cachedRate, 1, open(d.pods[len(rates)])
	stale.Rate, stale.Sockets, stale.Open = staleRate, 1, open(d.pods[len(rates)+1])
	job := b.Job(load.LoopJob{Server: serverAddr, Streams: append(streams, cached, stale)})
	for i := range job.Streams {
		job.Streams[i].Patience = b.Wait(answerWait)
		if b.Short { // all streams end at about the same time
			job.Streams[i].Rate = b.Rate(offered)
		}
	}
	if !b.Short {
		job.Length = budgetLength * b.Length
	}
	return job
}

// budgetLength is how long the pods ask, in units of a measurement.
const budgetLength = 3

// latencyText is the p99 of a result in milliseconds.
func latencyText(r load.Result) float64 {
	return figures.Millis(figures.Percentile(r.Latencies, 0.99))
}
