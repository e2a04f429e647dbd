package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/nodens-dns/nodens/internal/report"
)

// askedAtOnce bounds the nodes that are asked at the same time.
const askedAtOnce = 16

// Question is a command to run in the agents' pods, whose reply is a T.
type Question[T any] struct {
	// Node is the only node to ask, whose agents are asked until one replies; "" for all nodes.
	Node string
	// Args are nodens' arguments. The command prints a T, which begins with a report.Header, as JSON.
	Args []string
	// Input is the command's standard input; nil for none.
	Input []byte
	// Serves compares the replies of two agents on one node. It is positive if a's agent serves the node, and
	// negative if b's does.
	Serves func(a, b *T) int
	// Each receives one reply from each node, one at a time, in the order of arrival.
	Each func(node string, reply *T)
}

// Ask runs the command in all agents' pods. Agents on the same node are asked one after the other, and
// one of their replies counts: during an upgrade there are two, mostly with the same admin socket. It
// returns the number of nodes that answered, and names the agents that did not. The error is the one of
// ctx, or says that kubectl can't list the pods.
func Ask[T any](ctx context.Context, c *Cluster, q *Question[T]) (report.Cluster, error) {
	result := report.Cluster{SchemaVersion: report.SchemaVersion, Unanswered: []report.Unanswered{}}
	agents, err := c.Agents(ctx)
	if err != nil {
		return result, err
	}
	if q.Node != "" {
		agents = slices.DeleteFunc(agents, func(a Agent) bool { return a.Node != q.Node })
		if len(agents) == 0 {
			return result, fmt.Errorf("no pod of an agent is on the node %s", q.Node)
		}
	}
	var mu sync.Mutex // guards result, and calls Each for one node at a time
	var asking sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, list := range byNode(agents) {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			reply, unanswered := askNode(ctx, c, q, list)
			mu.Lock()
			defer mu.Unlock()
			result.Unanswered = append(result.Unanswered, unanswered...)
			if reply != nil {
				result.Nodes++
				q.Each(list[0].Node, reply)
			}
		})
	}
	asking.Wait()
	slices.SortFunc(result.Unanswered, func(a, b report.Unanswered) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod))
	})
	return result, ctx.Err()
}

// byNode returns the agents of each node. A pod without a node is alone.
func byNode(agents []Agent) (nodes [][]Agent) {
	index := make(map[string]int)
	for _, a := range agents {
		i, ok := index[a.Node]
		if !ok || a.Node == "" {
			i, nodes = len(nodes), append(nodes, nil)
			index[a.Node] = i
		}
		nodes[i] = append(nodes[i], a)
	}
	return nodes
}

// askNode asks the agents of one node. It returns one reply, or nil, and the agents without one.
func askNode[T any](ctx context.Context, c *Cluster, q *Question[T], agents []Agent) (best *T, unanswered []report.Unanswered) {
	var waiting []report.Unanswered // agents whose containers do not run
	for _, agent := range agents {
		if q.Node != "" && best != nil {
			break
		}
		failed := report.Unanswered{Node: agent.Node, Pod: agent.Pod}
		if agent.Phase != "Running" {
			failed.Reason = "the pod is " + cmp.Or(agent.Phase, "not running")
			waiting = append(waiting, failed)
			continue
		}
		reply, err := askAgent(ctx, c, agent.Pod, q)
		switch {
		case err != nil:
			failed.Reason = report.Printable(err.Error())
			unanswered = append(unanswered, failed)
		case best == nil || q.Serves(reply, best) > 0:
			best = reply
		}
	}
	if best == nil {
		unanswered = append(unanswered, waiting...)
	}
	return best, unanswered
}

// askAgent runs nodens in a pod and decodes its reply. A reply counts whatever the exit code, because
// `nodens status` of an agent with a problem ends with 1.
func askAgent[T any](ctx context.Context, c *Cluster, pod string, q *Question[T]) (*T, error) {
	command := []string{"exec", pod}
	if q.Input != nil {
		command = append(command, "--stdin")
	}
	command = append(append(command, "--", "nodens"), q.Args...)
	out, failed, err := c.run(ctx, limits{c.Timeout, replyBytes}, q.Input, command...)
	if err != nil && (!failed || len(out) == 0) {
		return nil, err
	}
	var header report.Header
	if invalid := json.Unmarshal(out, &header); invalid != nil {
		return nil, cmp.Or(err, fmt.Errorf("the reply is not valid: %w", invalid))
	}
	if header.SchemaVersion != report.SchemaVersion {
		return nil, fmt.Errorf("the reply has the schema version %d, and this program knows %d; use the program of the agent's version", header.SchemaVersion, report.SchemaVersion)
	}
	reply := new(T)
	if err := report.Unmarshal(out, reply); err != nil {
		return nil, fmt.Errorf("the reply is not valid: %w", err)
	}
	return reply, nil
}
