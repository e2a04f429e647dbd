package attribution

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	nodeName   = "node-1"
	bridgeName = "bridge0"
	// podPrefix begins the names of the pods' interfaces.
	podPrefix = "pod"
)

// Addresses of pods are below these, the first ones are the gateway's.
var (
	podNet4 = netip.MustParsePrefix("10.245.0.0/16")
	podNet6 = netip.MustParsePrefix("fd00:245::/64")
)

// node is a node with an agent. Pods are namespaces on its bridge.
type node struct {
	*testbed.Network
	t          *testing.T
	api        *fakeapi.Server
	agent      *peer.Process
	socket     string // the agent's admin socket
	kernel     bool   // the agent may answer in the kernel
	links      *netlink.Handle
	bridge     int             // index
	interfaces map[string]bool // names of the pods' interfaces
}

// skipUnusable skips the test if an agent is to answer in the kernel, and can't on this machine.
func skipUnusable(t *testing.T, kernel bool) {
	t.Helper()
	if err := testbed.KernelPathUsable(); kernel && err != nil {
		t.Skip(err)
	}
}

// newNode starts an agent on a new node.
func newNode(t *testing.T, kernel bool) *node {
	t.Helper()
	n := &node{Network: testbed.ForTest(t, ""), t: t, api: fakeapi.Start(t), kernel: kernel, interfaces: make(map[string]bool)}
	n.must(n.addBridge())
	for _, ns := range namespaces() {
		n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	n.api.Put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns-0", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.7.1", ClusterIPs: []string{"10.96.7.1"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}}},
	})
	n.startAgent()
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// addBridge adds the bridge, which has the addresses of the gateway.
func (n *node) addBridge() error {
	ns, err := netns.GetFromName(n.Node)
	if err != nil {
		return err
	}
	defer ns.Close()
	if n.links, err = netlink.NewHandleAt(ns); err != nil {
		return err
	}
	n.t.Cleanup(n.links.Close)
	// Without an address of its own, a bridge has that of one of its ports, which come and go.
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: hardwareAddr(podNet4.Addr())}}
	if err := n.links.LinkAdd(bridge); err != nil {
		return err
	}
	n.bridge = bridge.Index
	return setUp(n.links, bridgeName, netip.PrefixFrom(podNet4.Addr().Next(), podNet4.Bits()), netip.PrefixFrom(podNet6.Addr().Next(), podNet6.Bits()))
}

// setUp gives the interface its addresses and sets it up.
func setUp(h *netlink.Handle, name string, addrs ...netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a.String())
		if err == nil && a.Addr().Is6() {
			addr.Flags = nodad
		}
		if err == nil {
			err = h.AddrAdd(link, addr)
		}
		if err != nil {
			return fmt.Errorf("adding %s: %w", a, err)
		}
	}
	return h.LinkSetUp(link)
}

// nodad is the flag IFA_F_NODAD: the address is valid at once.
const nodad = 2

// startAgent starts the agent with the API server, which it reaches at a relayed address.
func (n *node) startAgent() {
	n.t.Helper()
	at, err := url.Parse(n.api.URL)
	n.must(err)
	n.must(n.Relay(n.Node, at.Host))
	n.socket = filepath.Join(n.Dir, report.DefaultSocketName)
	// A block with template gets no answers from the kernel.
	conf, err := n.File("Corefile", strings.NewReplacer(
		"@BIND@", testbed.Local4+" "+testbed.Local6, "@API@", n.api.URL, "@UPSTREAM@", testbed.UpstreamIP+":"+testbed.UpstreamPort,
	).Replace(`.:53 {
    bind @BIND@
    errors
    prometheus 127.0.0.1:9253
    kubernetes cluster.local {
        endpoint @API@
    }
    cache 3600
    forward . @UPSTREAM@
}
fail.test:53 {
    bind @BIND@
    template ANY ANY fail.test {
        rcode SERVFAIL
    }
}
`))
	n.must(err)
	args := []string{
		"--conf", conf, "--localip=" + testbed.Local4 + "," + testbed.Local6, "--metrics-listen-address=", "--health-port=0",
		"--node-name=" + nodeName, "--admin-socket=" + n.socket, "--client-metrics=workload",
	}
	if n.kernel {
		args = append(args, testbed.KernelPathFlag)
	}
	n.agent, err = n.StartAgent(args...)
	n.must(err)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("the agent wrote:\n%s", n.agent.Tail())
		}
	})
}

// clients asks the agent who asks how much, by pod, workload or namespace.
func (n *node) clients(by string) *report.Clients {
	n.t.Helper()
	r := new(report.Clients)
	n.must(report.Ask(n.t.Context(), n.socket, "GET", "/clients", url.Values{"by": {by}, "window": {"1h"}}, r))
	if r.More > 0 {
		n.t.Fatalf("%d rows are left out of the report", r.More)
	}
	var sum uint64
	for _, c := range r.Clients {
		sum += c.Total.Queries
	}
	// The agent is younger than the window.
	if sum != r.Total.Queries {
		n.t.Errorf("by %s, the total is %d queries, the sum of the rows %d", by, r.Total.Queries, sum)
	}
	return r
}

// names asks the agent which names are asked for.
func (n *node) names(topic string) *report.Names {
	n.t.Helper()
	r := new(report.Names)
	n.must(report.Ask(n.t.Context(), n.socket, "GET", "/names", url.Values{"topic": {topic}, "window": {"1h"}}, r))
	return r
}

// awaitInterfaces waits until the agent has the right number of pods' interfaces.
func (n *node) awaitInterfaces() {
	n.t.Helper()
	if !n.kernel {
		return
	}
	n.agent.Must(n.t, "the agent to see the pods' interfaces", func(ctx context.Context) error {
		var s report.Status
		err := report.Ask(ctx, n.socket, "GET", "/status", nil, &s)
		if got := s.KernelPath.Answering + s.KernelPath.Watched; err == nil && got != len(n.interfaces)+otherInterfaces {
			err = fmt.Errorf("it sees %d, there are %d", got, len(n.interfaces)+otherInterfaces)
		}
		return err
	})
}

// otherInterfaces are the interfaces of package testbed that look like those of pods.
const otherInterfaces = 2

// connect makes a namespace with the addresses on the node's bridge.
func (n *node) connect(name string, addrs []netip.Addr) (ns *os.File, err error) {
	if ns, err = testbed.NewNamespace(); err != nil {
		return nil, err
	}
	err = n.links.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: n.bridge, Flags: net.FlagUp},
		PeerName:  "eth0", PeerHardwareAddr: hardwareAddr(addrs[0]), PeerNamespace: netlink.NsFd(int(ns.Fd())),
	})
	if err == nil {
		err = setUpPod(ns, addrs)
	}
	if err == nil {
		err = setNeighbors(n.links, n.bridge, hardwareAddr(addrs[0]), addrs)
	}
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("connecting %s: %w", name, err)
	}
	n.interfaces[name] = true
	return ns, nil
}

// hardwareAddr returns an Ethernet address made from an IPv4 address, as some network plugins do.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return append(net.HardwareAddr{0x0a, 0x58}, b[:]...)
}

func setUpPod(ns *os.File, addrs []netip.Addr) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()))
	if err != nil {
		return err
	}
	defer h.Close()
	var (
		prefixes []netip.Prefix
		gateways []netip.Addr
	)
	for _, a := range addrs {
		prefixes = append(prefixes, netip.PrefixFrom(a, podNet(a).Bits()))
		gateways = append(gateways, podNet(a).Addr().Next())
	}
	if err := setUp(h, "eth0", prefixes...); err != nil {
		return err
	}
	link, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, gateway := range gateways {
		if err := h.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("adding a route: %w", err)
		}
	}
	return setNeighbors(h, link.Attrs().Index, hardwareAddr(podNet4.Addr()), gateways)
}

// setNeighbors makes permanent entries in the table of neighbors. All namespaces share the table's limit of 1,024
// other entries, which some hundred pods and their gateways would reach.
func setNeighbors(h *netlink.Handle, link int, mac net.HardwareAddr, addrs []netip.Addr) error {
	for _, a := range addrs {
		err := h.NeighSet(&netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac})
		if err != nil {
			return fmt.Errorf("adding the neighbor %s: %w", a, err)
		}
	}
	return nil
}

func podNet(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return podNet4
	}
	return podNet6
}

// awaitRemoved waits until the kernel has removed the interfaces of ended namespaces.
func (n *node) awaitRemoved() {
	n.t.Helper()
	n.agent.Must(n.t, "the interfaces of ended pods to go", func(context.Context) error {
		links, err := n.links.LinkList()
		for _, l := range links {
			if name := l.Attrs().Name; strings.HasPrefix(name, podPrefix) && !n.interfaces[name] {
				err = errors.Join(err, fmt.Errorf("there is %s", name))
			}
		}
		return err
	})
}

// dial opens a connection from the namespace to the agent's address of the family of from, with from as
// source address.
func dial(ns *os.File, network string, from netip.Addr) (conn net.Conn, err error) {
	server := testbed.Local4
	if from.Is6() {
		server = testbed.Local6
	}
	err = testbed.InNamespaceFile(ns, func() error {
		var d net.Dialer
		if strings.HasPrefix(network, "udp") {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		conn, err = d.Dial(network, net.JoinHostPort(server, "53"))
		return err
	})
	return conn, err
}
