package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// Addresses of the agent: link-local ones and the ClusterIPs of the cluster's DNS.
const (
	Local4, Local6     = "169.254.20.10", "fd00:20::10"
	Service4, Service6 = "10.96.0.10", "fd00:96::a"
)

// Addresses in the namespaces. The cluster DNS listens at ClusterDNS4 and ClusterDNS6.
const (
	PodIP4, PodIP6           = "10.244.7.2", "fd00:244:7::2"
	NodeIP4, NodeIP6         = "10.244.7.1", "fd00:244:7::1"
	UpstreamIP, UpstreamIP6  = "10.201.0.2", "fd00:201::2"
	ClusterDNS4, ClusterDNS6 = "10.202.0.2", "fd00:202::2"
	// UpstreamPort distinguishes the agent's queries to its upstream from pods' queries, which
	// go to port 53.
	UpstreamPort = "5300"
)

// Zone is the domain whose addresses say who has answered.
const Zone = "load.test"

// The addresses in answers for names below Zone.
var (
	FromAgent   = netip.MustParseAddr("192.0.2.1")
	FromCluster = netip.MustParseAddr("192.0.2.53")
)

// Network is a set of connected namespaces. Its methods are safe for concurrent use, except Close.
type Network struct {
	// The namespaces' names.
	Pod, Node, Upstream, Cluster string
	// Dir receives files and is the caller's.
	Dir string
	// Nodens is the path of the program.
	Nodens string

	upstream, cluster *peer.Process
	cleanups          []func()
}

// errUnusable says that a machine can't have a lab.
var errUnusable = errors.New("no lab here")

// Usable returns an error if this machine can't have a Network.
func Usable() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: network namespaces need root", errUnusable)
	}
	for _, tool := range []string{"ip", "dig", "iptables", "ip6tables", "nft", "conntrack"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: %s is missing; `make test` installs it", errUnusable, tool)
		}
	}
	return nil
}

// networks counts the labs of this process: their namespaces have names of their own.
var networks atomic.Int64

// New creates a Network. The caller calls Close, also after an error.
func New(dir, nodens string) (*Network, error) {
	n := networks.Add(1)
	name := func(role string) string { return fmt.Sprintf("nodens-%d-%d-%s", os.Getpid(), n, role) }
	l := &Network{Pod: name("pod"), Node: name("node"), Upstream: name("up"), Cluster: name("dns"), Dir: dir, Nodens: nodens}
	for _, ns := range []string{l.Pod, l.Node, l.Upstream, l.Cluster} {
		if err := l.addNamespace(ns); err != nil {
			return l, err
		}
	}
	err := errors.Join(
		l.connect(l.Pod, PodIP4, PodIP6, NodeIP4, NodeIP6),
		l.connect(l.Upstream, UpstreamIP, UpstreamIP6, "10.201.0.1", "fd00:201::1"),
		l.connect(l.Cluster, ClusterDNS4, ClusterDNS6, "10.202.0.1", "fd00:202::1"),
	)
	if err != nil {
		return l, err
	}
	if _, err := l.In(l.Node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"); err != nil {
		return l, err
	}
	// A node has default routes.
	err = configure(l.Node, "route add default via "+UpstreamIP+"\nroute add default via "+UpstreamIP6+"\n")
	return l, errors.Join(err, l.startServers())
}

// ForTest returns a network that ends with the test, or skips the test if the machine can't have one. An empty path of the
// agent stands for the one that is built from this repository.
func ForTest(tb testing.TB, agent string) *Network {
	tb.Helper()
	if err := Usable(); err != nil {
		tb.Skip(err)
	}
	if agent == "" {
		agent = peer.Build(tb, "nodens")
	}
	l, err := New(tb.TempDir(), agent)
	tb.Cleanup(l.Close)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// addNamespace adds a namespace, which Close deletes.
func (l *Network) addNamespace(ns string) error {
	if _, err := Run("ip", "netns", "add", ns); err != nil {
		return err
	}
	l.Cleanup(func() { _, _ = Run("ip", "netns", "delete", ns) })
	return configure(ns, "link set lo up\n")
}

// AddPod adds the n-th pod, counted from 1, and returns its namespace. The node's end of its veth pair
// is vpod followed by n.
func (l *Network) AddPod(n int) (ns string, err error) {
	ns = l.podNamespace(n)
	if err := l.addNamespace(ns); err != nil {
		return ns, err
	}
	return ns, l.ConnectPod(n)
}

func (l *Network) podNamespace(n int) string { return fmt.Sprintf("%s%d", l.Pod, n) }

// ConnectPod connects the n-th pod, which must have no interface.
func (l *Network) ConnectPod(n int) error {
	v4 := func(host int) string { return fmt.Sprintf("10.244.%d.%d", 100+n, host) }
	v6 := func(host int) string { return fmt.Sprintf("fd00:244:%d::%d", 100+n, host) }
	return l.connect(l.podNamespace(n), v4(2), v6(2), v4(1), v6(1))
}

// Cleanup registers f for Close, which calls the last registered function first.
func (l *Network) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

// Close stops all programs and deletes the namespaces.
func (l *Network) Close() {
	for i := len(l.cleanups) - 1; i >= 0; i-- {
		l.cleanups[i]()
	}
	l.cleanups = nil
}

// connect connects ns to the node by a veth pair, with the node as its gateway.
func (l *Network) connect(ns, ip4, ip6, gw4, gw6 string) error {
	port := "v" + ns[strings.LastIndex(ns, "-")+1:] // the node's end
	_, err := Run("ip", "link", "add", port, "netns", l.Node, "type", "veth", "peer", "name", "eth0", "netns", ns)
	if err != nil {
		return err
	}
	up := func(dev, ip4, ip6 string) string {
		return fmt.Sprintf("link set %s up\naddr add %s/24 dev %[1]s\naddr add %[3]s/64 dev %[1]s nodad\n", dev, ip4, ip6)
	}
	return errors.Join(
		configure(l.Node, up(port, gw4, gw6)),
		configure(ns, up("eth0", ip4, ip6)+"route add default via "+gw4+"\nroute add default via "+gw6+"\n"),
	)
}

// configure runs commands of ip(8), one a line, in a namespace.
func configure(ns, commands string) error {
	_, err := run(commands, []string{"ip", "-netns", ns, "-batch", "-"})
	return err
}

// Run runs a command outside the namespaces and returns its output.
func Run(args ...string) (string, error) { return run("", args) }

// In is Run inside a namespace.
func (l *Network) In(ns string, args ...string) (string, error) { return run("", inside(ns, args)) }

// InWithInput is In with a standard input.
func (l *Network) InWithInput(ns, text string, args ...string) (string, error) {
	return run(text, inside(ns, args))
}

func inside(ns string, args []string) []string {
	return append([]string{"ip", "netns", "exec", ns}, args...)
}

func run(input string, args []string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Spawn runs a program in a namespace; Close stops it.
func (l *Network) Spawn(ns string, env []string, args ...string) (*peer.Process, error) {
	p, err := peer.Spawn(peer.Command{
		Name: filepath.Base(args[0]) + ns[strings.LastIndex(ns, "-"):], Path: "ip", Env: env, Dir: l.Dir,
		Args: inside(ns, args)[1:],
	})
	if err == nil {
		l.Cleanup(p.Stop)
	}
	return p, err
}

// File writes a file in Dir and returns its path.
func (l *Network) File(name, text string) (string, error) {
	path := filepath.Join(l.Dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}
