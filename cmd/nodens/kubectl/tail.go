package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// maxTailNodes bounds the nodes whose queries are shown at once. Each takes a process here, and one in the
	// agent's pod.
	maxTailNodes = 16
	// firstPause and longestPause bound the time until a node is tried again.
	firstPause   = 200 * time.Millisecond
	longestPause = 15 * time.Second
)

// Tail says what [Follow] runs and where.
type Tail struct {
	// Nodes are the nodes; none means all that have an agent.
	Nodes []string
	// Namespace and Pod are a pod on whose node the command runs, in place of Nodes.
	Namespace, Pod string
	// Refresh is how often new nodes, and the node of the pod, are looked up.
	Refresh time.Duration
	// Silence is the time after which a command is taken to be cut off if it prints nothing, not even a heartbeat. It
	// ends after the same time without a line from here.
	Silence time.Duration
	// Time bounds the whole. Args returns the arguments of nodens for a command that ends after so long. The command
	// prints [report.TailLine] as JSON, and takes --stdin-timeout.
	Time time.Duration
	Args func(time.Duration) []string
	// Started gets the nodes before the first call of Print. An error ends Follow.
	Started func(nodes []string) error
	// Print gets events in the order of their arrival, and the number of queries that were lost after them because
	// it was too slow. It is called at least every five seconds, perhaps without events. An error ends Follow.
	Print func(events []TailEvent, lost uint64) error
}

// TailEvent is a line of a node, or a note about it.
type TailEvent struct {
	Node string // "" for a note about no node
	Line *report.TailLine
	JSON []byte // of Line
	Note string // without Line
}

// Follow runs the command in one agent's pod of each node until ctx ends or the time is over, which is no error. A
// node whose command ends is tried again, in the pod that is there then. It is an error if no node has answered
// at all. All processes that Follow has started have ended when it returns.
func Follow(ctx context.Context, c *Cluster, t *Tail) error {
	timed, cancel := context.WithTimeout(ctx, t.Time)
	defer cancel()
	f := &follower{cluster: c, tail: t, end: time.Now().Add(t.Time), queue: newTailQueue(), nodes: make(map[string]*tailedNode), refused: make(map[string]bool), ended: make(chan commandEnd)}
	if err := f.refresh(timed); err != nil && timed.Err() == nil {
		return err
	}
	if err := t.Started(slices.Sorted(maps.Keys(f.nodes))); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		defer f.queue.close()
		failed <- f.run(timed)
	}()
	err := f.queue.print(t.Print)
	cancel()
	return cmp.Or(err, <-failed)
}

// follower keeps a command running on each node. Its methods are for one goroutine.
type follower struct {
	cluster *Cluster
	tail    *Tail
	end     time.Time
	queue   *tailQueue
	nodes   map[string]*tailedNode
	refused map[string]bool // nodes beyond the limit
	// ended gets the end of each command, running is the number of those that have not ended.
	ended   chan commandEnd
	running int
	// answered says that a node has answered.
	answered bool
	// refreshed is when nodes were looked up last, problem why this has failed since.
	refreshed time.Time
	problem   error
	podNode   string // of the pod
}

// tailedNode is a node whose queries are shown.
type tailedNode struct {
	name    string
	agents  []Agent
	tries   int                // commands until now
	cancel  context.CancelFunc // nil: no command runs
	retry   time.Time          // when the next command starts
	pause   time.Duration      // until then, if it fails, too
	failure error              // why the last command has ended
	noted   bool               // the user knows that
}

// commandEnd is the end of a command on a node.
type commandEnd struct {
	node     *tailedNode
	err      error
	answered bool
}

// run starts commands and looks nodes up until ctx ends. It returns when the commands have ended.
func (f *follower) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for ; f.running > 0; f.running-- {
			<-f.ended
		}
	}()
	for ctx.Err() == nil {
		f.start(ctx)
		if err := f.failed(); err != nil {
			return err
		}
		f.noteFailures()
		select {
		case <-ctx.Done():
			return nil
		case e := <-f.ended:
			f.commandEnded(e)
		case <-time.After(time.Until(f.next())):
			f.lookUp(ctx)
		}
	}
	return nil
}

// start starts the commands that are due.
func (f *follower) start(ctx context.Context) {
	for _, n := range f.nodes {
		if n.cancel != nil || time.Now().Before(n.retry) {
			continue
		}
		pod, err := n.pick()
		if err != nil {
			n.fail(err)
			continue
		}
		var command context.Context
		command, n.cancel = context.WithCancel(ctx)
		n.tries++
		f.running++
		args := f.tail.Args(min(f.tail.Time, time.Until(f.end).Truncate(time.Second)+endTime)) // after f.end
		lines := &nodeLines{node: n.name, queue: f.queue, again: n.noted}
		go func() {
			err := f.cluster.follow(command, pod, args, f.tail.Silence, lines.add)
			f.ended <- commandEnd{n, fmt.Errorf("pod %s: %w", pod, err), lines.answered.Load()}
		}()
	}
}

// commandEnded notes the end of a command, which is tried again unless its node is no longer shown.
func (f *follower) commandEnded(e commandEnd) {
	n := e.node
	n.cancel()
	n.cancel = nil
	f.running--
	if e.answered {
		f.answered, n.noted, n.pause = true, false, 0
	}
	n.fail(e.err)
}

// failed returns an error if no node has answered and none will.
func (f *follower) failed() error {
	if f.answered || f.running > 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(f.nodes))
	if len(names) == 0 {
		return errors.New("no agent has answered")
	}
	return fmt.Errorf("no agent has answered; node %s, %w", names[0], f.nodes[names[0]].failure)
}

// noteFailures tells the user about nodes without a command, once for each outage.
func (f *follower) noteFailures() {
	for _, n := range f.nodes {
		if n.cancel == nil && !n.noted {
			n.noted = true
			f.queue.note(n.name, n.failure.Error()+"; trying again")
		}
	}
}

// next returns when nodes have to be looked up: also before a command is started again.
func (f *follower) next() time.Time {
	at := f.refreshed.Add(f.tail.Refresh)
	for _, n := range f.nodes {
		if n.cancel == nil && n.retry.Before(at) {
			at = n.retry
		}
	}
	return at
}

// lookUp refreshes the nodes. An outage is noted once.
func (f *follower) lookUp(ctx context.Context) {
	err := f.refresh(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil && f.problem == nil {
		f.queue.note("", err.Error()+"; trying again")
	}
	f.problem = err
	if err == nil {
		return
	}
	for _, n := range f.nodes {
		if n.cancel == nil && !n.retry.After(time.Now()) {
			n.fail(n.failure)
		}
	}
}

// refresh looks up which nodes are shown, and the agents' pods on them if a command has to be started.
func (f *follower) refresh(ctx context.Context) error {
	f.refreshed = time.Now()
	wanted := f.tail.Nodes
	if f.tail.Pod != "" {
		node, err := f.cluster.NodeOf(ctx, f.tail.Namespace, f.tail.Pod)
		if err != nil {
			return err
		}
		f.movePod(node)
		wanted = []string{node}
	}
	if len(wanted) > 0 && !slices.ContainsFunc(wanted, f.lacksCommand) {
		return nil
	}
	byNode, err := f.agentsByNode(ctx)
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		wanted = slices.Sorted(maps.Keys(byNode))
	}
	if len(f.nodes) == 0 && !f.answered {
		if err := checkNodes(wanted, byNode); err != nil {
			return err
		}
	}
	f.setNodes(wanted, byNode)
	return nil
}

// agentsByNode lists the agents. Pods without a node are left out.
func (f *follower) agentsByNode(ctx context.Context) (map[string][]Agent, error) {
	agents, err := f.cluster.Agents(ctx)
	byNode := make(map[string][]Agent)
	for _, a := range agents {
		if a.Node != "" {
			byNode[a.Node] = append(byNode[a.Node], a)
		}
	}
	return byNode, err
}

// lacksCommand reports whether no command runs on a node.
func (f *follower) lacksCommand(name string) bool {
	return f.nodes[name] == nil || f.nodes[name].cancel == nil
}

// checkNodes returns an error if there are too many nodes, or one of them has no agent.
func checkNodes(wanted []string, agents map[string][]Agent) error {
	if len(wanted) > maxTailNodes {
		return fmt.Errorf("agents run on %d nodes, and a tail shows %d at most; give --node, or --pod NAMESPACE/NAME", len(wanted), maxTailNodes)
	}
	for _, name := range wanted {
		if len(agents[name]) == 0 {
			return fmt.Errorf("no pod of an agent is on the node %s", name)
		}
	}
	return nil
}

// movePod ends the command on the node where the pod was.
func (f *follower) movePod(node string) {
	if old := f.nodes[f.podNode]; old != nil && f.podNode != node {
		f.queue.note(node, fmt.Sprintf("the pod %s/%s is here now", f.tail.Namespace, f.tail.Pod))
		if old.cancel != nil {
			old.cancel()
		}
		delete(f.nodes, f.podNode)
	}
	f.podNode = node
}

// setNodes adds the nodes that are not shown yet. Those that have no agent any more, and no command, are
// removed.
func (f *follower) setNodes(wanted []string, agents map[string][]Agent) {
	for name, n := range f.nodes {
		if n.agents = agents[name]; n.cancel == nil && !slices.Contains(wanted, name) {
			delete(f.nodes, name)
		}
	}
	for _, name := range wanted {
		switch {
		case f.nodes[name] != nil:
		case len(f.nodes) < maxTailNodes:
			f.nodes[name] = &tailedNode{name: name, agents: agents[name]}
		case !f.refused[name]:
			f.refused[name] = true
			f.queue.note(name, fmt.Sprintf("not shown, because %d nodes are", maxTailNodes))
		}
	}
}

// pick returns the pod for the next command: another one than last time, if the node has several during an
// upgrade.
func (n *tailedNode) pick() (string, error) {
	var running []string
	for _, a := range n.agents {
		if a.Phase == "Running" {
			running = append(running, a.Pod)
		}
	}
	switch {
	case len(running) > 0:
		return running[n.tries%len(running)], nil
	case len(n.agents) > 0:
		return "", fmt.Errorf("pod %s: the pod is %s", n.agents[0].Pod, cmp.Or(n.agents[0].Phase, "not running"))
	}
	return "", errors.New("no pod of an agent is here")
}

// fail sets why there is no command, and puts the next one off, each time for longer.
func (n *tailedNode) fail(err error) {
	n.failure = err
	n.pause = min(max(firstPause, 2*n.pause), longestPause)
	n.retry = time.Now().Add(n.pause)
}
