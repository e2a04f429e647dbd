package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// hostDNS is the address at which agents answer the nodes' own look-ups in daemonset/overlays/host.
const hostDNS = "169.254.20.11"

// hostTest is about the nodes' own look-ups: containerd pulls images by name, each time by a new one, while
// something happens to what answers.
type hostTest struct {
	*adoptionTest
	nodes []*cluster.Node
	// servers are the name servers at cluster.More. The nodes have the first two, in between the last one.
	servers []*peer.Process
	// files are each node's before the agents' first change.
	files []string
	// names counts the names of the registry.
	names atomic.Int64
}

// hostChecks returns the checks.
func (a *adoptionTest) hostChecks() []check {
	t := &hostTest{adoptionTest: a}
	list := []check{{"the nodes' own look-ups go to their agents", t.install}}
	for _, during := range []struct {
		name string
		do   func(context.Context, *suite, *pulling) error
	}{
		{"each node's agent is killed", t.kill},
		{"the agents are upgraded", t.upgrade},
		{"a server of the nodes is silent, and then away", t.loseServer},
		{"DHCP gives the nodes another server, and the first ones again", t.changeServers},
		{"agents restore the nodes' files, which are as before", t.restore},
	} {
		list = append(list, check{"no image pull fails while " + during.name, func(ctx context.Context, s *suite) (string, error) {
			if t.files == nil {
				return "", errors.New("the agents don't answer the nodes' look-ups")
			}
			return t.pullWhile(ctx, s, during.do)
		}})
	}
	return list
}

// install gives the nodes two servers of their own, starts a registry, and applies the overlay of the guide.
func (t *hostTest) install(ctx context.Context, s *suite) (string, error) {
	if t.api == nil {
		return "", errNoOptInPods
	}
	t.nodes, t.servers = s.cluster.Nodes(), make([]*peer.Process, len(cluster.More))
	if err := errors.Join(t.startServers(ctx, s, 0, 1), t.setServers(ctx, 0, 1), t.startRegistry(ctx, s)); err != nil {
		return "", err
	}
	var files []string
	for _, n := range t.nodes {
		list, err := hostFiles(ctx, n)
		if err != nil {
			return "", err
		}
		files = append(files, list)
	}
	if err := errors.Join(t.apply(ctx, s, "host"), t.awaitFirst(ctx, 0)); err != nil {
		return "", err
	}
	t.files = files
	return "", nil
}

// startRegistry starts the registry, with an image.
func (t *hostTest) startRegistry(ctx context.Context, s *suite) error {
	program := filepath.Join(s.dir, "release")
	build := exec.CommandContext(ctx, "go", "-C", filepath.Join(s.root, "daemonset/release"), "build", "-o", program, ".")
	if err := t.runner.run(build); err != nil {
		return err
	}
	if err := s.cluster.StartRegistry(ctx, program); err != nil {
		return err
	}
	return s.cluster.PushForPulls(ctx, "docker.io/library/"+probeImageRef)
}

func (t *hostTest) startServers(ctx context.Context, s *suite, servers ...int) (err error) {
	for _, i := range servers {
		if t.servers[i], err = s.cluster.StartNameServer(ctx, cluster.More[i]); err != nil {
			return err
		}
	}
	return nil
}

// resolvConf is a resolv.conf with these servers.
func resolvConf(servers ...int) string {
	text := "# by DHCP\n"
	for _, i := range servers {
		text += "nameserver " + cluster.More[i] + "\n"
	}
	return text
}

// setServers writes the nodes' resolv.conf, as a DHCP client does.
func (t *hostTest) setServers(ctx context.Context, servers ...int) error {
	return t.setResolvConf(ctx, resolvConf(servers...))
}

func (t *hostTest) setResolvConf(ctx context.Context, text string) error {
	for _, n := range t.nodes {
		cmd := n.Command(ctx, "sh", "-c", "cat >/etc/resolv.conf.dhcp && mv /etc/resolv.conf.dhcp /etc/resolv.conf")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", n.Name, err, out)
		}
	}
	return nil
}

// awaitFirst waits until the nodes' files name the agent, and then the server.
func (t *hostTest) awaitFirst(ctx context.Context, server int) error {
	for _, n := range t.nodes {
		err := peer.Await(ctx, n.Name+" to ask its agent", func(ctx context.Context) error {
			out, err := n.Command(ctx, "cat", "/etc/resolv.conf").Output()
			if err != nil {
				return err
			}
			if list := nameServers(string(out)); len(list) < 2 || list[0] != hostDNS || list[1] != cluster.More[server] {
				sleep(ctx, pollInterval)
				return fmt.Errorf("its resolv.conf is %q", out)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// exchanges returns how often each node's agent has asked the server.
func (t *hostTest) exchanges(ctx context.Context, s *suite, server int) (counts []float64, err error) {
	for _, n := range t.nodes {
		count, err := s.cluster.MetricSum(ctx, n, metricsPort, "coredns_proxy_request_duration_seconds_count", fmt.Sprintf("to=%q", cluster.More[server]+":53"))
		if err != nil {
			return nil, err
		}
		counts = append(counts, count)
	}
	return counts, nil
}

// moveTo gives the nodes other servers, and returns when each agent asks the first of them.
func (t *hostTest) moveTo(ctx context.Context, s *suite, servers ...int) error {
	before, err := t.exchanges(ctx, s, servers[0])
	if err != nil {
		return err
	}
	if err := t.setServers(ctx, servers...); err != nil {
		return err
	}
	err = peer.Await(ctx, "the agents to ask the server", func(ctx context.Context) error {
		now, err := t.exchanges(ctx, s, servers[0])
		for i, n := range t.nodes {
			if err == nil && now[i] == before[i] {
				sleep(ctx, pollInterval)
				err = fmt.Errorf("the agent of %s has not", n.Name)
			}
		}
		return err
	})
	return errors.Join(err, t.awaitFirst(ctx, servers[0]))
}

// hostFiles returns the node's files that an agent might write, with their contents, modes and owners, as text.
func hostFiles(ctx context.Context, n *cluster.Node) (string, error) {
	const script = `cd / && find etc run/systemd run/NetworkManager ! -type d -printf '%p %l %m %u %g\n' -type f -exec sha256sum {} + 2>/dev/null | sort`
	out, err := n.Command(ctx, "sh", "-c", script).Output()
	return string(out), err
}

// pulling counts the pulls of one check. Each node pulls one image after the other.
type pulling struct {
	nodes []*nodePulls
}

// nodePulls are the pulls of one node.
type nodePulls struct {
	pulls   atomic.Int64
	slowest time.Duration
	errs    []error
}

const (
	// pullInterval is the time between the begin of two pulls on a node.
	pullInterval = 50 * time.Millisecond
	// pullsAfter is how many pulls of each node follow a change.
	pullsAfter = 20
)

// awaitPulls waits until each node has pulled more images.
func (p *pulling) awaitPulls(ctx context.Context) error {
	for _, n := range p.nodes {
		for want := n.pulls.Load() + pullsAfter; n.pulls.Load() < want; {
			if sleep(ctx, pullInterval); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// pullWhile pulls on all nodes until do has returned. A failed pull is an error.
func (t *hostTest) pullWhile(ctx context.Context, s *suite, do func(context.Context, *suite, *pulling) error) (string, error) {
	p := new(pulling)
	var running sync.WaitGroup
	stop := make(chan struct{})
	for _, n := range t.nodes {
		counts := new(nodePulls)
		p.nodes = append(p.nodes, counts)
		running.Go(func() { t.pullOn(ctx, n, counts, stop) })
	}
	err := errors.Join(p.awaitPulls(ctx), do(ctx, s, p), p.awaitPulls(ctx))
	close(stop)
	running.Wait()
	var seen []string
	failed := 0
	for i, counts := range p.nodes {
		name := t.nodes[i].Name
		seen = append(seen, fmt.Sprintf("%s: %d pulls, slowest %d ms", name, counts.pulls.Load(), counts.slowest.Milliseconds()))
		failed += len(counts.errs)
		for _, e := range counts.errs {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
		}
	}
	result := fmt.Sprintf("%s; %d failed", strings.Join(seen, "; "), failed)
	if err != nil {
		return "", fmt.Errorf("%s: %w", result, err)
	}
	return result, nil
}

// pullOn pulls on the node until stop is closed.
func (t *hostTest) pullOn(ctx context.Context, n *cluster.Node, counts *nodePulls, stop <-chan struct{}) {
	next := time.NewTicker(pullInterval)
	defer next.Stop()
	for {
		began := time.Now()
		if err := n.Pull(ctx, fmt.Sprintf("n%d.registry.test", t.names.Add(1))); err != nil {
			counts.errs = append(counts.errs, fmt.Errorf("after %s: %w", time.Since(began), err))
		}
		counts.slowest = max(counts.slowest, time.Since(began))
		counts.pulls.Add(1)
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-next.C:
		}
	}
}

// kill kills one agent after the other.
func (t *hostTest) kill(ctx context.Context, s *suite, _ *pulling) error {
	h := &chaosTest{suite: s, api: t.api, nodes: t.nodes}
	for _, n := range t.nodes {
		if err := h.killAndAwait(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// upgrade replaces the agents.
func (t *hostTest) upgrade(ctx context.Context, s *suite, _ *pulling) error {
	h := &chaosTest{suite: s, api: t.api, nodes: t.nodes}
	return h.restartAgents(ctx)
}

// loseServer stops the nodes' first server: it drops queries, and then its port is closed. In the end it is back.
func (t *hostTest) loseServer(ctx context.Context, s *suite, p *pulling) error {
	if err := errors.Join(t.servers[0].Signal(syscall.SIGSTOP), p.awaitPulls(ctx)); err != nil {
		return err
	}
	t.servers[0].Kill()
	return errors.Join(p.awaitPulls(ctx), t.startServers(ctx, s, 0))
}

// resolvConfAge is for how long containerd uses what it has read of resolv.conf, with a second to spare: Go's resolver looks again after
// five seconds (net/dnsclient_unix.go).
const resolvConfAge = 6 * time.Second

// changeServers gives the nodes another server, without the first ones, and then the first ones, without the other one. In the moment before
// the agent has written itself into the file, containerd may read it, and then asks the other server alone: that one goes only after
// containerd has looked again.
func (t *hostTest) changeServers(ctx context.Context, s *suite, p *pulling) error {
	if err := errors.Join(t.startServers(ctx, s, 2), t.moveTo(ctx, s, 2)); err != nil {
		return err
	}
	alone := time.Now()
	t.servers[0].Kill()
	t.servers[1].Kill()
	if err := errors.Join(p.awaitPulls(ctx), t.startServers(ctx, s, 0, 1), t.moveTo(ctx, s, 0, 1)); err != nil {
		return err
	}
	sleep(ctx, resolvConfAge-time.Since(alone))
	t.servers[2].Kill()
	return nil
}

// restore applies the overlay with which agents restore the files. After the comparison the nodes get the servers
// that they started with.
func (t *hostTest) restore(ctx context.Context, s *suite, p *pulling) error {
	if err := t.apply(ctx, s, "host-remove"); err != nil {
		return err
	}
	for i, n := range t.nodes {
		err := peer.Await(ctx, "the files of "+n.Name+" to be as before", func(ctx context.Context) error {
			now, err := hostFiles(ctx, n)
			if diff := cmp.Diff(t.files[i], now); err == nil && diff != "" {
				sleep(ctx, pollInterval)
				err = fmt.Errorf("-before +after:\n%s", diff)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return t.setResolvConf(ctx, s.cluster.ResolvConf())
}
