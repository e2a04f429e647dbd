package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// aliveInterval is the time between two probes of a comparing agent, and between two
	// messages to its predecessor, which waits for 3 s.
	aliveInterval = 500 * time.Millisecond
	// compareInterval is the time between two comparisons.
	compareInterval = time.Second
	// maxUnready is how long a comparing agent may be unready.
	maxUnready = 2 * time.Second
	// stopReturnTimeout bounds a return while the agent is stopped, which has five seconds.
	stopReturnTimeout = 3 * time.Second
)

// kindUnready: the agent is not ready.
const kindUnready = "unready"

// comparison is the time after a handover in which the agent compares itself with its
// predecessor, and gives the node back if it is worse. It belongs to the goroutine of
// [agent.run].
type comparison struct {
	before, start baseline.Statistics // the predecessor's, and this agent's at the start
	end, next     time.Time           // of the comparison; when to compare next
	ready         time.Time           // when the agent was ready last
	beats         chan bool           // receives the result of each probe
	stop          context.CancelFunc
}

// identity returns what tells this agent from another successor: its version, its settings, its
// configuration and its pod.
func (a *agent) identity(cfg *config.Config) string {
	h := sha256.New()
	for _, text := range []string{a.opts.Build.String(), strings.Join(os.Args, "\x00"), cfg.Digest, os.Getenv("POD_UID")} {
		fmt.Fprintf(h, "%d %s ", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// receiveStatistics fetches what the comparison needs, unless there will be none.
func (a *agent) receiveStatistics(ctx context.Context) error {
	if a.opts.HandoverCompare == 0 {
		return nil
	}
	if !a.predecessor.Comparable() {
		a.log.Info("no comparison with the predecessor, which is of an earlier version")
		return nil
	}
	text, err := a.predecessor.Statistics(ctx)
	if err != nil {
		return a.predecessorLost("receiving the statistics", err)
	}
	a.comparison = &comparison{}
	if a.comparison.before, err = baseline.Decode(text); err != nil {
		a.log.Warn("the predecessor's statistics are not usable; comparing only readiness", "err", err)
	}
	return nil
}

// startComparison starts the comparison that receiveStatistics has prepared.
func (a *agent) startComparison(ctx context.Context) {
	c := a.comparison
	if c == nil {
		return
	}
	now := time.Now()
	c.start, c.end, c.next, c.ready, c.beats = a.statistics(), now.Add(a.opts.HandoverCompare), now.Add(compareInterval), now, make(chan bool)
	ctx, c.stop = context.WithCancel(ctx)
	addr, client := a.healthAddr(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	readersAlive := a.newHealthCheck()
	a.background.Go(func() {
		c.probe(ctx, func(ctx context.Context) bool {
			return readersAlive() && (addr == "" || endpoint.RequestHealth(ctx, client, addr) == nil) && a.answersDNS(ctx)
		})
	})
	a.comparing.Store(true)
	a.log.Info("comparing with the predecessor", "limit", a.opts.HandoverCompare)
}

// probe checks every aliveInterval until ctx ends whether the agent is healthy. A check may take
// compareInterval.
func (c *comparison) probe(ctx context.Context, isHealthy func(context.Context) bool) {
	tick := time.NewTicker(aliveInterval)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, compareInterval)
		healthy := isHealthy(limited)
		cancel()
		select {
		case c.beats <- healthy:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// beat returns the channel of the probes' results, nil without a comparison.
func (c *comparison) beat() <-chan bool {
	if c == nil {
		return nil
	}
	return c.beats
}

// compare continues the comparison after a probe. An error ends the agent, which has given back.
func (a *agent) compare(ctx context.Context, healthy bool) error {
	if !a.predecessorLives() {
		return a.predecessorEnded()
	}
	if healthy {
		a.predecessor.Alive()
	}
	c, now := a.comparison, time.Now()
	if now.Before(c.next) {
		return nil
	}
	c.next = now.Add(compareInterval)
	if worse := a.regressions(now); len(worse) > 0 {
		return a.giveBackWorse(ctx, worse)
	}
	if healthy && now.After(c.end) {
		a.log.Info("no worse than the predecessor; the comparison has ended")
		a.keep()
	}
	return nil
}

// regressions returns what is worse than before.
func (a *agent) regressions(now time.Time) []baseline.Regression {
	c := a.comparison
	err := a.ready()
	if err == nil {
		c.ready = now
	} else if d := now.Sub(c.ready); d >= maxUnready {
		return []baseline.Regression{{Kind: kindUnready, Detail: fmt.Sprintf("not ready for %v: %v", d.Round(time.Millisecond), err)}}
	}
	return baseline.Compare(c.before, a.statistics().Sub(c.start))
}

// stopComparison ends the comparison, if there is one.
func (a *agent) stopComparison() {
	if a.comparison != nil && a.comparison.stop != nil {
		a.comparison.stop()
	}
	a.comparison = nil
	a.comparing.Store(false)
}

// keep ends the comparison, if there is one, and releases the predecessor.
func (a *agent) keep() {
	if a.comparison != nil {
		a.stopComparison()
		a.predecessor.Keep()
	}
}

// predecessorEnded ends the comparison, because the connection to the predecessor has ended. If
// the predecessor serves again, the error ends this agent.
func (a *agent) predecessorEnded() error {
	a.stopComparison()
	if reason := a.predecessor.Resumed(); reason != "" {
		a.ownsNode = false
		a.returned.Add(1)
		return fmt.Errorf("the predecessor has taken the node back: %s; check what kept this agent from responding", reason)
	}
	a.log.Info("the predecessor has ended; the comparison ends early")
	return nil
}

// giveBackWorse gives the node back because of worse. It returns the error that ends this agent,
// or nil if there is no predecessor any more.
func (a *agent) giveBackWorse(ctx context.Context, worse []baseline.Regression) error {
	var reason handover.Reason
	var texts []string
	for _, r := range worse {
		a.log.Error("worse than the predecessor", "kind", r.Kind, "zone", r.Zone, "detail", r.Detail)
		reason.Kinds = appendNew(reason.Kinds, r.Kind)
		texts = append(texts, strings.TrimSpace(r.Kind+" "+r.Zone)+": "+r.Detail)
	}
	reason.Text = strings.Join(atMost(maxListed, texts), "; ")
	text := "giving the node back to the predecessor: " + reason.Text
	a.worse.Store(&text)
	given, err := a.giveBack(ctx, reason)
	if !given {
		a.worse.Store(nil)
		a.log.Warn("the node can't be given back; this agent keeps serving", "err", err)
		return nil
	}
	a.returned.Add(1)
	return errors.Join(fmt.Errorf("worse than the predecessor, which has the node back: %s; "+tryAgain, reason.Text), err)
}

// tryAgain is what to do after a return.
const tryAgain = "find the cause and roll out again; to try again, delete the pod; to take over regardless, set --handover-compare=0"

// giveBack gives the node back to the predecessor. It returns false if this agent keeps serving,
// because there is no predecessor any more, or because a successor has taken over. After true
// with an error the predecessor serves, but has not received everything.
func (a *agent) giveBack(ctx context.Context, reason handover.Reason) (given bool, err error) {
	a.stopComparison()
	host := a.handoverServer.Load()
	if host != nil {
		now, cancel := context.WithCancel(ctx)
		cancel()
		if host.Stop(now) {
			return false, errors.New("a successor has taken over")
		}
	}
	a.builder.budgets.SetShare(upstream.HalfBudget)
	done := make(chan error, 1)
	go func() { done <- a.predecessor.Return(ctx, handoverSource{a}, reason) }()
	for waiting := true; waiting; {
		select {
		case call := <-a.mainCalls:
			call(ctx)
		case err = <-done:
			waiting = false
		}
	}
	if errors.Is(err, handover.ErrGone) {
		if host != nil {
			host.Continue()
		}
		a.builder.budgets.SetShare(upstream.WholeBudget)
		return false, err
	}
	if err != nil {
		a.returnToPredecessor()
	}
	a.ownsNode = false
	return true, err
}

// giveBackAtStop gives the node back to the predecessor, if that still lives, and reports whether
// it has.
func (a *agent) giveBackAtStop(ctx context.Context) bool {
	if a.predecessor == nil || !a.ownsNode || !a.predecessor.Comparable() || !a.predecessorLives() {
		return false
	}
	a.log.Info("stopping; the predecessor gets the node back")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopReturnTimeout)
	defer cancel()
	given, err := a.giveBack(ctx, handover.Reason{Text: "it is being stopped"})
	if err != nil {
		a.log.Warn("giving the node back at the stop failed", "err", err)
	}
	return given
}

// predecessorLives reports whether the predecessor waits for the end of this agent.
func (a *agent) predecessorLives() bool {
	select {
	case <-a.predecessor.Gone():
		return false
	default:
		return true
	}
}
