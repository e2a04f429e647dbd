package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// Addresses. The process of the run has a network namespace of its own, with servers at worldAddr
// and the cluster DNS at clusterDNSAddr. A pair of interfaces connects it to the namespace of the node,
// where an agent answers at serviceAddr and linkLocalAddr.
var (
	worldAddr      = netip.AddrFrom4([4]byte{192, 0, 2, 1})
	nodeAddr       = netip.AddrFrom4([4]byte{192, 0, 2, 2})
	clusterDNSAddr = netip.AddrFrom4([4]byte{192, 0, 2, 3})
	serviceAddr    = netip.AddrFrom4([4]byte{10, 96, 0, 10})
	linkLocalAddr  = netip.AddrFrom4([4]byte{169, 254, 20, 10})
)

// namespaceEnv marks a process that has a network namespace of its own.
const namespaceEnv = "NODENS_CHURN_NAMESPACE"

// errNoNamespace: this process can't have a network namespace.
var errNoNamespace = errors.New("a network namespace needs root, and the programs ip, iptables, nft and nsenter")

// inNamespace reports whether this process has a network namespace of its own.
func inNamespace() bool { return os.Getenv(namespaceEnv) != "" }

// runInNamespace runs this program again in a network namespace of its own, which the kernel removes
// with its last process. When ctx ends it interrupts the program. The program ends with this process.
// errNoNamespace; an *exec.ExitError if the program fails.
func runInNamespace(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	for _, program := range []string{"ip", "iptables", "nft", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			return errNoNamespace
		}
	}
	// The kernel sends Pdeathsig when the thread ends that started the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), namespaceEnv+"=1")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGINT) })()
	return cmd.Wait()
}

// node is a node with kube-proxy's rules in a network namespace of its own.
type node struct {
	namespace *os.File
	dns       *fakedns.Server // the cluster DNS, which queries reach while no agent listens
}

// openNode makes the node. The cluster DNS answers with what answers returns. The process must have a
// namespace of its own.
func openNode(ctx context.Context, handler fakedns.Handler) (*node, error) {
	n := &node{}
	err := n.open(ctx, handler)
	if err != nil {
		n.close()
		return nil, fmt.Errorf("making the node: %w", err)
	}
	return n, nil
}

func (n *node) open(ctx context.Context, handler fakedns.Handler) (err error) {
	if n.namespace, err = testbed.NewNamespace(); err != nil {
		return err
	}
	outside := fmt.Sprintf("link set lo up\nlink add node type veth peer name eth0 netns %s\nlink set node up\n"+
		"addr add %s/24 dev node\naddr add %s/24 dev node\nroute add %s via %[5]s\nroute add %[6]s via %[5]s\n",
		n.path(), worldAddr, clusterDNSAddr, serviceAddr, nodeAddr, linkLocalAddr)
	inside := fmt.Sprintf("link set lo up\nlink set eth0 up\naddr add %s/24 dev eth0\n", nodeAddr)
	// A node's own processes and its pods have one way to a pod of the cluster DNS. Here that
	// way ends where the queries come from, so replies must be made to come back.
	rules := fmt.Sprintf("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\n"+
		"-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -d %[2]s -j MASQUERADE\n"+
		"-A KUBE-SERVICES -d %[1]s -p udp -m udp --dport 53 -j DNAT --to-destination %[2]s:53\n"+
		"-A KUBE-SERVICES -d %[1]s -p tcp -m tcp --dport 53 -j DNAT --to-destination %[2]s:53\nCOMMIT\n", serviceAddr, clusterDNSAddr)
	settings := []string{"net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0"}
	for _, step := range []struct {
		input string
		args  []string
	}{
		{outside, []string{"ip", "-batch", "-"}},
		{inside, n.inside("ip", "-batch", "-")},
		{"", n.inside(append([]string{"sysctl", "-qw"}, settings...)...)},
		{rules, n.inside("iptables-restore", "-w", "5", "--noflush")},
	} {
		if _, err := output(ctx, step.input, step.args...); err != nil {
			return err
		}
	}
	n.dns, err = fakedns.Open(handler, fakedns.Options{Addr: netip.AddrPortFrom(clusterDNSAddr, 53)})
	return err
}

func (n *node) close() {
	if n.dns != nil {
		n.dns.Close()
	}
	if n.namespace != nil {
		n.namespace.Close()
	}
}

// path is the namespace's file for other processes.
func (n *node) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.namespace.Fd()) }

// inside returns the command that runs args in the node.
func (n *node) inside(args ...string) []string {
	return append([]string{"nsenter", "--net=" + n.path(), "--"}, args...)
}

// spawn starts a program in the node; nil is the namespace of this process.
func (n *node) spawn(c peer.Command) (*peer.Process, error) {
	if n != nil {
		args := n.inside(append([]string{c.Path}, c.Args...)...)
		c.Path, c.Args = args[0], args[1:]
	}
	return peer.Spawn(c)
}

// count adds to the sample what the node has: the packet filter's rules, chains and tables,
// interfaces, and addresses.
func (n *node) count(ctx context.Context, s *sample) error {
	for _, what := range []struct {
		to   *float64
		has  string // in each line that counts
		args []string
	}{
		{&s.rules, "# handle ", []string{"nft", "-a", "list", "ruleset"}},
		{&s.interfaces, "", []string{"ip", "-o", "link"}},
		{&s.addrs, "", []string{"ip", "-o", "addr"}},
	} {
		text, err := output(ctx, "", n.inside(what.args...)...)
		if err != nil {
			return err
		}
		*what.to = 0
		for line := range strings.Lines(text) {
			if strings.Contains(line, what.has) {
				*what.to++
			}
		}
	}
	return nil
}

// output runs a program and returns its standard output.
func output(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
