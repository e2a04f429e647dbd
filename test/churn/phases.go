package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// calmHost is the address of a name that all Corefiles have in hosts.
var calmHost = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 250})}

// each calls do for all agents at once and returns the first agent's error.
func (r *run) each(do func(a *agent) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.agents))
	for i, a := range r.agents {
		wg.Go(func() { errs[i] = do(a) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", r.agents[i].name, err)
		}
	}
	return nil
}

// reloadRandom has the agents refuse a broken Corefile, and then accept another one.
func (r *run) reloadRandom(ctx context.Context) error {
	err := r.each(func(a *agent) error { return a.refuse(ctx) })
	if err != nil {
		return err
	}
	r.counts.refused++
	r.generation++
	return r.reload(ctx, randomSettings(r.generation, r.random))
}

func (r *run) reloadBaseline(ctx context.Context) error {
	r.generation++
	return r.reload(ctx, baseline(r.generation))
}

// watchAllPods has all views watch all pods, as they do from the first query on for one that is
// not on the node. Samples are taken in that state.
func (r *run) watchAllPods(ctx context.Context) error {
	return r.visible(ctx, []question{{name: "192-0-2-1." + namespace(0) + ".pod." + domain, rcode: dns.RcodeNameError}})
}

func (r *run) reload(ctx context.Context, s settings) error {
	r.counts.reloads++
	return r.each(func(a *agent) error { return a.reload(ctx, r.corefile(a, s), s.marker()) })
}

// refuse has the agent read a broken Corefile and waits until it has counted the error.
func (a *agent) refuse(ctx context.Context) error {
	before, err := a.reloadsFailed(ctx)
	if err != nil {
		return err
	}
	if err := a.write(". {\n    no-such-directive\n}\n"); err != nil {
		return err
	}
	if err := a.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	return a.Await(ctx, "the refusal of a broken Corefile", func(ctx context.Context) error {
		now, err := a.reloadsFailed(ctx)
		if err == nil && now == before {
			err = fmt.Errorf("%s failed reloads are counted", now)
		}
		return err
	})
}

func (a *agent) reloadsFailed(ctx context.Context) (value string, err error) {
	err = a.get(ctx, "/metrics", func(body io.Reader) error {
		text, err := io.ReadAll(body)
		for line := range bytes.Lines(text) {
			if rest, ok := strings.CutPrefix(string(line), "coredns_reload_failed_total "); ok {
				value = strings.TrimSpace(rest)
			}
		}
		return err
	})
	return value, err
}

// connect has clients connect to the agents over TCP, TLS and HTTPS.
func (r *run) connect(ctx context.Context) error {
	for _, a := range r.agents {
		began := time.Now()
		r.record("over TCP, TLS and HTTPS", a, r.connections(ctx, a), began)
	}
	return ctx.Err()
}

// change changes objects and returns what has to become visible.
func (r *run) change(n int) []question {
	last := map[string]question{} // of several changes of an object the last one counts
	for range n {
		for _, q := range r.cluster.change(r.random.IntN(changingServices)) {
			last[q.name] = q
		}
	}
	r.counts.changes += n
	list := make([]question, 0, len(last))
	for _, q := range last {
		list = append(list, q)
	}
	return list
}

// visible waits until all agents answer as expected.
func (r *run) visible(ctx context.Context, asked []question) error {
	return r.each(func(a *agent) error { return a.allVisible(ctx, asked) })
}

// changeObjects changes objects, with watches that break in the middle.
func (r *run) changeObjects(ctx context.Context) error {
	first := r.change(r.plan.changes / 2)
	r.api.Disconnect()
	r.counts.watchesCut++
	second := r.change(r.plan.changes - r.plan.changes/2)
	for _, q := range second {
		first = replaceQuestion(first, q)
	}
	return r.visible(ctx, append(first, second...))
}

// replaceQuestion removes the question for q's name.
func replaceQuestion(list []question, q question) []question {
	kept := list[:0]
	for _, old := range list {
		if old.name != q.name {
			kept = append(kept, old)
		}
	}
	return kept
}

// turnedAway is how many connections fail, at least, while the API server is away.
const turnedAway = 6

// loseAPI lets the API server go away. Objects change meanwhile.
func (r *run) loseAPI(ctx context.Context) error {
	r.api.GoAway()
	r.counts.apiAway++
	ln, err := net.Listen("tcp", r.api.Addr)
	if err != nil {
		return err
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
			n.Add(1)
		}
	}()
	asked := r.change(r.plan.changes)
	err = peer.Await(ctx, "agents that look for the API server", func(context.Context) error {
		if n := n.Load(); n < turnedAway {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	ln.Close()
	<-done
	if err != nil {
		return err
	}
	if r.random.IntN(2) == 0 {
		r.api.Forget()
	}
	if err := r.api.Return(); err != nil {
		return err
	}
	return r.visible(ctx, asked)
}

// outageQueries is how many queries the other upstream gets, at least, while one is away.
const outageQueries = 20

// loseUpstream lets one of two upstreams die, or fall silent, and return.
func (r *run) loseUpstream(ctx context.Context) error {
	r.counts.upstreamAway++
	lost := r.random.IntN(2)
	gone, other := r.upstreams[lost], r.upstreams[1-lost]
	silent := r.random.IntN(2) == 0
	if silent {
		gone.SetSilent(true)
	} else {
		gone.Close()
	}
	before := other.Count()
	err := peer.Await(ctx, "queries to the other upstream", func(context.Context) error {
		if n := other.Count() - before; n < outageQueries {
			return fmt.Errorf("it got %d", n)
		}
		return nil
	})
	if silent {
		gone.SetSilent(false)
	} else if opened := gone.open(); err == nil {
		err = opened
	}
	return err
}

// handOver replaces the agents, except for the long-lived one, whose successor fails.
func (r *run) handOver(ctx context.Context) error {
	r.counts.failedHandovers++
	r.counts.handovers += len(r.agents) - 1
	return r.each(func(a *agent) error {
		if a == r.longLived {
			return a.failUpgrade(ctx)
		}
		return a.upgrade(ctx)
	})
}
