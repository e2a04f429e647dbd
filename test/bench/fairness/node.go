package fairness

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// The addresses of the node's servers: the one that is measured, a second one beside it, and the echo.
var (
	serverAddr = netip.AddrPortFrom(netip.MustParseAddr(testbed.Local4), 53)
	secondAddr = netip.AddrPortFrom(netip.MustParseAddr("169.254.20.11"), 53)
	echoAddr   = netip.AddrPortFrom(netip.MustParseAddr("169.254.20.12"), 53)
)

// metricsPort is the port of the metrics of the server at serverAddr; that of the next one is one more.
const metricsPort = 9253

// node is a node with pods, and a load generator that plays the pods and the upstream.
type node struct {
	*harness.Run
	net *testbed.Network
	// pods are the namespaces of the pods.
	pods []string
	loop *load.Loop
	// fresh is the next number that has not been part of a name.
	fresh uint32
}

// newNode makes a node with so many pods. The caller closes what it returns, also after an error.
func newNode(b *harness.Run, pods int) (*node, error) {
	d := &node{Run: b}
	dir, err := os.MkdirTemp(b.Dir, "node-")
	if err != nil {
		return d, err
	}
	if d.net, err = testbed.New(dir, b.BinaryOf(harness.Server{Program: "nodens"})); err != nil {
		return d, err
	}
	// The address has no rules: what they cost is not of the server.
	err = d.net.SetNodeLocalInterface(true, serverAddr.Addr().String(), secondAddr.Addr().String(), echoAddr.Addr().String())
	if err != nil {
		return d, err
	}
	for i := range pods {
		ns, err := d.net.AddPod(1 + i)
		if err != nil {
			return d, err
		}
		d.pods = append(d.pods, ns)
	}
	return d, testbed.InNamespace(d.net.Node, func() (err error) {
		d.loop, err = load.Open()
		return err
	})
}

// close stops all servers and removes the namespaces.
func (d *node) close() {
	if d.net != nil {
		d.net.Close()
	}
	if d.loop != nil {
		d.loop.Close()
	}
}

// open returns what opens the sockets of a stream in the pods, in turn.
func open(pods ...string) func(int, func() error) error {
	return func(i int, f func() error) error { return testbed.InNamespace(pods[i%len(pods)], f) }
}

// last returns the last pod, which never floods: it is not beyond a limit.
func (d *node) last() string { return d.pods[len(d.pods)-1] }

// start starts a server at the address, and waits until it answers a pod.
func (d *node) start(ctx context.Context, s harness.Server, at netip.AddrPort, with harness.Settings) (*peer.Process, error) {
	with.Listen, with.Port, with.Upstream = at.Addr().String(), harness.Port(at.Port()), d.loop.Addr()
	with.Metrics = metricsPort
	if at == secondAddr {
		with.Metrics++
	}
	_, command, err := d.WriteConfig(s, with)
	if err != nil {
		return nil, err
	}
	p, err := d.net.Spawn(d.net.Node, nil, command...)
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, s.Name+" to answer", func(context.Context) error { return d.exchange(at) }); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// exchange asks for a new name from the last pod, over UDP.
func (d *node) exchange(at netip.AddrPort) error {
	conn, err := testbed.Dial(d.last(), "udp", at.String())
	if err != nil {
		return err
	}
	c := dns.Conn{Conn: conn}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	q := new(dns.Msg).SetQuestion(fmt.Sprintf("start-%d.bench.example.", d.next(1)), dns.TypeA)
	if err := c.WriteMsg(q); err != nil {
		return err
	}
	m, err := c.ReadMsg()
	if err == nil && m.Rcode != dns.RcodeSuccess {
		err = fmt.Errorf("rcode %s", dns.RcodeToString[m.Rcode])
	}
	return err
}

// next reserves n numbers for new names and returns the first of them.
func (d *node) next(n int) uint32 {
	first := d.fresh
	d.fresh += uint32(n)
	return first
}

// numFresh is more new names than any stream asks for.
const numFresh = 1 << 22

// newNames makes a stream of one that asks for new names in the zone.
func (d *node) newNames(s load.Stream, zone string) load.Stream {
	s.Questions, s.Fresh, s.First = [][]byte{pack("00000000." + zone)}, true, d.next(numFresh)
	return s
}

// names makes a stream of one that asks for n names of a pattern again and again.
func names(s load.Stream, pattern string, n int) load.Stream {
	for i := range n {
		s.Questions = append(s.Questions, pack(fmt.Sprintf(pattern, i)))
	}
	return s
}

// pack makes a query for an address.
func pack(name string) []byte {
	msg, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		panic(err) // the names are constants
	}
	return msg
}

// fill has the last pod ask for all names of the stream until each is answered.
func (d *node) fill(ctx context.Context, p *peer.Process, at netip.AddrPort, s load.Stream) error {
	s.Rate, s.Window, s.Count, s.Sockets, s.Open = 0, 16, len(s.Questions), 1, open(d.last())
	return p.Await(ctx, "answers for all names", func(ctx context.Context) error {
		results, err := d.loop.Run(ctx, load.LoopJob{Server: at, Streams: []load.Stream{s}})
		if err != nil {
			return err
		}
		if r := results[0]; r.Rcodes[dns.RcodeSuccess] < r.Sent {
			return fmt.Errorf("of %d queries %d have an answer, with the rcodes %v", r.Sent, r.Answered, r.Rcodes)
		}
		return nil
	})
}
