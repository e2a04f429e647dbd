package outage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// testCase is a kind of outage.
type testCase struct {
	name, what string
	// earlyLabel and lateLabel name the two phases; empty means no column.
	earlyLabel, lateLabel string
	// unsupported is the program to which the outage does not apply.
	unsupported string
	run         func(ctx context.Context, b *run, s harness.Server) (result, error)
}

// The names of the outages.
const (
	oneDead   = "one of two upstreams is dead"
	oneFrozen = "one of two upstreams freezes"
	allSilent = "all upstreams fall silent"
	atOnce    = "a thousand miss one name"
	overTLS   = "misses over TLS"
	reloading = "reloads under load"
)

// outageCases are all kinds of outage.
var outageCases = []testCase{
	{name: oneDead, earlyLabel: "first 5 s", lateLabel: "after", run: runOneDead, what: fmt.Sprintf("Two upstreams answer after %s. One of them has been silent since before the server's start, with its socket open. "+
		"%d new names a second.", load.Delay, uniqueRate)},
	{name: oneFrozen, earlyLabel: "first 5 s", lateLabel: "after", run: runOneFrozen, what: fmt.Sprintf("The same, but both answer for %s before one becomes silent, with its socket open. Times are counted from that moment.", healthyTime)},
	{name: allSilent, earlyLabel: "first of a name", lateLabel: "after", run: runAllSilent, what: fmt.Sprintf("%d names are in the cache and have expired when all upstreams become silent. They are asked for "+
		"in turn, %d a second.", workingSet, workingRate)},
	{name: atOnce, earlyLabel: "all", run: runSameName, what: fmt.Sprintf("%d clients ask for a name that the upstream takes %s to answer.", sameNameClients, sameNameDelay)},
	{name: overTLS, earlyLabel: "all", run: runOverTLS, what: fmt.Sprintf("%d new names a second, over TLS to one upstream that answers after %s.", tlsRate, load.Delay)},
	{name: reloading, run: runReloads, unsupported: "unbound", what: fmt.Sprintf("%d queries a second for cached names, while the Corefile is changed and reloaded (SIGUSR1) every %s.", reloadRate, reloadEvery)},
}

const (
	// uniqueRate is the misses of a busy node.
	uniqueRate = 500
	// healthyTime is how long both upstreams answer before one freezes: long enough for a
	// server to know how quick they are.
	healthyTime = 3 * time.Second
	// outagePhase is the first part of an outage, and as long again the second.
	outagePhase = 5 * time.Second

	// workingSet is the names that are in use, workingRate how many are asked for a
	// second: each every two seconds.
	workingSet, workingRate = 200, 100
	// shortTTL is that of the names, in seconds: the least that the servers keep.
	shortTTL = 5

	// sameNameClients query one name within a quarter of a second, because a socket's buffer
	// does not hold as many queries. sameNameDelay is the time until the answer.
	sameNameClients, sameNameRate = 1000, 4000
	sameNameDelay                 = 300 * time.Millisecond

	tlsRate     = 5000
	reloadRate  = 20000
	reloadEvery = 250 * time.Millisecond
)

// missName is the name of the i-th question, a new one for each.
func missName(i int) string { return fmt.Sprintf("u%06d.miss.example.", i) }

// runOneDead is a run with one upstream silent from the start.
func runOneDead(ctx context.Context, b *run, s harness.Server) (result, error) {
	list, closeAll, err := openUpstreams(2, upstreamOptions{Delay: load.Delay, TTL: load.TTL})
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	list[0].SetSilent(true)
	return b.askNewNames(ctx, s, list, 0, nil)
}

// runOneFrozen is a run in which one upstream falls silent.
func runOneFrozen(ctx context.Context, b *run, s harness.Server) (result, error) {
	list, closeAll, err := openUpstreams(2, upstreamOptions{Delay: load.Delay, TTL: load.TTL})
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	return b.askNewNames(ctx, s, list, b.phaseLength(healthyTime), func() { list[0].SetSilent(true) })
}

// askNewNames asks for unique names; freeze is called after a while. The first questions of all,
// before freeze, don't count.
func (b *run) askNewNames(ctx context.Context, s harness.Server, list []*fakedns.Server, after time.Duration, freeze func()) (t result, err error) {
	p, err := b.startWithUpstreams(ctx, s, harness.Settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	at := int(after.Seconds() * uniqueRate)
	part := int(b.phaseLength(outagePhase).Seconds() * uniqueRate)
	schedule := load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: uniqueRate, Count: at + 2*part, Name: missName}
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
	t.add(results[at:], func(i int) bool { return i < part })
	t.countUpstream(list)
	return t, nil
}

// add adds the results of queries; early reports whether the i-th belongs to the first phase.
func (t *result) add(results []load.QueryResult, early func(i int) bool) {
	for i, f := range results {
		t.asked++
		if f.Failed {
			t.failed++
		}
		if early(i) {
			t.early = append(t.early, f.Latency)
		} else {
			t.late = append(t.late, f.Latency)
		}
	}
	slices.Sort(t.early)
	slices.Sort(t.late)
}

func (t *result) countUpstream(list []*fakedns.Server) {
	for _, u := range list {
		t.upstream += uint64(u.Count())
		t.conns += u.MaxConns()
	}
}

// phaseLength is the length of a part of an outage: shorter where the whole is made short.
func (b *run) phaseLength(d time.Duration) time.Duration { return min(d, b.silence) }

// runAllSilent is a run with all upstreams silent and a working set that has expired.
func runAllSilent(ctx context.Context, b *run, s harness.Server) (t result, err error) {
	list, closeAll, err := openUpstreams(2, upstreamOptions{Delay: load.Delay, TTL: shortTTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	stale := "serve_stale 1h"
	if s.Program == "coredns" {
		stale += " immediate"
	}
	p, err := b.startWithUpstreams(ctx, s, harness.Settings{Stale: stale}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	n := b.Number(workingSet)
	name := func(i int) string { return missName(i % n) }
	if _, err := (load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: workingSet, Count: n, Name: name}).Run(ctx); err != nil {
		return t, err
	}
	if err := harness.Sleep(ctx, (shortTTL+1)*time.Second); err != nil {
		return t, err
	}
	for _, u := range list {
		u.SetSilent(true)
	}
	results, err := load.Schedule{
		Server: harness.LoopbackAddr(p.Port), Rate: workingRate, Name: name,
		Count: max(2*n, int(b.silence.Seconds()*workingRate)),
	}.Run(ctx)
	if err != nil {
		return t, err
	}
	t.add(results, func(i int) bool { return i < n })
	t.countUpstream(list)
	return t, nil
}

// runSameName is a run in which all ask for the same name.
func runSameName(ctx context.Context, b *run, s harness.Server) (t result, err error) {
	list, closeAll, err := openUpstreams(1, upstreamOptions{Delay: b.Wait(sameNameDelay), TTL: load.TTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.startWithUpstreams(ctx, s, harness.Settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	results, err := load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: sameNameRate, Count: b.Number(sameNameClients), Name: func(int) string { return missName(0) }}.Run(ctx)
	if err != nil {
		return t, err
	}
	t.add(results, func(int) bool { return true })
	t.countUpstream(list)
	return t, nil
}

// runOverTLS is a run of misses over TLS.
func runOverTLS(ctx context.Context, b *run, s harness.Server) (t result, err error) {
	config, pem, err := upstreamCertificate()
	if err != nil {
		return t, err
	}
	ca, err := b.writeCA(pem)
	if err != nil {
		return t, err
	}
	list, closeAll, err := openUpstreams(1, upstreamOptions{Delay: load.Delay, TTL: load.TTL, Options: fakedns.Options{TLS: config}})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.startWithUpstreams(ctx, s, harness.Settings{CA: ca}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	// Connections are made, and buffers have grown.
	if _, err := (load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: tlsRate / 10, Count: b.Number(tlsRate / 10), Name: func(i int) string { return "warm-" + missName(i) }}).Run(ctx); err != nil {
		return t, err
	}
	before, err := machine.ReadProcStat(p.PID())
	if err != nil {
		return t, err
	}
	rate := b.Rate(tlsRate)
	results, err := load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: rate, Count: int(b.phaseLength(outagePhase).Seconds() * float64(rate)), Name: missName}.Run(ctx)
	if err != nil {
		return t, err
	}
	after, err := machine.ReadProcStat(p.PID())
	if err != nil {
		return t, err
	}
	t.cpu = after.CPU - before.CPU
	t.add(results, func(int) bool { return true })
	t.countUpstream(list)
	return t, nil
}

// runReloads is a run during which the configuration changes.
func runReloads(ctx context.Context, b *run, s harness.Server) (t result, err error) {
	list, closeAll, err := openUpstreams(1, upstreamOptions{TTL: load.TTL})
	if err != nil {
		return t, err
	}
	defer closeAll()
	p, err := b.startWithUpstreams(ctx, s, harness.Settings{}, list...)
	if err != nil {
		return t, err
	}
	defer p.Stop()
	var questions [][]byte
	n := b.Number(workingSet)
	for i := range n {
		packed, err := new(dns.Msg).SetQuestion(missName(i), dns.TypeA).Pack()
		if err != nil {
			return t, err
		}
		questions = append(questions, packed)
	}
	if _, err := (load.Schedule{Server: harness.LoopbackAddr(p.Port), Rate: workingSet, Count: n, Name: missName}).Run(ctx); err != nil {
		return t, err
	}
	changing, stop := context.WithCancel(ctx)
	changed := make(chan corefileChange, 1)
	go func() { changed <- changeCorefile(changing, p, b.Wait(reloadEvery)) }()
	results, err := b.Loop.Run(ctx, load.LoopJob{
		Server: harness.LoopbackAddr(p.Port), Length: b.phaseLength(outagePhase),
		Streams: []load.Stream{{Questions: questions, Rate: b.Rate(reloadRate), Sockets: 8, Patience: b.Patience(), RefusedIsLost: true}},
	})
	stop()
	last := <-changed
	if err := errors.Join(err, last.err); err != nil {
		return t, err
	}
	if err := last.await(ctx, p); err != nil {
		return t, err
	}
	r := results[0]
	slices.Sort(r.Latencies)
	t.asked, t.failed, t.early = int(r.Sent), int(r.Sent-r.Rcodes[dns.RcodeSuccess]), r.Latencies
	t.countUpstream(list)
	return t, nil
}

// corefileChange is the last change of a Corefile: the name that it adds.
type corefileChange struct {
	name string
	err  error
}

// changeCorefile changes the process's Corefile and asks it to read it, once and then again and again
// until ctx ends.
func changeCorefile(ctx context.Context, p harness.Process, every time.Duration) (last corefileChange) {
	text, err := os.ReadFile(p.Conf)
	if err != nil {
		return corefileChange{err: err}
	}
	for n := 1; harness.Sleep(ctx, every) == nil || n == 1; n++ {
		last.name = fmt.Sprintf("www.added-%d.example.", n)
		more := fmt.Sprintf("added-%d.example:%d {\n    bind 127.0.0.1\n    hosts {\n        192.0.2.7 %s\n    }\n}\n", n, p.Port, last.name)
		if last.err = os.WriteFile(p.Conf, append(slices.Clone(text), more...), 0o644); last.err != nil {
			return last
		}
		if last.err = p.Signal(syscall.SIGUSR1); last.err != nil {
			return last
		}
	}
	return last
}

// await waits until the process answers for the name that was added last.
func (a corefileChange) await(ctx context.Context, p harness.Process) error {
	q := harness.QuerySet{Names: []string{a.name}, Qtype: dns.TypeA}
	return p.Await(ctx, "an answer for "+a.name, func(context.Context) error {
		answer, err := harness.Exchange(p.Port, q)
		if err == nil && harness.ParseHeader(answer).Answers == 0 {
			err = fmt.Errorf("rcode %d and no answer", harness.ParseHeader(answer).Rcode)
		}
		return err
	})
}
