package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

const (
	killPhase = "kill"
	// keptNames is the number of names whose answers last longer than a run, and that only the
	// phase "kill" asks for: they are in the saved cache.
	keptNames = 50
	// clusterQueries is how many queries the cluster DNS gets, at least, while no agent listens.
	clusterQueries = 20
	// quiet is the time without a query to the cluster DNS after which the agent gets them all.
	quiet = 300 * time.Millisecond
)

func keptQuestions() (list []question) {
	for i := range keptNames {
		list = append(list, outsideQuestion(fmt.Sprintf("kept-%d.%s", i, kept)))
	}
	return list
}

// killAgent stops the agent on the node, which saves its cache, starts it, and then kills and starts
// it. The cluster DNS answers in between. Each start answers from the saved cache.
func (r *run) killAgent(ctx context.Context) error {
	a := r.killed
	asked := keptQuestions()
	if err := a.allVisible(ctx, asked); err != nil {
		return err
	}
	before := r.keptAsked.Load()
	for _, end := range []func() error{a.stopCleanly, a.kill} {
		if err := r.restart(ctx, a, end); err != nil {
			return err
		}
		if err := a.allVisible(ctx, asked); err != nil {
			return err
		}
	}
	if n := r.keptAsked.Load() - before; n > 0 {
		return fmt.Errorf("%s asked upstreams for %d names that were in the saved cache", a.name, n)
	}
	r.counts.stops++
	r.counts.kills++
	return nil
}

// restart ends the agent on the node and starts it, after the cluster DNS has answered in its place.
func (r *run) restart(ctx context.Context, a *agent, end func() error) error {
	if err := end(); err != nil {
		return err
	}
	if err := r.awaitFailOpen(ctx); err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return r.awaitTakeBack(ctx)
}

func (a *agent) stopCleanly() error {
	a.Stop()
	if err := a.Err(); err != nil {
		return fmt.Errorf("%s ended with %w and wrote:\n%s", a.name, err, a.Tail())
	}
	return nil
}

func (a *agent) kill() error {
	a.Kill()
	err := a.Err()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return nil // by the signal
	}
	return fmt.Errorf("%s ended by itself: %w; it wrote:\n%s", a.name, cmp.Or(err, errExited), a.Tail())
}

// errExited: an agent ended with exit code 0.
var errExited = errors.New("exit code 0")

// awaitFailOpen waits until the cluster DNS has got queries.
func (r *run) awaitFailOpen(ctx context.Context) error {
	before := r.node.dns.Count()
	return peer.Await(ctx, "queries to the cluster DNS", func(context.Context) error {
		if n := r.node.dns.Count() - before; n < clusterQueries {
			return fmt.Errorf("it got %d", n)
		}
		return nil
	})
}

// awaitTakeBack waits until the cluster DNS gets no queries any more, although clients ask.
func (r *run) awaitTakeBack(ctx context.Context) error {
	return peer.Await(ctx, "the end of queries to the cluster DNS", func(ctx context.Context) error {
		before := r.node.dns.Count()
		if err := pause(ctx, quiet); err != nil {
			return err
		}
		if n := r.node.dns.Count() - before; n > 0 {
			return fmt.Errorf("it got %d in %v", n, quiet)
		}
		return nil
	})
}

// answerCluster is the cluster DNS's: it knows the names that no round changes.
func (r *run) answerCluster(q *dns.Msg) *dns.Msg {
	name := strings.ToLower(q.Question[0].Name)
	for _, known := range r.calm {
		if known.name == name {
			return known.answer(q)
		}
	}
	return answerOutside(q)
}

// repeat asks the questions again that a kill has lost, as resolvers do. It counts those that are
// answered then as repeated.
func (a *agent) repeat(ctx context.Context, t *tally) error {
	for _, q := range t.unanswered {
		if err := a.visible(ctx, q); err != nil {
			return fmt.Errorf("repeating a lost query: %w", err)
		}
		t.lost--
		t.again++
	}
	t.unanswered = nil
	return nil
}
