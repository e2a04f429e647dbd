package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// checkExplain asks kubectl nodens explain about the pods on both nodes, and then lets the pods look up the
// same names.
func (t *incidentTest) checkExplain(ctx context.Context, s *suite) (string, error) {
	names := []string{"kubernetes.default", checkout.lookedUp, "api.exchange.example.", "gone", "www.nx.outside.test"}
	pods := t.pods[checkout.String()]
	err := forEach(slices.Collect(maps.Keys(pods)), func(node string) error {
		for _, name := range names {
			if err := t.compareExplained(ctx, s, node, pods[node], name); err != nil {
				return fmt.Errorf("%s in pod %s: %w", name, pods[node], err)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := t.checkExplainRights(ctx, s); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d names in %d pods", len(names), len(pods)), t.showWith(ctx, s, "explain", checkout.lookedUp)
}

// compareExplained compares an explanation with what the pod gets. If the reply of an upstream is not cached, the
// pod looks the name up before.
func (t *incidentTest) compareExplained(ctx context.Context, s *suite, node, pod, name string) error {
	var differs error
	err := peer.Await(ctx, "an explanation with a reply", func(ctx context.Context) error {
		var e report.Explanation
		if err := t.ask(ctx, s, &e, "explain", name, "--from", checkout.namespace+"/"+pod); err != nil {
			return err
		}
		got, err := t.lookup(ctx, s, pod, name)
		if err != nil {
			return err
		}
		last := &e.Questions[len(e.Questions)-1]
		if last.Rcode == "" {
			return fmt.Errorf("the reply is not known: it waits for %q", last.Waits)
		}
		if want := explainedAddresses(last); e.Node != node || e.Client.Pod != pod || !slices.Equal(want, got) || len(got) == 0 != (last.Rcode == "NXDOMAIN") {
			differs = fmt.Errorf("node %s explains for pod %s: %s %v; the pod on %s gets %v", e.Node, e.Client.Pod, last.Rcode, want, node, got)
		}
		return nil
	})
	return errors.Join(err, differs)
}

// explainedAddresses returns the addresses in an answer, in the order of their text.
func explainedAddresses(q *report.ExplainedQuestion) (list []string) {
	for _, record := range q.Answers {
		if fields := strings.Fields(record); len(fields) == 5 && fields[3] == "A" {
			list = append(list, fields[4])
		}
	}
	slices.Sort(list)
	return list
}

// checkExplainRights: the node of a pod that the user may not see is not found, but can be given.
func (t *incidentTest) checkExplainRights(ctx context.Context, s *suite) error {
	for node, pod := range t.pods[fraud.String()] {
		args := []string{"nodens", "explain", fraud.lookedUp, "--from", fraud.namespace + "/" + pod}
		config := s.cluster.KubeconfigOf(cluster.Operator)
		const refusal = `cannot get resource "pods"`
		if out, err := t.command(ctx, s, config, args...).CombinedOutput(); err == nil || !strings.Contains(string(out), refusal) {
			return fmt.Errorf("want %s: %w\n%s", refusal, err, out)
		}
		err := peer.Await(ctx, "kubectl nodens explain --node", func(ctx context.Context) error {
			out, err := t.command(ctx, s, config, append(args, "--node", node)...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// follow runs a command that prints until it is interrupted, which it does as soon as each returns that it
// needs no more lines.
func follow(cmd *exec.Cmd, each func(line string) (more bool, err error)) error {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	more, lines := true, bufio.NewScanner(out)
	for more && err == nil && lines.Scan() {
		more, err = each(lines.Text())
	}
	_ = cmd.Process.Signal(os.Interrupt)
	_, _ = io.Copy(io.Discard, out) // it may be writing
	ended := cmd.Wait()
	if more && err == nil {
		err = fmt.Errorf("it has ended: %w", errors.Join(lines.Err(), ended))
	}
	return err
}

// checkTail follows the queries of a pod. The command in the agent's pod ends with kubectl nodens tail.
func (t *incidentTest) checkTail(ctx context.Context, s *suite) (seen string, err error) {
	c := findCommand("tail")
	config := s.cluster.KubeconfigOf(cluster.Operator)
	var got tailed
	err = follow(t.command(ctx, s, config, append(c.argv(t.words), "-o", "json")...), func(line string) (bool, error) {
		return got.add(line, checkout.namespace, t.words["checkout"])
	})
	if err != nil {
		return "", err
	}
	var table []string
	err = follow(t.command(ctx, s, config, c.argv(t.words)...), func(line string) (bool, error) {
		table = append(table, line+"\n")
		return len(table) <= c.most, nil
	})
	t.keep(c, strings.Join(table, ""))
	if err != nil {
		return "", err
	}
	return got.String(), awaitNoCommands(ctx, s.cluster.Nodes()[0])
}

// awaitNoCommands waits until the agent is the only process of nodens on the node.
func awaitNoCommands(ctx context.Context, n *cluster.Node) error {
	return peer.Await(ctx, "the commands in the agent's pod to end", func(ctx context.Context) error {
		out, err := n.Command(ctx, "pidof", "nodens").Output()
		if err == nil && len(strings.Fields(string(out))) != 1 {
			err = fmt.Errorf("processes %s", out)
		}
		return err
	})
}

// tailed counts the queries that nodens tail -o json prints.
type tailed struct {
	selected         bool
	wasted, followed int
}

// leastTailed is the number of queries of each kind that are awaited.
const leastTailed = 20

func (n *tailed) String() string {
	return fmt.Sprintf("%d queries of the search path, %d others", n.wasted, n.followed)
}

// add counts a line. It returns false if there are enough, and an error for a query of another pod.
func (n *tailed) add(line, namespace, pod string) (more bool, err error) {
	var l report.TailLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return false, err
	}
	switch {
	case l.Selected != nil:
		n.selected = len(l.Selected.Addresses) == 1
	case l.Query == nil:
	case !n.selected || l.Query.Namespace != namespace || l.Query.Pod != pod:
		return false, fmt.Errorf("a query of another client, or before it is selected: %s", line)
	case l.Query.SearchPath == "waste":
		n.wasted++
	default:
		n.followed++
	}
	return n.wasted < leastTailed || n.followed < leastTailed, nil
}
