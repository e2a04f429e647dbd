package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/outage"
	"github.com/nodens-dns/nodens/test/fakedns"
	"github.com/nodens-dns/nodens/test/loadgen"
)

// ordeal is a kind of outage.
type ordeal struct {
	name, what string
	// soon and after name the two parts of the time; empty is no column.
	soon, after string
	// fails is a program that can't be asked to go through it.
	fails string
	run   func(ctx context.Context, b *bench, s server) (trial, error)
}

// The ordeals' names.
const (
	oneDead   = "one of two upstreams is dead"
	oneFrozen = "one of two upstreams freezes"
	allSilent = "all upstreams fall silent"
	atOnce    = "a thousand miss one name"
	overTLS   = "misses over TLS"
	reloading = "reloads under load"
)

// ordeals are all kinds of outage.
var ordeals = []ordeal{
	{name: oneDead, soon: "first 5 s", after: "after", run: dead, what: fmt.Sprintf("Two upstreams answer after %s, but one has been silent from before the server's start, its socket open. "+
		"%d names a second that nobody has asked for.", loadgen.Delay, uniqueRate)},
	{name: oneFrozen, soon: "first 5 s", after: "after", run: frozen, what: fmt.Sprintf("The same, but both answer for %s before one falls silent, its socket open. The times run from then.", healthy)},
	{name: allSilent, soon: "first of a name", after: "after", run: silent, what: fmt.Sprintf("%d names are in the cache and have expired when all upstreams fall silent. They are asked for "+
		"in turn, %d a second.", workingSet, workingRate)},
	{name: atOnce, soon: "all", run: once, what: fmt.Sprintf("%d clients ask for a name that the upstream takes %s to answer.", together, slow)},
	{name: overTLS, soon: "all", run: secured, what: fmt.Sprintf("%d names a second that nobody has asked for, over TLS to one upstream that answers after %s.", securedRate, loadgen.Delay)},
	{name: reloading, run: reloads, fails: "unbound", what: fmt.Sprintf("%d questions a second for cached names, while the Corefile changes and is read anew (SIGUSR1) every %s.", reloadRate, reloadEvery)},
}

const (
	// uniqueRate is the misses of a busy node.
	uniqueRate = 500
	// healthy is how long both upstreams answer before one freezes: long enough for a
	// server to know how quick they are.
	healthy = 3 * time.Second
	// opening is the first part of an outage, and as long again the second.
	opening = 5 * time.Second

	// workingSet is the names that are in use, workingRate how many are asked for a
	// second: each every two seconds.
	workingSet, workingRate = 200, 100
	// shortTTL is that of the names, in seconds: the least that the servers keep.
	shortTTL = 5

	// together is how many ask for one name; they come within a quarter of a second,
	// since a socket's buffer does not hold as many, and slow is the time until the
	// answer.
	together, gathering = 1000, 4000
	slow                = 300 * time.Millisecond

	securedRate = 5000
	reloadRate  = 20000
	reloadEvery = 250 * time.Millisecond
)

// unique is the name of the i-th question, a new one for each.
func unique(i int) string { return fmt.Sprintf("u%06d.miss.example.", i) }

// dead is a run with one upstream silent from the start.
func dead(ctx context.Context, b *bench, s server) (trial, error) {
	list, closeAll, err := upstreams(2, outage.Options{Delay: loadgen.Delay, TTL: loadgen.TTL})
	if err != nil {
		return trial{}, err
	}
	defer closeAll()
	list[0].SetSilent(true)
	return b.miss(ctx, s, list, 0, nil)
}

// frozen is a run in which one upstream falls silent.
func frozen(ctx context.Context, b *bench, s server) (trial, error) {
	list, closeAll, err := upstreams(2, outage.Options{Delay: loadgen.Delay, TTL: loadgen.TTL})
	if err != nil {
		return trial{}, err
	}
	defer closeAll()
	return b.miss(ctx, s, list, healthy, func() { list[0].SetSilent(true) })
}

// miss asks for unique names; freeze is called after a while. The first questions of all,
// before freeze, don't count.
func (b *bench) miss(ctx context.Context, s server, list []*fakedns.Server, after time.Duration, freeze func()) (t trial, err error) {
	p, err := b.through(ctx, s, settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	at := int(after.Seconds() * uniqueRate)
	part := b.scaled(opening)
	schedule := loadgen.Schedule{Server: local(p.port), Rate: uniqueRate, Count: at + int(2*part.Seconds()*uniqueRate), Name: unique}
	if freeze != nil {
		schedule.BeforeQuery = func(i int) {
			if i == at {
				freeze()
			}
		}
	}
	results, err := schedule.Run(ctx)
	if err != nil {
		return t, err
	}
	t.add(results[at:], func(_ int, f loadgen.QueryResult) bool { return f.Sent-after < part })
	t.count(list)
	return t, nil
}

// add takes down what became of questions; early says of which part one is.
func (t *trial) add(results []loadgen.QueryResult, early func(i int, f loadgen.QueryResult) bool) {
	for i, f := range results {
		t.asked++
		if f.Failed {
			t.failed++
		}
		if early(i, f) {
			t.early = append(t.early, f.Latency)
		} else {
			t.late = append(t.late, f.Latency)
		}
	}
	slices.Sort(t.early)
	slices.Sort(t.late)
}

func (t *trial) count(list []*fakedns.Server) {
	for _, u := range list {
		t.upstream += uint64(u.Count())
		t.conns += u.MaxConns()
	}
}

// scaled is the length of a part of an outage: shorter where the whole is made short.
func (b *bench) scaled(d time.Duration) time.Duration { return min(d, b.failing.silence) }

// silent is a run with all upstreams silent and a working set that has expired.
func silent(ctx context.Context, b *bench, s server) (t trial, err error) {
	list, closeAll, err := upstreams(2, outage.Options{Delay: loadgen.Delay, TTL: shortTTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	stale := "serve_stale 1h"
	if s.program == "coredns" {
		stale += " immediate"
	}
	p, err := b.through(ctx, s, settings{stale: stale}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	name := func(i int) string { return unique(i % workingSet) }
	if _, err := (loadgen.Schedule{Server: local(p.port), Rate: workingSet, Count: workingSet, Name: name}).Run(ctx); err != nil {
		return t, err
	}
	if err := wait(ctx, (shortTTL+1)*time.Second); err != nil {
		return t, err
	}
	for _, u := range list {
		u.SetSilent(true)
	}
	results, err := loadgen.Schedule{
		Server: local(p.port), Rate: workingRate, Name: name,
		Count: max(2*workingSet, int(b.failing.silence.Seconds()*workingRate)),
	}.Run(ctx)
	if err != nil {
		return t, err
	}
	t.add(results, func(i int, _ loadgen.QueryResult) bool { return i < workingSet })
	t.count(list)
	return t, nil
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// once is a run in which all ask for the same name.
func once(ctx context.Context, b *bench, s server) (t trial, err error) {
	list, closeAll, err := upstreams(1, outage.Options{Delay: slow, TTL: loadgen.TTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.through(ctx, s, settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	results, err := loadgen.Schedule{Server: local(p.port), Rate: gathering, Count: together, Name: func(int) string { return unique(0) }}.Run(ctx)
	if err != nil {
		return t, err
	}
	t.add(results, func(int, loadgen.QueryResult) bool { return true })
	t.count(list)
	return t, nil
}

// secured is a run of misses over TLS.
func secured(ctx context.Context, b *bench, s server) (t trial, err error) {
	config, pem, err := outage.Certificate()
	if err != nil {
		return t, err
	}
	ca, err := b.authority(pem)
	if err != nil {
		return t, err
	}
	list, closeAll, err := upstreams(1, outage.Options{Delay: loadgen.Delay, TTL: loadgen.TTL, Options: fakedns.Options{TLS: config}})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.through(ctx, s, settings{ca: ca}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	// Connections are made, and buffers have grown.
	if _, err := (loadgen.Schedule{Server: local(p.port), Rate: securedRate / 10, Count: securedRate / 10, Name: func(i int) string { return "warm-" + unique(i) }}).Run(ctx); err != nil {
		return t, err
	}
	before, err := read(p.Pid())
	if err != nil {
		return t, err
	}
	results, err := loadgen.Schedule{Server: local(p.port), Rate: securedRate, Count: int(b.scaled(opening).Seconds() * securedRate), Name: unique}.Run(ctx)
	if err != nil {
		return t, err
	}
	after, err := read(p.Pid())
	if err != nil {
		return t, err
	}
	t.cpu = after.cpu - before.cpu
	t.add(results, func(int, loadgen.QueryResult) bool { return true })
	t.count(list)
	return t, nil
}

// reloads is a run during which the configuration changes.
func reloads(ctx context.Context, b *bench, s server) (t trial, err error) {
	list, closeAll, err := upstreams(1, outage.Options{TTL: loadgen.TTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.through(ctx, s, settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	var questions [][]byte
	for i := range workingSet {
		packed, err := new(dns.Msg).SetQuestion(unique(i), dns.TypeA).Pack()
		if err != nil {
			return t, err
		}
		questions = append(questions, packed)
	}
	if _, err := (loadgen.Schedule{Server: local(p.port), Rate: workingSet, Count: workingSet, Name: unique}).Run(ctx); err != nil {
		return t, err
	}
	changing, stop := context.WithCancel(ctx)
	changed := make(chan alteration, 1)
	go func() { changed <- alter(changing, p) }()
	results, err := b.loop.Run(ctx, loadgen.Job{
		Server: local(p.port), Length: b.scaled(opening),
		Streams: []loadgen.Stream{{Questions: questions, Rate: reloadRate, Sockets: 8}},
	})
	stop()
	last := <-changed
	if err := errors.Join(err, last.err); err != nil {
		return t, err
	}
	if err := last.tookOn(ctx, p); err != nil {
		return t, err
	}
	r := results[0]
	slices.Sort(r.Latencies)
	t.asked, t.failed, t.early = int(r.Sent), int(r.Sent-r.Rcodes[dns.RcodeSuccess]), r.Latencies
	t.count(list)
	return t, nil
}

// alteration is the last change of a Corefile: the name that it adds.
type alteration struct {
	name string
	err  error
}

// alter changes the process's Corefile and asks it to read it, again and again until
// ctx ends.
func alter(ctx context.Context, p process) (last alteration) {
	text, err := os.ReadFile(p.conf)
	if err != nil {
		return alteration{err: err}
	}
	for n := 1; wait(ctx, reloadEvery) == nil; n++ {
		last.name = fmt.Sprintf("www.added-%d.example.", n)
		more := fmt.Sprintf("added-%d.example:%d {\n    bind 127.0.0.1\n    hosts {\n        192.0.2.7 %s\n    }\n}\n", n, p.port, last.name)
		if last.err = os.WriteFile(p.conf, append(slices.Clone(text), more...), 0o644); last.err != nil {
			return last
		}
		if last.err = p.Signal(syscall.SIGUSR1); last.err != nil {
			return last
		}
	}
	if last.name == "" {
		last.err = errors.New("the time is too short for a change")
	}
	return last
}

// tookOn waits until the process answers for the name that was added last.
func (a alteration) tookOn(ctx context.Context, p process) error {
	q := questions{names: []string{a.name}, qtype: dns.TypeA}
	return p.Await(ctx, "an answer for "+a.name, func(context.Context) error {
		answer, err := ask(p.port, q)
		if err == nil && header(answer).answers == 0 {
			err = fmt.Errorf("rcode %d and no answer", header(answer).rcode)
		}
		return err
	})
}
