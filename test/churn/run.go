package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// run is a run with what it has found so far.
type run struct {
	plan      plan
	dir       string
	roots     *tls.Config
	api       *fakeapi.HTTPS
	cluster   *cluster
	upstreams [2]*upstream
	secure    *upstream // over TLS
	random    *rand.Rand
	agents    []*agent
	// longLived is one process. upgraded is one for each round. killed is several, on the node.
	// All are in agents.
	longLived, upgraded, killed *agent
	node                        *node
	keptAsked                   atomic.Int64 // queries to upstreams for names below kept

	// outside has names that the upstreams answer. calm has the names that no round changes.
	outside, calm []question
	stalled       sync.WaitGroup // clients that stall
	stalls        stallMonitor
	round         int // from 1; an agent has one sample for each complete round
	generation    int // of the Corefile
	phases        []*phase
	counts        counts
	faults        []string
	took          time.Duration
	ended         []roundRecord
	commit        string
}

// counts are what has happened to the agents.
type counts struct{ changes, watchesCut, apiAway, upstreamAway, reloads, refused, handovers, failedHandovers, stops, kills int }

// phase is a phase of all rounds.
type phase struct {
	name string
	tally
}

// errInterrupted ends a run that is asked to end; what it has found so far counts.
var errInterrupted = errors.New("interrupted")

const longLivedName = "long-lived"

// run does what the plan says. The error is about the run; what is wrong with the agents is
// in the run's faults.
func (p plan) run(ctx context.Context) (*run, error) {
	r := &run{plan: p, dir: p.dir, random: rand.New(rand.NewPCG(p.seed, 0)), commit: commit(ctx)}
	defer r.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go r.stalls.watch(ctx)
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	for ; ; r.round++ {
		err := r.playRound(ctx)
		r.took = time.Since(began)
		switch {
		case ctx.Err() != nil:
			return r, errInterrupted
		case err != nil:
			r.fault("round %d: %v", r.round, err)
			return r, nil
		}
		r.endRound()
		r.follow()
		if err := r.keep(); err != nil {
			return nil, err
		}
		if p.over(r.round, r.took) {
			r.stop(ctx)
			return r, nil
		}
	}
}

func (r *run) fault(format string, args ...any) {
	if len(r.faults) < 2*maxFaults {
		r.faults = append(r.faults, fmt.Sprintf(format, args...))
	}
}

// start starts everything that the agents need, and the agents.
func (r *run) start(ctx context.Context) error {
	binary, err := peer.Binary(ctx, "nodens", r.dir)
	if err != nil {
		return err
	}
	// The servers' address is one of the node's network.
	if r.node, err = openNode(ctx, fakedns.Answers(r.answerCluster)); err != nil {
		return err
	}
	if err := r.startServers(); err != nil {
		return err
	}
	r.cluster = newCluster(r.api, r.random)
	for i := range 100 {
		r.outside = append(r.outside, outsideQuestion(fmt.Sprintf("calm-%d.%s", i, outside)))
	}
	r.calm = append(r.calm, r.outside...)
	r.calm = append(r.calm, r.cluster.calm...)
	r.calm = append(r.calm, question{name: "calm.hosts.test.", addrs: calmHost})
	for i := range 10 {
		r.calm = append(r.calm, outsideQuestion(fmt.Sprintf("calm-%d.%s", i, overTLS)))
	}
	for _, at := range []struct {
		name string
		node *node
	}{{longLivedName, nil}, {"upgraded", nil}, {"killed", r.node}} {
		a, err := newAgent(at.name, binary, r.dir, at.node)
		if err != nil {
			return err
		}
		if err := a.write(r.corefile(a, baseline(0))); err != nil {
			return err
		}
		if at.name != longLivedName {
			a.compare = r.plan.compare // it has successors that stay
		}
		r.agents = append(r.agents, a)
	}
	r.longLived, r.upgraded, r.killed = r.agents[0], r.agents[1], r.agents[2]
	return r.each(func(a *agent) error { return a.start(ctx) })
}

// startServers starts the API server and the upstreams, and writes certificates.
func (r *run) startServers() error {
	authority, err := ca.New()
	if err != nil {
		return err
	}
	r.roots = &tls.Config{RootCAs: authority.Pool(), ServerName: "127.0.0.1"}
	if err := os.WriteFile(filepath.Join(r.dir, "ca.pem"), authority.PEM(), 0o600); err != nil {
		return err
	}
	cert, err := authority.Server("127.0.0.1", "upstream.test")
	if err != nil {
		return err
	}
	if err := ca.WriteFiles(cert, filepath.Join(r.dir, "server.crt"), filepath.Join(r.dir, "server.key")); err != nil {
		return err
	}
	if r.api, err = fakeapi.OpenHTTPS(r.dir, worldAddr, authority); err != nil {
		return err
	}
	for i := range r.upstreams {
		if r.upstreams[i], err = openUpstream(r.answerUpstream, nil); err != nil {
			return err
		}
	}
	r.secure, err = openUpstream(answerOutside, &tls.Config{Certificates: []tls.Certificate{cert}})
	return err
}

// stop ends the agents as a node does and records those that don't end as they should.
func (r *run) stop(ctx context.Context) {
	for _, a := range r.agents {
		a.Stop()
		if err := a.Err(); err != nil && ctx.Err() == nil {
			r.fault("%s ended with %v and wrote:\n%s", a.name, err, a.Tail())
		}
	}
}

// close ends everything that start has started.
func (r *run) close() {
	defer r.stalled.Wait()
	for _, a := range r.agents {
		if a.Process != nil {
			a.Stop()
		}
	}
	for _, u := range append(r.upstreams[:], r.secure) {
		if u != nil {
			u.Close()
		}
	}
	if r.api != nil {
		r.api.Close()
	}
	if r.node != nil {
		r.node.close()
	}
}

// disturbance is a phase in which something changes.
type disturbance struct {
	name string
	do   func(context.Context) error
}

// disturbances returns the disturbances of a round in order. Round 0 has none.
func (r *run) disturbances() []disturbance {
	if r.round == 0 {
		return nil
	}
	return []disturbance{
		{"reload", r.reloadRandom},
		{"connections", r.connect},
		{"objects", r.changeObjects},
		{"API server away", r.loseAPI},
		{"upstream away", r.loseUpstream},
		{"hand-over", r.handOver},
		{"reload", r.reloadBaseline},
		{killPhase, r.killAgent},
	}
}

// playRound plays a round.
func (r *run) playRound(ctx context.Context) error {
	for _, p := range r.disturbances() {
		if err := r.under(ctx, p.name, r.calm, p.do); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := r.watchAllPods(ctx); err != nil {
		return err
	}
	err := r.under(ctx, "steady", slices.Concat(r.calm, r.cluster.questions()), func(ctx context.Context) error { return pause(ctx, r.plan.steady) })
	if err != nil {
		return fmt.Errorf("steady: %w", err)
	}
	r.stalled.Wait()
	return r.each(func(a *agent) error { return a.takeSample(ctx) })
}

// pause waits for d; the error is ctx's.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// phase returns the phase of that name.
func (r *run) phase(name string) *phase {
	for _, p := range r.phases {
		if p.name == name {
			return p
		}
	}
	r.phases = append(r.phases, &phase{name: name})
	return r.phases[len(r.phases)-1]
}

// freshEvery: one query in so many is for a new name; one in ten of these has no address.
const freshEvery = 5

// under calls do while both agents are asked the questions.
func (r *run) under(ctx context.Context, name string, asked []question, do func(context.Context) error) error {
	serial := r.phase(name).asked // differs in each call
	ask := func(client, i int) question {
		n := i*sockets + client
		if n%freshEvery == 0 {
			zone := outside
			if n/freshEvery%10 == 0 {
				zone = missing
			}
			return outsideQuestion(fmt.Sprintf("r%d-%c%d-%d.%s", r.round, name[0], serial, n, zone))
		}
		return asked[n*7919%len(asked)]
	}
	began, stop := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	tallies, errs := make([]tally, len(r.agents)), make([]error, len(r.agents)+1)
	for i, a := range r.agents {
		wg.Go(func() { tallies[i], errs[i] = loadServers(ctx, a.servers(), r.plan.rate, stop, ask) })
	}
	errs[len(r.agents)] = do(ctx)
	close(stop)
	wg.Wait()
	for i, t := range tallies {
		if name == killPhase && r.agents[i] == r.killed && errors.Join(errs...) == nil {
			errs[i] = r.agents[i].repeat(ctx, &t)
		}
		r.record(name, r.agents[i], t, began)
	}
	return errors.Join(errs...)
}

// record adds the outcomes of a phase, which began at the time. SERVFAIL is no fault where the
// machine was too busy.
func (r *run) record(name string, a *agent, t tally, began time.Time) {
	failed := t.lost + t.wrong
	if !r.stalls.excuses(began) {
		failed += t.servfail
	}
	if failed > 0 {
		r.fault("round %d, %s, %s: %d lost, %d wrong, %d SERVFAIL; %s", r.round, name, a.name, t.lost, t.wrong, t.servfail, t.faults)
	}
	r.phase(name).add(t)
}
