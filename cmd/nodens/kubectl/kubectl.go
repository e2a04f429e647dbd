// Package kubectl asks all agents of a cluster by running kubectl, and merges their replies. kubectl
// implements access to the cluster and every kind of authentication; this package imports no
// client of Kubernetes, and nothing of the agent.
//
// [Cluster.Agents] lists the pods, [Ask] runs a command in each of them, and the merging types add the
// replies up as they arrive.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	// DefaultTimeout bounds a run of kubectl exec, listTime a run of kubectl get.
	DefaultTimeout = 5 * time.Second
	listTime       = 30 * time.Second
	// replyBytes bounds the output of kubectl exec, listBytes the output of kubectl get, which has some
	// 100 bytes for each pod.
	replyBytes = 4 << 20
	listBytes  = 16 << 20
	// errorBytes bounds what is kept of kubectl's error output.
	errorBytes = 4 << 10
	// pipeTime is how long the output of kubectl may stay open after its end: until it is read, on a busy machine, or
	// because processes that kubectl has started hold it.
	pipeTime = 2 * time.Second
)

// Cluster identifies a cluster and the pods of its agents. If Context or Kubeconfig is empty, kubectl's default
// applies.
type Cluster struct {
	Context    string
	Kubeconfig string
	Namespace  string
	Selector   string
	// Timeout is the time for each agent to reply.
	Timeout time.Duration
}

// Agent is the pod of an agent.
type Agent struct {
	Pod   string
	Node  string // "" if the pod has none yet
	Phase string // of the pod: Running and others
}

// Agents returns the pods of the agents, in kubectl's order. It is an error if there is none.
func (c *Cluster) Agents(ctx context.Context) ([]Agent, error) {
	const columns = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase"
	out, _, err := c.run(ctx, limits{listTime, listBytes}, nil, "get", "pods", "--selector", c.Selector, "--no-headers", "-o", columns)
	if err != nil {
		return nil, fmt.Errorf("listing the agents' pods: %w", err)
	}
	var agents []Agent
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("listing the agents' pods: kubectl printed %q, which is not a pod", shortened(line))
		}
		for i, text := range fields {
			if text == "<none>" {
				fields[i] = ""
			}
		}
		agents = append(agents, Agent{Pod: fields[0], Node: fields[1], Phase: fields[2]})
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("no pod in the namespace %s has the labels %s; give --namespace and --selector", c.Namespace, c.Selector)
	}
	return agents, nil
}

// NodeOf returns the node of any pod of the cluster.
func (c *Cluster) NodeOf(ctx context.Context, namespace, pod string) (string, error) {
	of := *c
	of.Namespace = namespace
	out, _, err := of.run(ctx, limits{listTime, errorBytes}, nil, "get", "pod", pod, "--no-headers", "-o", "custom-columns=NODE:.spec.nodeName")
	if err != nil {
		return "", fmt.Errorf("looking up the node of the pod %s/%s: %w", namespace, pod, err)
	}
	node := strings.TrimSpace(string(out))
	if node == "" || node == "<none>" {
		return "", fmt.Errorf("the pod %s/%s is on no node yet", namespace, pod)
	}
	return node, nil
}

// limits bound a run of kubectl.
type limits struct {
	time  time.Duration
	bytes int
}

// run runs kubectl with the standard input and the arguments, and returns its output. failed reports that kubectl ran and ended with an exit
// code other than 0; the output may still be valid.
func (c *Cluster) run(ctx context.Context, l limits, input []byte, args ...string) (out []byte, failed bool, err error) {
	timed, cancel := context.WithTimeout(ctx, l.time)
	defer cancel()
	stdout, stderr := &bounded{limit: l.bytes, full: cancel}, &bounded{limit: errorBytes, full: func() {}}
	cmd := exec.CommandContext(timed, "kubectl", append(c.flags(), args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(input), stdout, stderr, pipeTime
	err = cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case stdout.cut:
		return nil, false, fmt.Errorf("more than %d MiB of output", l.bytes>>20)
	case timed.Err() != nil:
		return nil, false, fmt.Errorf("no answer in %s", l.time)
	case err == nil:
		return stdout.kept.Bytes(), false, nil
	case errors.Is(err, exec.ErrNotFound):
		return nil, false, fmt.Errorf("%w; install kubectl, or add its directory to PATH", err)
	case errors.As(err, &exit):
		return stdout.kept.Bytes(), true, errors.New(lastLine(stderr.kept.String(), exit.Error()))
	}
	return nil, false, fmt.Errorf("running kubectl: %w", err)
}

// flags returns the arguments that select the cluster.
func (c *Cluster) flags() (args []string) {
	if c.Kubeconfig != "" {
		args = append(args, "--kubeconfig", c.Kubeconfig)
	}
	if c.Context != "" {
		args = append(args, "--context", c.Context)
	}
	return append(args, "--namespace", c.Namespace)
}

// follow runs nodens in a pod and calls each with every line of its output until ctx ends, each returns an
// error, or the command ends. The command in the pod ends with its standard input: kubectl closes it when
// it ends, and no keepalive arrives if the network is cut. Each side takes the other one to be cut off after silence
// without a line. The error is never nil.
func (c *Cluster) follow(ctx context.Context, pod string, args []string, silence time.Duration, each func(line []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.Timeout, func() { cancel(errSilent) })
	defer timer.Stop()
	stderr := new(lastBytes)
	stdout := &lineWriter{full: func() { cancel(errLongLine) }, each: func(line []byte) {
		timer.Reset(silence)
		stderr.reset() // what is said before a line is not why the command ends
		if err := each(line); err != nil {
			cancel(err)
		}
	}}
	command := append(append(c.flags(), "exec", pod, "--stdin", "--", "nodens"), args...)
	cmd := exec.CommandContext(ctx, "kubectl", append(command, "--stdin-timeout", silence.String())...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, stderr, endTime
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = func() error { _ = stdin.Close(); return nil }
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("running kubectl: %w", err)
	}
	go keepAlive(ctx, stdin, silence/6)
	err = cmd.Wait()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent) && stdout.lines.Load() == 0:
		return fmt.Errorf("no answer in %s", c.Timeout)
	case errors.Is(cause, errSilent):
		return fmt.Errorf("%w for %s", cause, silence)
	case cause != nil:
		return cause
	case err != nil:
		return errors.New(lastLine(stderr.text(), err.Error()))
	}
	return errors.New("the command has ended")
}

// bounded keeps the first limit bytes. It calls full when more are written.
type bounded struct {
	kept  bytes.Buffer
	limit int
	cut   bool
	full  func()
}

func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.limit-b.kept.Len())
	b.kept.Write(p[:keep])
	if keep < len(p) && !b.cut {
		b.cut = true
		b.full()
	}
	return len(p), nil
}

// lastLine returns the last line of text that describes an error, or fallback if there is none. kubectl exec
// writes a line about the exit code after the command's own output.
func lastLine(text, fallback string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		line := strings.TrimSpace(lines[i])
		if line != "" && !strings.HasPrefix(line, "command terminated with exit code") {
			return shortened(line)
		}
	}
	if line := strings.TrimSpace(lines[len(lines)-1]); line != "" {
		return line
	}
	return fallback
}

// shortened returns the beginning of text, without control characters.
func shortened(text string) string {
	const most = 300
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "?"))
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
