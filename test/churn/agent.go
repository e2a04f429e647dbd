package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// agent is an agent on a node: one process, or several that take over from each other.
type agent struct {
	name   string
	binary string
	dir    string // for the Corefile, the handover and the logs
	node   *node  // where it sets up addresses and rules; nil: it runs beside this process without any
	ports  ports
	// compare is how long a successor compares itself with the process before it; 0: not at all.
	compare time.Duration
	*peer.Process
	samples []sample
}

// ports are an agent's.
type ports struct{ dns, tls, https, web uint16 }

func newAgent(name, binary, dir string, n *node) (*agent, error) {
	a := &agent{name: name, binary: binary, dir: filepath.Join(dir, name), node: n}
	if err := os.MkdirAll(filepath.Join(a.dir, "handover"), 0o700); err != nil {
		return nil, err
	}
	seen := map[uint16]bool{0: true}
	for _, port := range []*uint16{&a.ports.dns, &a.ports.tls, &a.ports.https, &a.ports.web} {
		for seen[*port] {
			var err error
			if *port, err = peer.Port(); err != nil {
				return nil, err
			}
		}
		seen[*port] = true
	}
	if n != nil {
		a.ports.dns = 53 // kube-proxy's rules are for that port
	}
	return a, nil
}

// addrs are the addresses at which the agent answers.
func (a *agent) addrs() []netip.Addr {
	if a.node != nil {
		return []netip.Addr{serviceAddr, linkLocalAddr}
	}
	return []netip.Addr{loopback}
}

// servers are the addresses at which the agent answers over UDP and TCP.
func (a *agent) servers() (list []netip.AddrPort) {
	for _, addr := range a.addrs() {
		list = append(list, netip.AddrPortFrom(addr, a.ports.dns))
	}
	return list
}

// web is the address of the HTTP endpoint.
func (a *agent) web() netip.AddrPort {
	if a.node != nil {
		return netip.AddrPortFrom(nodeAddr, a.ports.web)
	}
	return netip.AddrPortFrom(loopback, a.ports.web)
}

func (a *agent) corefile() string { return filepath.Join(a.dir, "Corefile") }

// write replaces the Corefile.
func (a *agent) write(text string) error {
	if err := os.WriteFile(a.corefile()+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(a.corefile()+".new", a.corefile())
}

// spawn starts a process beside the current one.
func (a *agent) spawn(more ...string) (*peer.Process, error) {
	network := []string{"--setupinterface=false", "--setupiptables=false"}
	if a.node != nil {
		network = []string{"--localip=" + serviceAddr.String() + "," + linkLocalAddr.String(), "--skipteardown"}
	}
	args := []string{
		"--conf", a.corefile(), "--health-port=0", "--metrics-listen-address=", "--node-name=" + nodeName, "--node-zone=z1",
		"--handover-dir", filepath.Join(a.dir, "handover"), "--handover-compare=" + a.compare.String(),
	}
	return a.node.spawn(peer.Command{Name: a.name, Path: a.binary, Dir: a.dir, Args: slices.Concat(args, network, more)})
}

// start starts the first process and waits until it serves.
func (a *agent) start(ctx context.Context) (err error) {
	if a.Process, err = a.spawn(); err != nil {
		return err
	}
	return a.Await(ctx, a.name+" to serve", logged(a.Process, "msg=serving"))
}

// logged holds when the end of the process's log has the text.
func logged(p *peer.Process, text string) peer.Probe {
	return func(context.Context) error {
		if !strings.Contains(p.Tail(), text) {
			return fmt.Errorf("the log has no %q", text)
		}
		return nil
	}
}

// upgrade starts a successor and waits until it has taken over and the old process has ended.
func (a *agent) upgrade(ctx context.Context) error {
	next, err := a.spawn()
	if err != nil {
		return err
	}
	if err := next.Await(ctx, "a successor of "+a.name, logged(next, "took over")); err != nil {
		next.Stop()
		return err
	}
	old := a.Process
	a.Process = next
	err = peer.Await(ctx, "the end of the predecessor", ended(old))
	switch {
	case err != nil:
		err = fmt.Errorf("%w; it wrote:\n%s\nand its successor:\n%s", err, old.Tail(), next.Tail())
	case old.Err() != nil:
		err = fmt.Errorf("the predecessor ended with %w and wrote:\n%s", old.Err(), old.Tail())
	}
	old.Stop()
	return err
}

func ended(p *peer.Process) peer.Probe {
	return func(context.Context) error {
		select {
		case <-p.Done():
			return nil
		default:
			return fmt.Errorf("process %d runs", p.PID())
		}
	}
}

// failUpgrade starts a successor that fails as soon as it has taken over, and waits until the
// agent serves again.
func (a *agent) failUpgrade(ctx context.Context) error {
	before := strings.Count(a.log(), resumed)
	next, err := a.spawn("--admin-socket", "/dev/null/admin")
	if err != nil {
		return err
	}
	defer next.Stop()
	if err := peer.Await(ctx, "the end of the successor", ended(next)); err != nil {
		return err
	}
	if next.Err() == nil || !strings.Contains(next.Tail(), "took over") {
		return fmt.Errorf("the successor did not fail after it took over; it wrote:\n%s", next.Tail())
	}
	return a.Await(ctx, a.name+" to serve again", func(context.Context) error {
		if strings.Count(a.log(), resumed) <= before {
			return fmt.Errorf("the log has no more %q than %d", resumed, before)
		}
		return nil
	})
}

// resumed is what an agent logs whose successor has failed.
const resumed = "serving again"

// log returns what all of the agent's processes have logged.
func (a *agent) log() string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(a.dir, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path)
		all.Write(text)
	}
	return all.String()
}

// reload replaces the Corefile, sends the signal and waits until the marker has the address
// that the Corefile gives it.
func (a *agent) reload(ctx context.Context, text string, marker netip.Addr) error {
	if err := errors.Join(a.write(text), a.Signal(syscall.SIGUSR1)); err != nil {
		return err
	}
	return a.visible(ctx, question{name: markerName, addrs: []netip.Addr{marker}})
}

// visible waits until the agent gives the expected answer.
func (a *agent) visible(ctx context.Context, q question) error {
	return a.Await(ctx, a.name+" to answer "+q.name, func(ctx context.Context) error {
		c := dns.Client{Timeout: replyTimeout}
		m, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(q.name, dns.TypeA), a.servers()[0].String())
		if err != nil {
			return err
		}
		if !q.answeredBy(m) {
			return errors.New(q.describe(m))
		}
		return nil
	})
}

// allVisible waits until the agent gives the expected answer to each question.
func (a *agent) allVisible(ctx context.Context, asked []question) error {
	for _, q := range asked {
		if err := a.visible(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// replyTimeout ends a query that would wait forever. An agent gives up after five seconds.
const replyTimeout = 10 * time.Second
