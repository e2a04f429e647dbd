package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// outputWait is how long the output of a program that was stopped is waited for, which a child
// of its own may hold open. What it has to say then is there in a moment.
const outputWait = 2 * time.Second

// Command is a program in the network of the control plane, from which nodes, pods and
// Services can be reached.
func (c *Cluster) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	argv := c.control.nsenterArgs([]string{"net"}, path, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = outputWait
	return cmd
}

// KubectlCommand is kubectl of an administrator.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.Command(ctx, c.binaries["kubectl"], append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Kubectl runs kubectl with the input and returns its standard output. An error has what
// it wrote on standard error.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := runOutput(cmd)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Exec runs a program in a pod's first container and returns its standard output.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, argv ...string) (string, error) {
	return c.Kubectl(ctx, "", append([]string{"exec", "--namespace=" + namespace, pod, "--"}, argv...)...)
}

// runOutput runs the program and returns its standard output. An error has what it wrote on
// standard error.
func runOutput(cmd *exec.Cmd) (string, error) {
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(strings.TrimSpace(wrong.String())))
	}
	return out.String(), nil
}
