package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// noticeTime bounds the time from the first failed query to the last one of a bad agent. A fault
// shows within two comparisons, a hang after 3 s; the rest is for a busy machine.
const noticeTime = 2 * cluster.CompareSeconds * time.Second

// rollbackTest is the state of the part rollback.
type rollbackTest struct {
	chaosTest
	agents []badAgent
}

// rollback returns the checks of the part rollback: bad agents are rolled out under load, and an
// earlier agent.
func rollback() []check {
	h := &rollbackTest{}
	list := []check{
		{"images of bad agents and of an earlier one", h.writeVariants},
		{"pods on all nodes query their agents", h.setUp},
	}
	for _, b := range badAgents {
		list = append(list, check{"bad agent: " + b.name, func(ctx context.Context, s *suite) (string, error) {
			if !h.chosen(b) {
				return "not chosen by -bad", nil
			}
			return h.runBad(ctx, b)
		}})
	}
	return append(list,
		check{"downgrade to the last release, and back", h.downgrade},
		check{"the agents are as before", h.restore})
}

func (h *rollbackTest) chosen(b badAgent) bool {
	for _, a := range h.agents {
		if a.name == b.name {
			return true
		}
	}
	return false
}

// writeVariants builds the agents, and gives their images to the nodes.
func (h *rollbackTest) writeVariants(ctx context.Context, s *suite) (string, error) {
	bad, err := buildBadAgent(ctx, s.root, filepath.Join(s.dir, "bad.d"))
	if err != nil {
		return "", err
	}
	earlier, err := earlierProgram(ctx, s.root)
	if err != nil {
		return "", err
	}
	variants := []agentVariant{{image: earlierImage, program: earlier}}
	for _, b := range s.bad {
		variants = append(variants, agentVariant{b.image(), bad, b.name})
	}
	if err := s.importVariants(ctx, variants); err != nil {
		return "", err
	}
	h.agents = s.bad
	return fmt.Sprintf("%d images", len(variants)), nil
}

// setUp starts the pods that ask.
func (h *rollbackTest) setUp(ctx context.Context, s *suite) (string, error) {
	if _, err := s.cluster.Kubectl(ctx, "", "delete", "namespace", chaosNamespace, "--ignore-not-found", "--timeout=60s"); err != nil {
		return "", err
	}
	seen, err := h.chaosTest.setUp(ctx, s)
	if err != nil {
		return "", err
	}
	return seen, h.waitAgentsReady(ctx)
}

// surge sets the number of nodes whose agents are replaced at the same time.
func (h *rollbackTest) surge(ctx context.Context, nodes string) error {
	return h.kubectl(ctx, "patch", "daemonset", agentDaemonSet, "--type=merge",
		`--patch={"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":`+nodes+`}}}}`)
}

// badRollout is what happened when a bad agent was rolled out.
type badRollout struct {
	node string // where the bad agent was
	// began is when the rollout began, and back when the node had its agent back.
	began, back time.Time
}

// runBad rolls out a bad agent under load. It must end on the first node, and the operator must
// see why.
func (h *rollbackTest) runBad(ctx context.Context, b badAgent) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	var rollout badRollout
	perNode, err := h.underLoad(ctx, func(ctx context.Context) (_ map[string]podKill, err error) {
		rollout, err = h.rollOut(ctx, b)
		return nil, err
	})
	if err != nil {
		return "", errors.Join(err, h.undo(ctx))
	}
	var seen []string
	for _, t := range perNode {
		if t.node != rollout.node {
			seen = append(seen, t.String())
			err = errors.Join(err, lossless.check(t))
			continue
		}
		text, problem := b.check(t, rollout)
		seen = append(seen, text)
		err = errors.Join(err, problem)
	}
	return strings.Join(seen, "; "), err
}

// rollOut rolls out a bad agent, waits until it has ended and the rollout stands still, and takes
// the rollout back.
func (h *rollbackTest) rollOut(ctx context.Context, b badAgent) (r badRollout, err error) {
	sleep(ctx, 2*time.Second) // so that the running agents know how it was before
	r.began = time.Now()
	if err := h.kubectl(ctx, "set", "image", "daemonset/"+agentDaemonSet, "node-cache="+b.image()); err != nil {
		return r, err
	}
	pod, err := h.awaitEnded(ctx, b)
	if err != nil {
		return r, err
	}
	r.node, r.back = pod.Spec.NodeName, time.Now()
	sleep(ctx, outageTime) // the load goes on with the old agent
	if err := h.checkStopped(ctx, b, pod); err != nil {
		return r, err
	}
	return r, h.undo(ctx)
}

// undo takes the last rollout back.
func (h *rollbackTest) undo(ctx context.Context) error {
	err := h.kubectl(ctx, "rollout", "undo", "daemonset/"+agentDaemonSet)
	if err == nil {
		err = h.awaitRollout(ctx)
	}
	return errors.Join(err, h.waitAgentsReady(ctx))
}

// awaitEnded waits until a bad agent has ended with an error, and returns its pod.
func (h *rollbackTest) awaitEnded(ctx context.Context, b badAgent) (pod corev1.Pod, err error) {
	err = peer.Await(ctx, "the bad agent to end", func(ctx context.Context) error {
		list, err := h.agentPods(ctx)
		if err != nil {
			return err
		}
		for _, p := range list {
			if p.Spec.Containers[0].Image == b.image() && len(p.Status.ContainerStatuses) > 0 {
				c := p.Status.ContainerStatuses[0]
				if c.State.Terminated != nil || c.LastTerminationState.Terminated != nil {
					pod = p
					return nil
				}
			}
		}
		sleep(ctx, pollInterval)
		return errors.New("it still runs, or has not started")
	})
	return pod, err
}

// checkStopped returns an error unless the rollout has stopped at the pod's node, with the old
// agents ready, and the operator sees the reason in all places.
func (h *rollbackTest) checkStopped(ctx context.Context, b badAgent, pod corev1.Pod) error {
	list, err := h.agentPods(ctx)
	if err != nil {
		return err
	}
	ready, bad := 0, 0
	for _, p := range list {
		switch {
		case p.Spec.Containers[0].Image == b.image():
			bad++
		case len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready && p.DeletionTimestamp == nil:
			ready++
		}
	}
	if bad != 1 || ready != len(h.nodes) {
		return fmt.Errorf("%d bad agents and %d ready old ones, want 1 and %d", bad, ready, len(h.nodes))
	}
	if err := h.kubectl(ctx, "rollout", "status", "daemonset/"+agentDaemonSet, "--timeout=1s"); err == nil {
		return errors.New("kubectl rollout status says that the rollout is complete")
	}
	return errors.Join(h.checkOutput(ctx, b.reason, "describe", "pod", pod.Name), h.checkReason(ctx, b, pod.Spec.NodeName))
}

// checkOutput returns an error unless the output of kubectl contains the text.
func (h *rollbackTest) checkOutput(ctx context.Context, want string, args ...string) error {
	out, err := h.cluster.Kubectl(ctx, "", append([]string{"-n", agentNamespace}, args...)...)
	if err == nil && !strings.Contains(out, want) {
		err = fmt.Errorf("kubectl %s does not say %q:\n%s", strings.Join(args, " "), want, out)
	}
	return err
}

// checkReason returns an error unless the log and a metric of the node's old agent say why it
// serves again.
func (h *rollbackTest) checkReason(ctx context.Context, b badAgent, node string) error {
	i := slices.IndexFunc(h.nodes, func(n *cluster.Node) bool { return n.Name == node })
	if i < 0 {
		return fmt.Errorf("there is no node %q", node)
	}
	list, err := h.agentPods(ctx)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Spec.NodeName == node && p.Spec.Containers[0].Image != b.image() {
			err = errors.Join(err, h.checkOutput(ctx, b.reason, "logs", p.Name))
		}
	}
	taken, problem := h.cluster.MetricSum(ctx, h.nodes[i], metricsPort, takenBackMetric, `reason="`+b.kind+`"`)
	if problem == nil && taken == 0 {
		problem = fmt.Errorf("%s with the reason %s is 0 on %s", takenBackMetric, b.kind, node)
	}
	return errors.Join(err, problem)
}

// takenBackMetric counts what agents have taken back.
const takenBackMetric = "nodens_handover_taken_back_total"

// check returns what the pods of the bad agent's node saw. Their queries may fail only from the
// first failure on for noticeTime, and not after the node had its agent back.
func (b badAgent) check(t losses, r badRollout) (seen string, err error) {
	first, last := t.failedFromTo()
	failed, lasted := t.total().Failed(), last.Sub(first)
	seen = fmt.Sprintf("%s, the bad agent's: %d of %d queries failed, in %.1f s, the slowest took %.1f s; it ended %.1f s after the rollout began",
		t.node, failed, t.total().Asked, lasted.Seconds(), t.slowest().Seconds(), r.back.Sub(r.began).Seconds())
	switch {
	case lasted > noticeTime:
		err = fmt.Errorf("%s: queries failed for %v", seen, lasted)
	case b.late && failed > 0:
		err = fmt.Errorf("%s: want none to fail", seen)
	case !b.late && failed == 0:
		err = fmt.Errorf("%s: none failed, so the agent was not bad", seen)
	}
	for i, report := range t.reports {
		if n := report.Between(r.back, report.End.Add(1)).Failed(); n > report.Dropped+report.Backlog {
			err = errors.Join(err, fmt.Errorf("%s: %d queries failed after the node had its agent back\n%s", t.jobs[i].Zone, n, reportWithRuns(report)))
		}
	}
	return seen, err
}

// failedFromTo returns the times of the first and of the last UDP query that the agent did not
// answer as it should.
func (t losses) failedFromTo() (first, last time.Time) {
	for _, report := range t.reports {
		for _, run := range report.Runs {
			if run.Outcome == load.Local {
				continue
			}
			if first.IsZero() || run.First.Before(first) {
				first = run.First
			}
			if run.Last.After(last) {
				last = run.Last
			}
		}
	}
	return first, last
}

// slowest returns the longest time that a UDP query took.
func (t losses) slowest() (slowest time.Duration) {
	for _, report := range t.reports {
		slowest = max(slowest, report.UDP.Max)
	}
	return slowest
}

// downgrade rolls out the agents of the last release, with the flags that they have, and undoes the
// rollout. Neither may lose a query.
func (h *rollbackTest) downgrade(ctx context.Context, _ *suite) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	if err := h.surge(ctx, `"100%"`); err != nil {
		return "", err
	}
	return h.runFault(ctx, fault{limits: [2]lossLimit{lossless, lossless}, run: func(_ *chaosTest, ctx context.Context) (map[string]podKill, error) {
		if err := h.runEarlierAgent(ctx); err != nil {
			return nil, err
		}
		if err := h.awaitRollout(ctx); err != nil {
			return nil, err
		}
		for _, n := range h.nodes {
			if err := h.waitAnswered(ctx, n, h.serviceJob()); err != nil {
				return nil, err
			}
		}
		return nil, h.undo(ctx)
	}})
}

// runEarlierAgent changes the DaemonSet for the earlier agent, without the arguments that it does not have.
func (h *rollbackTest) runEarlierAgent(ctx context.Context) error {
	sets := h.api.AppsV1().DaemonSets(agentNamespace)
	set, err := sets.Get(ctx, agentDaemonSet, metav1.GetOptions{})
	if err != nil {
		return err
	}
	agent := &set.Spec.Template.Spec.Containers[0]
	agent.Image = earlierImage
	agent.Args = slices.DeleteFunc(agent.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-handover-compare=") || strings.HasPrefix(arg, "-page=")
	})
	_, err = sets.Update(ctx, set, metav1.UpdateOptions{})
	return err
}

// restore removes the pods that ask, and what setUp and downgrade have changed.
func (h *rollbackTest) restore(ctx context.Context, s *suite) (string, error) {
	if h.api == nil {
		return "", errNoLoadPods
	}
	_, err := s.cluster.Kubectl(ctx, "", "delete", "namespace", chaosNamespace, "--timeout=60s")
	return "", errors.Join(err, h.surge(ctx, "1"), h.waitAgentsReady(ctx))
}
