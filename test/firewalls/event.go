package firewalls

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// Outcome is what an event has shown.
type Outcome struct {
	Event string
	load.Counts
	// Wanted says that all queries must be answered. During others, the agent has to notice something first.
	Wanted bool
	// Fault is what is wrong beside the queries.
	Fault error
	// Took is how long the event and its queries took.
	Took time.Duration
}

// Failed reports whether the outcome is not what it has to be.
func (o Outcome) Failed() bool { return o.Fault != nil || o.Wanted && o.Counts.Failed() > 0 }

func (o Outcome) String() string {
	s := fmt.Sprintf("%s: %d of %d lost, %d SERVFAIL, %d by the agent, %d by the cluster DNS, %.1f s", o.Event, o.Lost+o.Other, o.Asked, o.Servfail, o.Local, o.Cluster, o.Took.Seconds())
	if o.Fault != nil {
		s += "; " + o.Fault.Error()
	}
	return s
}

// Event is something that happens to a node with an agent.
type Event struct {
	Name string
	// do lets it happen and counts.
	do func(ctx context.Context, r *run) (load.Counts, error)
	// wanted is Outcome.Wanted.
	wanted bool
}

// run is a bed with the agent that serves at the moment.
type run struct {
	*Bed
	agent *peer.Process
	// before are others' objects before the agent's start, and unreadable the releases whose nft can't list them: an
	// older one ends with SIGSEGV at what 1.1.3 wrote.
	before     string
	unreadable []string
}

// burst is how long queries are sent to see whether they are answered.
const burst = 300 * time.Millisecond

// Events returns what happens, in this order.
func Events() []Event {
	return []Event{
		{"without the agent", withoutAgent, true},
		{"start", start, true},
		{"list", list, false},
		{"reload", reload, false},
		{"after the reload", answered, true},
		{"addresses removed", addressesRemoved, false},
		{"after that", answered, true},
		{"upgrade", upgrade, true},
		{"kill", kill, true},
		{"cleanup", cleanup, true},
		{"arrives", arrives, false},
		{"after it has arrived", answered, true},
		{"reboot", reboot, false},
		{"after the reboot", afterReboot, true},
	}
}

// Run lets all events happen. It goes on after a failure, because one of them hides no other.
func (b *Bed) Run(ctx context.Context) []Outcome {
	r := &run{Bed: b}
	var all []Outcome
	for _, e := range Events() {
		begin := time.Now()
		counts, err := e.do(ctx, r)
		all = append(all, Outcome{e.Name, counts, e.wanted, err, time.Since(begin)})
		if e.Name == "without the agent" && err != nil {
			break // no firewall
		}
	}
	return all
}

func withoutAgent(ctx context.Context, r *run) (load.Counts, error) {
	for _, script := range []string{r.Load, r.Reload} { // what the second changes is no difference later
		if _, err := r.host.sh(ctx, script); err != nil {
			return load.Counts{}, err
		}
	}
	var err error
	if r.before, err = r.objects(ctx, true); err != nil {
		return load.Counts{}, err
	}
	for number := range r.listErrors(ctx) {
		r.unreadable = append(r.unreadable, number)
	}
	return r.ask(burst, testbed.ClusterDNS4, testbed.ClusterDNS6)
}

func start(_ context.Context, r *run) (counts load.Counts, err error) {
	r.agent, err = r.startAgent()
	counts, askErr := r.ask(burst)
	return counts, errors.Join(err, askErr)
}

// list has each nft list the rules that could do so before the start, and compares the others' with those then.
func list(ctx context.Context, r *run) (load.Counts, error) {
	var err error
	for number, listErr := range r.listErrors(ctx) {
		if !slices.Contains(r.unreadable, number) {
			err = errors.Join(err, listErr)
		}
	}
	now, objErr := r.objects(ctx, false)
	if objErr == nil && now != r.before {
		objErr = fmt.Errorf("others' objects have changed:\n%s", difference(r.before, now))
	}
	return load.Counts{}, errors.Join(err, objErr)
}

func reload(ctx context.Context, r *run) (load.Counts, error) {
	return r.during(gapJob(), func() error {
		_, err := r.host.sh(ctx, r.Reload)
		return err
	})
}

// addressesRemoved removes the agent's addresses, as systemd-networkd does when it starts again with a
// configuration that matches the interface, and NetworkManager with one that it takes for its own.
func addressesRemoved(_ context.Context, r *run) (load.Counts, error) {
	return r.during(gapJob(), func() error {
		return r.sh(r.Node, removeAddresses)
	})
}

// removeAddresses is run in the node.
const removeAddresses = "for a in " + testbed.Local4 + "/32 " + testbed.Local6 + "/128; do ip addr del $a dev $(ip -o addr show to $a | awk '{print $2}'); done"

// answered waits until the agent answers, and then wants all answers.
func answered(ctx context.Context, r *run) (load.Counts, error) {
	err := r.awaitAnswers(ctx)
	counts, askErr := r.ask(burst)
	return counts, errors.Join(err, askErr)
}

func upgrade(_ context.Context, r *run) (load.Counts, error) {
	old := r.agent
	return r.during(job(burst), func() (err error) {
		if r.agent, err = r.startAgent(); err != nil {
			return err
		}
		return gone(old)
	})
}

// gone waits until the predecessor of an agent has ended.
func gone(p *peer.Process) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(time.Minute):
		return errors.New("the predecessor does not end")
	}
}

// kill kills the agent, and wants all answers of the cluster DNS.
func kill(ctx context.Context, r *run) (load.Counts, error) {
	if r.agent != nil {
		r.agent.Kill()
	}
	return r.ask(burst)
}

// cleanup removes what the killed agent has left, and compares.
func cleanup(ctx context.Context, r *run) (load.Counts, error) {
	err := r.cleanUp(ctx)
	return load.Counts{}, errors.Join(err, r.compare(ctx))
}

// compare compares all objects with those before the agent.
func (r *run) compare(ctx context.Context) error {
	now, err := r.objects(ctx, true)
	if err == nil && now != r.before {
		err = fmt.Errorf("not as before the agent:\n%s", difference(r.before, now))
	}
	return err
}

// arrives starts an agent on a node without the firewall, which then comes under load.
func arrives(ctx context.Context, r *run) (counts load.Counts, err error) {
	if err := r.reset(ctx, r.Unload); err != nil {
		return counts, err
	}
	if err := r.addProxy(); err != nil {
		return counts, err
	}
	if r.agent, err = r.startAgent(); err != nil {
		return counts, err
	}
	return r.during(gapJob(), func() error {
		_, err := r.host.sh(ctx, r.Load)
		return err
	})
}

// reset removes all rules, as a reboot does.
func (r *run) reset(ctx context.Context, unload string) error {
	_, err := r.host.sh(ctx, unload+`
nft flush ruleset
for f in ip ip6; do for t in $(cat /proc/net/${f}_tables_names 2>/dev/null); do
	p=$(echo $f | sed 's/ip$/iptables/;s/ip6$/ip6tables/')-legacy
	$p -t $t -F; $p -t $t -X
	[ $t != filter ] || for c in INPUT FORWARD OUTPUT; do $p -P $c ACCEPT; done
done; done`)
	return err
}

// unloadable matches what an nft prints and can't read: rules of iptables, and in 0.9.8 the flag of a table with
// an owner. docs/how-to/troubleshoot.md has it, and that the table of a running agent can't be replaced.
var unloadable = regexp.MustCompile(`(?m) xt (match|target) |^\tflags ,`)

// reboot saves the rules as Debian's nftables.service is told to, kills the agent, removes all rules and the
// addresses, and loads the file. Then the agent starts.
func reboot(ctx context.Context, r *run) (counts load.Counts, err error) {
	if !r.Saved {
		return counts, nil
	}
	saved, err := r.host.sh(ctx, "nft list ruleset | tee /run/saved; (echo flush ruleset; sed '/^table inet nodens-host-/,/^}/d' /run/saved) >/run/loaded")
	if err != nil {
		return counts, err
	}
	load := "nft -f /run/saved"
	if unloadable.MatchString(saved) {
		load = r.Load
	} else if _, check := r.host.sh(ctx, "nft -c -f /run/loaded"); check != nil {
		err = fmt.Errorf("while the agent runs: %w", check)
	}
	if r.agent != nil {
		r.agent.Kill()
	}
	err = errors.Join(err, r.reset(ctx, ""), r.cleanUp(ctx))
	if _, boot := r.host.sh(ctx, load); boot != nil {
		err = errors.Join(err, fmt.Errorf("at the boot: %w", boot))
	}
	return counts, err
}

func afterReboot(ctx context.Context, r *run) (counts load.Counts, err error) {
	if !r.Saved {
		return counts, nil
	}
	if r.agent, err = r.startAgent(); err != nil {
		return counts, err
	}
	counts, err = r.ask(burst)
	r.agent.Stop()
	now, objErr := r.objects(ctx, true)
	if left := ownLeft(now); objErr == nil && left != "" {
		objErr = fmt.Errorf("the agent has left %s", left)
	}
	return counts, errors.Join(err, objErr)
}

// patience is how long the agent may take until it has repaired what a firewall has changed. It looks every
// second.
const patience = 10 * time.Second

// awaitAnswers waits until the agent's addresses answer.
func (b *Bed) awaitAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return peer.Await(ctx, "the agent to answer", func(context.Context) error {
		j := gapJob()
		j.Duration /= 3
		counts, err := b.during(j, nil)
		if err == nil && counts.Failed() > 0 {
			err = fmt.Errorf("%d of %d lost", counts.Failed(), counts.Asked)
		}
		return err
	})
}
