package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// The network: a bridge in the control plane's namespace that all nodes are joined to,
// and a range of pods' addresses for each node. They are the same in every cluster, as
// no two clusters are joined.
const (
	controlAddr4, controlAddr6 = "172.30.0.1", "fd00:172:30::1"
	stubAddr4, stubAddr6       = "172.30.0.2", "fd00:172:30::2"
	podRange4, podRange6       = "10.244.0.0/16", "fd00:10:244::/48"
)

// setAddresses says what addresses the n-th node and its pods have, from 1.
func (n *Node) setAddresses(number int, dual bool) {
	n.Addr = fmt.Sprintf("172.30.0.%d", 10+number)
	n.podRanges = []string{fmt.Sprintf("10.244.%d.0/24", number)}
	if dual {
		n.Addr6 = fmt.Sprintf("fd00:172:30::%d", 10+number)
		n.podRanges = append(n.podRanges, fmt.Sprintf("fd00:10:244:%d::/64", number))
	}
}

// runIP runs lines of ip(8) in a sandbox's network.
func (r *sandbox) runIP(ctx context.Context, lines ...string) error {
	argv := r.nsenterArgs([]string{"net"}, "ip", "-batch", "-")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("setting up a network: %w\n%s", err, out)
	}
	return nil
}

// createBridge makes the control plane's end of the network. What is for nowhere in the
// cluster is refused there, as by a router with no way on.
func (c *Cluster) createBridge(ctx context.Context) error {
	lines := []string{
		"link set lo up",
		"link add br0 type bridge",
		"link set br0 up",
		"addr add " + controlAddr4 + "/24 dev br0",
		"addr add " + stubAddr4 + "/24 dev br0",
		"route add unreachable default",
	}
	for _, addr := range More {
		lines = append(lines, "addr add "+addr+"/24 dev br0")
	}
	if c.options.DualStack {
		lines = append(lines,
			"addr add "+controlAddr6+"/64 dev br0 nodad",
			"addr add "+stubAddr6+"/64 dev br0 nodad",
			"route add unreachable ::/0",
		)
	}
	return c.control.runIP(ctx, lines...)
}

// connectNode connects a node to the bridge. It also makes the node's routes to the pods of the
// others, if the pod network doesn't.
func (c *Cluster) connectNode(ctx context.Context, n *Node) error {
	port := "v-" + n.Name
	err := c.control.runIP(ctx,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", port, n.sandbox.pid()),
		"link set "+port+" master br0 up",
	)
	if err != nil {
		return err
	}
	lines := []string{
		"link set lo up",
		"link set eth0 up",
		"addr add " + n.Addr + "/24 dev eth0",
		"route add 0.0.0.0/0 via " + controlAddr4,
	}
	if n.Addr6 != "" {
		lines = append(lines, "addr add "+n.Addr6+"/64 dev eth0 nodad", "route add ::/0 via "+controlAddr6)
	}
	for _, other := range c.nodes {
		if other != n && !c.options.Network.OwnRoutes {
			lines = append(lines, other.routes()...)
		}
	}
	return n.sandbox.runIP(ctx, lines...)
}

// routes lead to the node's pods.
func (n *Node) routes() []string {
	lines := []string{"route add " + n.podRanges[0] + " via " + n.Addr}
	if n.Addr6 != "" {
		lines = append(lines, "route add "+n.podRanges[1]+" via "+n.Addr6)
	}
	return lines
}

// addRoutes lead from the control plane to all pods and, by the first node, to Services.
func (c *Cluster) addRoutes(ctx context.Context) error {
	var lines []string
	for _, n := range c.nodes {
		lines = append(lines, n.routes()...)
	}
	lines = append(lines, "route add "+ServiceRange4+" via "+c.nodes[0].Addr)
	if c.options.DualStack {
		lines = append(lines, "route add "+ServiceRange6+" via "+c.nodes[0].Addr6)
	}
	return c.control.runIP(ctx, lines...)
}

// Dial connects from the control plane's network, from which nodes, pods and Services can
// be reached. The address has to be one, with a port, and no name.
func (c *Cluster) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return c.control.dial(ctx, network, address)
}

// Listen listens in the control plane's network, whose addresses are outside of the cluster.
func (c *Cluster) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = c.control.inNetwork(func() error {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacket is Listen for datagrams.
func (c *Cluster) ListenPacket(ctx context.Context, network, address string) (l net.PacketConn, err error) {
	err = c.control.inNetwork(func() error {
		l, err = new(net.ListenConfig).ListenPacket(ctx, network, address)
		return err
	})
	return l, err
}

// dial opens a connection in the sandbox's network.
func (r *sandbox) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dialing in a cluster's network: %w", err)
	}
	err = r.inNetwork(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// inNetwork runs open in the sandbox's network. A socket stays in the network in which it was created.
func (r *sandbox) inNetwork(open func() error) error {
	there, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", r.pid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(there)
	runtime.LockOSThread()
	here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer unix.Close(here)
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering a cluster's network: %w", err)
	}
	err = open()
	if back := unix.Setns(here, unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, and ends with its goroutine.
		return fmt.Errorf("leaving a cluster's network: %w", back)
	}
	runtime.UnlockOSThread()
	return err
}
