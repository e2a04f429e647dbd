package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/kubernetes"
)

const (
	// nodeLookInterval is the time between two looks at the agent's state.
	nodeLookInterval = 2 * time.Second
	// nodePatience is how long a problem lasts before the Node or an Event tells of it. Restarts and reloads are shorter.
	nodePatience = 15 * time.Second
	// nodeHeartbeat is the time after which an unchanged condition is written again, as the kubelet does.
	nodeHeartbeat = 5 * time.Minute
	// maxNodePause bounds the pause between two attempts to write.
	maxNodePause = time.Minute
	// nodeEventInterval is the least time between two Events with the same reason.
	nodeEventInterval = 10 * time.Minute
	// maxNodeMessage bounds the message of a condition and of an Event, in bytes: the API server refuses Events beyond it.
	maxNodeMessage = 1024
)

// nodeWriter is a [kubernetes.NodeWriter].
type nodeWriter interface {
	SetCondition(context.Context, kubernetes.NodeCondition) error
	RemoveTaint(context.Context) (removed bool, err error)
	Event(ctx context.Context, warning bool, reason, message string) error
}

// nodeReporter tells the scheduler and operators of the state of DNS on this node, through its Node object: by a condition, Events,
// and the removal of the start-up taint. It belongs to the goroutine of run.
type nodeReporter struct {
	writer nodeWriter
	log    *slog.Logger
	// look returns the agent's problems, and how many rules and addresses of the node it has restored so far.
	look func() (problems []report.Problem, restored uint64)

	outages  outage.Log
	pause    time.Duration            // after a failed attempt
	next     time.Time                // before this time nothing is written
	last     kubernetes.NodeCondition // as written
	written  time.Time                // of last; zero: never
	begun    map[string]time.Time     // of the present problems, by code
	told     map[string]time.Time     // of the last Event, by reason
	restored uint64                   // as told
}

// newNodeReporter returns the reporter for --node-condition; nil without it. The writer is to be closed.
func newNodeReporter(a *agent, cfg *config.Config) (*nodeReporter, *kubernetes.NodeWriter, error) {
	if !a.opts.NodeCondition {
		return nil, nil, nil
	}
	if a.opts.NodeName == "" {
		return nil, nil, errors.New("--node-condition: the name of the Node is unknown; set --node-name or $NODE_NAME")
	}
	w, err := kubernetes.NewNodeWriter(apiServerOf(cfg), a.opts.NodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("--node-condition: %w", err)
	}
	look := func() ([]report.Problem, uint64) {
		s := a.status()
		return s.Problems, s.Restored.Total
	}
	return &nodeReporter{writer: w, log: a.log.With("part", "node condition"), look: look}, w, nil
}

// apiServerOf returns how the first kubernetes directive reaches the API server; without one, the pod's service account does.
func apiServerOf(cfg *config.Config) *config.Kubernetes {
	for _, b := range cfg.Blocks {
		if b.Kubernetes != nil && len(b.Kubernetes.Manifests) == 0 {
			return b.Kubernetes
		}
	}
	return &config.Kubernetes{}
}

// run reports until ctx ends. It starts anew: another agent may have written meanwhile.
func (r *nodeReporter) run(ctx context.Context) {
	r.outages = outage.Log{Logger: r.log, Level: slog.LevelWarn, Messages: outage.Messages{
		Start: "writing the condition of the Node failed, retrying", Ongoing: "writing the condition of the Node still fails", End: "condition of the Node written again",
	}}
	defer r.outages.Stop()
	r.begun, r.told = make(map[string]time.Time), make(map[string]time.Time)
	r.written, r.next, r.pause = time.Time{}, time.Time{}, 0
	_, r.restored = r.look()
	tick := time.NewTicker(nodeLookInterval)
	defer tick.Stop()
	for {
		r.update(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// update looks once, and writes what has changed.
func (r *nodeReporter) update(ctx context.Context, now time.Time) {
	problems, restored := r.look()
	r.note(problems, now)
	if now.Before(r.next) {
		return
	}
	if c, known := r.judge(problems, now); known && !r.report(ctx, c, now) {
		return
	}
	for _, p := range problems {
		if !p.MakesUnready() && now.Sub(r.begun[p.Code]) >= nodePatience {
			r.tell(ctx, true, p.Reason(), p.Text, now)
		}
	}
	if restored > r.restored {
		r.tell(ctx, true, report.ReasonRestored, fmt.Sprintf("%d rules or addresses that another program had changed are restored", restored-r.restored), now)
		r.restored = restored
	}
}

// report writes c if it is news or due, and an Event about a change. It returns false if that fails.
func (r *nodeReporter) report(ctx context.Context, c kubernetes.NodeCondition, now time.Time) bool {
	first := r.written.IsZero()
	changed := first || c.Ready != r.last.Ready || c.Reason != r.last.Reason
	if !changed && now.Sub(r.written) < nodeHeartbeat {
		return true
	}
	if !r.write(ctx, c, now) {
		return false
	}
	if changed && (!first || !c.Ready) {
		r.tell(ctx, !c.Ready, c.Reason, c.Message, now)
	}
	return true
}

// note keeps since when each problem is there.
func (r *nodeReporter) note(problems []report.Problem, now time.Time) {
	begun := make(map[string]time.Time, len(problems))
	for _, p := range problems {
		if begun[p.Code] = r.begun[p.Code]; begun[p.Code].IsZero() {
			begun[p.Code] = now
		}
	}
	r.begun = begun
}

// judge returns the condition; known is false while a problem is too new to tell.
func (r *nodeReporter) judge(problems []report.Problem, now time.Time) (c kubernetes.NodeCondition, known bool) {
	c = kubernetes.NodeCondition{Ready: true, Reason: report.ReasonDNSReady, Message: report.MessageDNSReady}
	for _, p := range problems {
		if !p.MakesUnready() {
			continue
		}
		if c.Ready {
			c = kubernetes.NodeCondition{Reason: p.Reason(), Message: shortMessage(p.Text)}
		}
		known = known || now.Sub(r.begun[p.Code]) >= nodePatience
	}
	if c.Since = now; !r.written.IsZero() && c.Ready == r.last.Ready {
		c.Since = r.last.Since
	}
	return c, known || c.Ready
}

// write writes c, and removes the taint if c is ready. It returns false, and makes the next attempt wait, if that fails.
func (r *nodeReporter) write(ctx context.Context, c kubernetes.NodeCondition, now time.Time) bool {
	err := r.writer.SetCondition(ctx, c)
	if c.Ready {
		removed, failed := r.writer.RemoveTaint(ctx)
		if err = errors.Join(err, failed); failed == nil && removed {
			r.log.Info("start-up taint removed from the Node")
		}
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		r.outages.Fail(err, "fix", "apply daemonset/components/node-condition, which has the rights, or remove --node-condition")
		r.pause = min(2*r.pause+nodeLookInterval, maxNodePause)
		r.next = now.Add(r.pause)
		return false
	}
	r.outages.Recover()
	r.last, r.written, r.pause = c, now, 0
	return true
}

// tell writes an Event, unless there was one with this reason lately. An Event that fails is not written again.
func (r *nodeReporter) tell(ctx context.Context, warning bool, reason, message string, now time.Time) {
	if t, ok := r.told[reason]; ok && now.Sub(t) < nodeEventInterval {
		return
	}
	r.told[reason] = now
	if err := r.writer.Event(ctx, warning, reason, shortMessage(message)); err != nil && ctx.Err() == nil {
		r.log.Warn("writing an Event about the Node failed", "reason", reason, "err", err)
	}
}

// shortMessage returns the beginning of text.
func shortMessage(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxNodeMessage)], "")
}
