package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// checkTail: nodens tail shows the queries of a pod, none of which the kernel answers meanwhile. Afterwards it
// answers them again.
func (t *networkTest) checkTail(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoLoadPods
	}
	n := t.nodes[0]
	agent, _, err := t.agentOf(ctx, n)
	if err != nil {
		return "", err
	}
	pods, err := podsByNode(ctx, s, chaosNamespace, "app=load")
	if err != nil {
		return "", err
	}
	if err := t.awaitKernelAnswers(ctx, n); err != nil {
		return "", err
	}
	watch := kernelWatch{t: t, node: n}
	cmd := s.cluster.KubectlCommand(ctx, "exec", "--stdin", "--namespace="+agentNamespace, agent, "--",
		"nodens", "tail", "--until-stdin-closes", "--pod", chaosNamespace+"/"+pods[n.Name], "-o", "json")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	defer stdin.Close()
	err = follow(cmd, func(line string) (more bool, err error) { return watch.add(ctx, line) })
	watch.asking.Wait()
	if err = errors.Join(err, watch.failed); err != nil {
		return "", err
	}
	if watch.before != watch.after {
		return "", fmt.Errorf("the kernel has answered %.0f queries while nodens tail showed %d", watch.after-watch.before, watch.shown)
	}
	return fmt.Sprintf("%d queries shown, none answered in the kernel; then it answers again", watch.shown),
		errors.Join(awaitNoCommands(ctx, n), t.awaitKernelAnswers(ctx, n))
}

// kernelWatch counts the queries that nodens tail -o json shows of the node's load client, and those that the
// kernel answers before and after them.
type kernelWatch struct {
	t             *networkTest
	node          *cluster.Node
	shown         int
	before, after float64
	asking        sync.WaitGroup
	failed        error // of the queries
}

// add counts a line. The client asks as soon as it is selected. It returns false if there are enough queries.
func (w *kernelWatch) add(ctx context.Context, line string) (more bool, err error) {
	var l report.TailLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return false, err
	}
	if l.Selected != nil && w.shown == 0 {
		w.before, err = w.t.answeredInKernel(ctx, w.node)
		w.asking.Go(func() { w.failed = errors.Join(w.failed, w.t.askOnce(ctx, w.node)) })
	}
	if l.Query != nil {
		w.shown++
	}
	if w.shown == leastTailed {
		w.after, err = w.t.answeredInKernel(ctx, w.node)
	}
	return w.shown < leastTailed, err
}

// answeredInKernel returns the number of the node's queries answered in the kernel.
func (t *networkTest) answeredInKernel(ctx context.Context, n *cluster.Node) (float64, error) {
	return t.cluster.MetricSum(ctx, n, metricsPort, kernelQueriesMetric, `result="answered"`)
}

// askOnce runs a short job in the node's load client.
func (t *networkTest) askOnce(ctx context.Context, n *cluster.Node) error {
	j := shortJob(t.serviceJob())
	j.Duration = 5 * leastTailed * time.Second / time.Duration(j.Rate)
	c, err := t.startJob(ctx, n, j)
	if err == nil {
		_, err = c.Wait()
	}
	return err
}

// awaitKernelAnswers waits until the kernel answers queries of the node's load client.
func (t *networkTest) awaitKernelAnswers(ctx context.Context, n *cluster.Node) error {
	return peer.Await(ctx, "the kernel to answer the pod on "+n.Name, func(ctx context.Context) error {
		before, err := t.answeredInKernel(ctx, n)
		if err != nil {
			return err
		}
		if err := t.askOnce(ctx, n); err != nil {
			return err
		}
		after, err := t.answeredInKernel(ctx, n)
		if err == nil && after == before {
			err = fmt.Errorf("it has answered none of its queries: %.0f", after)
		}
		return err
	})
}
