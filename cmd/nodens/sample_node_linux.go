package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/cli"
)

const (
	// sampleNodeAddr is where the agent of the sample's node answers, sampleClusterDNS the cluster DNS of that node.
	sampleNodeAddr   = "169.254.20.10"
	sampleClusterDNS = "10.244.0.2"
	// sampleOwnName is a name that only the node's agent knows.
	sampleOwnName = "agent.node.test."
	// sampleRestart is the time until the node's agent is started again, as by the kubelet.
	sampleRestart = 5 * time.Second
	// sampleNodeStart bounds the time until it answers.
	sampleNodeStart = 20 * time.Second
)

// runSampleNode runs a node in a network namespace of its own, with a cluster DNS and an agent that has rules and may be
// killed, until ctx ends. dir has the sample's files. It needs root, or a kernel that lets everybody make user namespaces;
// otherwise it prints why there is no node.
func runSampleNode(ctx context.Context, dir string, stdout, stderr io.Writer) {
	attr, enter := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "-n"
	if os.Geteuid() != 0 {
		enter = "-n -U --preserve-credentials"
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	cmd := sampleProcess(ctx, attr, "sample-node", "--", dir, enter)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := runWithParent(cmd, nil); err != nil && ctx.Err() == nil {
		fmt.Fprintf(stderr, "the sample has no node with an agent to kill: %v; that part needs root and nf_tables\n", err)
	}
}

// newSampleNodeCommand is the command inside of the namespace.
func newSampleNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "sample-node DIRECTORY NSENTER-FLAGS", Hidden: true, Args: cli.Args(2, 2, "DIRECTORY NSENTER-FLAGS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setLoopbackUp(); err != nil {
				return err
			}
			return superviseSampleNode(cmd.Context(), args[0], args[1], cmd.OutOrStdout())
		},
	}
}

// superviseSampleNode runs the cluster DNS and the agent, and starts the agent again when it has ended. enter are the flags
// of nsenter that lead to the node.
func superviseSampleNode(ctx context.Context, dir, enter string, stdout io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	args := func(name, addr string, more ...string) []string {
		return append(more, "--conf", filepath.Join(dir, "Corefile."+name), "--localip", addr, "--handover-dir", filepath.Join(dir, name),
			"--kubednscm", "", "--kernel-path", "off", "--health-port", "0", "--node-name", sampleNode)
	}
	ended := make(chan error, 1)
	dns := sampleProcess(ctx, nil, args("cluster-dns", sampleClusterDNS, "--interfacename", "cluster-dns", "--setupiptables=false")...)
	go func() { ended <- runWithParent(dns, nil) }()
	for first := true; ; first = false {
		agent := sampleProcess(ctx, nil, args("node", sampleNodeAddr, "--netfilter", "nftables")...)
		err := runWithParent(agent, func() {
			switch {
			case !sampleNodeAnswers(ctx):
			case first:
				fmt.Fprintf(stdout, sampleNodeText, sampleNodeAddr, sampleRestart, os.Getpid(), enter, sampleNodeAddr, sampleNames[0], agent.Process.Pid)
			default:
				fmt.Fprintf(stdout, "The node's agent is back. To kill it again: kill -9 %d\n", agent.Process.Pid)
			}
		})
		if ctx.Err() == nil && !killed(agent) {
			return fmt.Errorf("the node's agent: %w", err)
		}
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the node's cluster DNS: %w", err)
		case <-ctx.Done():
			return nil
		case <-time.After(sampleRestart):
		}
	}
}

const sampleNodeText = `A second agent runs on a node of its own (a network namespace), with the rules of a real one. Kill it: the kernel
sends the queries to %s to the cluster DNS until the agent is back, after %v. In two shells:

  nsenter -t %d %s sh -c 'while sleep 0.2; do dig +short +time=1 +tries=1 @%s %s; done'
  kill -9 %d

`

// sampleProcess returns this program with args. It is asked to end when ctx ends.
func sampleProcess(ctx context.Context, attr *syscall.SysProcAttr, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = sampleRestart
	cmd.SysProcAttr = cmp.Or(attr, new(syscall.SysProcAttr))
	return cmd
}

// runWithParent runs cmd, which is killed when this process is. It calls started (nil: nothing) once it runs.
func runWithParent(cmd *exec.Cmd, started func()) error {
	runtime.LockOSThread() // the kernel takes the thread that made a process for its parent
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return err
	}
	if started != nil {
		go started()
	}
	return cmd.Wait()
}

// killed reports whether a signal has ended cmd.
func killed(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// sampleNodeAnswers waits until the node's agent, and not the cluster DNS in its place, answers, and reports whether it does.
func sampleNodeAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sampleNodeStart)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", net.JoinHostPort(sampleNodeAddr, "53"))
	}}
	for ctx.Err() == nil {
		if _, err := resolver.LookupHost(ctx, sampleOwnName); err == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false
}

// setLoopbackUp sets up the loopback interface of a new network namespace.
func setLoopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}
