package transports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	// heldConnections is how many connections the agent holds: the most that an address accepts.
	// shortConnections is the number in tests.
	heldConnections, shortConnections = 1024, 64
	// holdIdle is how long a connection may be idle. Nothing waits for it.
	holdIdle = 5 * time.Minute
	// holdAtOnce is how many clients ask at once.
	holdAtOnce = 16
)

// Holding is the memory of an agent that holds connections of one transport.
type Holding struct {
	Transport   string
	Connections int
	// Before is the usage of its control group with one connection, and After with all.
	Before, After testbed.MemoryUsage
	// ResidentBefore and ResidentAfter are its resident memory at these times, in bytes.
	ResidentBefore, ResidentAfter uint64
}

// perConnection is by how many bytes a connection increases the resident memory.
func (h Holding) perConnection() float64 {
	return (float64(h.ResidentAfter) - float64(h.ResidentBefore)) / float64(h.Connections-1)
}

// manifestContainer is what the manifest says about the agent's memory.
type manifestContainer struct {
	Env       []struct{ Name, Value string }
	Resources struct{ Limits struct{ Memory string } }
}

// readManifest returns the agent's container.
func readManifest() (manifestContainer, error) {
	for text := range strings.SplitSeq(string(daemonset.Manifest), "\n---\n") {
		var object struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ Containers []manifestContainer }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			return manifestContainer{}, err
		}
		if list := object.Spec.Template.Spec.Containers; object.Kind == "DaemonSet" && len(list) > 0 {
			return list[0], nil
		}
	}
	return manifestContainer{}, errors.New("the manifest has no DaemonSet")
}

// limit is the memory limit in bytes.
func (c manifestContainer) limit() (int, error) {
	mebi, ok := strings.CutSuffix(c.Resources.Limits.Memory, "Mi")
	n, err := strconv.Atoi(mebi)
	if !ok || err != nil {
		return 0, fmt.Errorf("the manifest's memory limit is not a number of MiB: %q", c.Resources.Limits.Memory)
	}
	return n << 20, nil
}

// environment is Go's own limit of memory.
func (c manifestContainer) environment() (list []string) {
	for _, v := range c.Env {
		if v.Name == "GOMEMLIMIT" {
			list = append(list, v.Name+"="+v.Value)
		}
	}
	return list
}

// manifestMemory is the memory limit of the agent in the manifest, in bytes.
func manifestMemory() (int, error) {
	c, err := readManifest()
	if err != nil {
		return 0, err
	}
	return c.limit()
}

// hold measures the memory of connections for each transport, if the machine has control groups.
func (r *run) hold(ctx context.Context) error {
	for _, t := range list {
		if !r.Only.MatchesName(t.scheme) {
			continue
		}
		h, err := r.holdTransport(ctx, t)
		if errors.Is(err, testbed.ErrNoMemoryGroup) {
			r.Report.Fact("memory of connections", "not measured: "+err.Error())
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s, %d connections: %w", t.scheme, r.connections(), err)
		}
		r.out.Holdings = append(r.out.Holdings, h)
		fmt.Fprintf(r.Progress, "%s, %d connections: %.1f KiB each, the group uses %d of at most %d bytes\n", h.Transport, h.Connections,
			h.perConnection()/(1<<10), h.After.Used, h.After.Peak)
	}
	return nil
}

func (r *run) connections() int {
	if r.Plan.Short {
		return shortConnections
	}
	return heldConnections
}

// holdTransport measures one transport with an agent of its own.
func (r *run) holdTransport(ctx context.Context, t transport) (h Holding, err error) {
	limit, err := manifestMemory()
	if err != nil {
		return h, err
	}
	group, err := testbed.NewMemoryGroup(fmt.Sprintf("nodens-transports-%d-%s", os.Getpid(), t.scheme), int64(limit))
	if err != nil {
		return h, err
	}
	defer group.Remove()
	agent, at, err := r.startInside(group, t)
	if err != nil {
		return h, err
	}
	defer agent.Stop()
	var origins []*origin
	defer func() {
		for _, o := range origins {
			o.close()
		}
	}()
	// A client gets one of the last places only if it has fewer connections than are free.
	for i := range r.connections() {
		o, err := newOrigin(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}))
		if err != nil {
			return h, err
		}
		origins = append(origins, o)
	}
	held := holder{t: t, at: at, run: r, origins: origins, agent: agent, group: group}
	defer held.close()
	return held.measure(ctx, r.connections())
}

// startInside starts an agent in the group.
func (r *run) startInside(group *testbed.MemoryGroup, t transport) (*peer.Process, netip.AddrPort, error) {
	port, err := peer.Port()
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	dir, err := os.MkdirTemp(r.Dir, "held-")
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	conf := filepath.Join(dir, "Corefile")
	text := strings.NewReplacer("SCHEME", t.scheme, "PORT", fmt.Sprint(port), "CERT", r.cert, "KEY", r.key, "UPSTREAM", r.upstream).Replace(corefile)
	text = strings.Replace(text, "}\n", "    timeouts {\n        idle "+holdIdle.String()+"\n    }\n}\n", 1)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, netip.AddrPort{}, err
	}
	args := []string{"taskset", "-c", r.ServerCores.List(), r.BinaryOf(servers[0])}
	for _, a := range harness.Programs["nodens"].Args {
		args = append(args, strings.ReplaceAll(a, "@CONF@", conf))
	}
	manifest, err := readManifest()
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	args = group.Inside(args...)
	agent, err := peer.Spawn(peer.Command{Name: "nodens", Path: args[0], Args: args[1:], Env: manifest.environment(), Dir: dir})
	return agent, harness.LoopbackAddr(harness.Port(port)), err
}

// holder opens and holds connections.
type holder struct {
	t       transport
	at      netip.AddrPort
	run     *run
	origins []*origin
	agent   *peer.Process
	group   *testbed.MemoryGroup

	clients []client
}

func (h *holder) close() {
	for _, c := range h.clients {
		if c != nil { // nil: it was not opened
			c.close()
		}
	}
}

// measure opens n connections. Each asks when it is opened, and again when all are open.
func (h *holder) measure(ctx context.Context, n int) (m Holding, err error) {
	m.Transport, m.Connections = h.t.scheme, n
	err = h.agent.Await(ctx, "an answer over "+h.t.scheme, func(ctx context.Context) error {
		h.close()
		h.clients = nil
		for _, o := range h.origins {
			o.dials.Store(0)
		}
		c, err := h.open(ctx, 0)
		h.clients = append(h.clients, c)
		return err
	})
	if err != nil {
		return m, err
	}
	if m.Before, m.ResidentBefore, err = h.memory(); err != nil {
		return m, err
	}
	h.clients = append(h.clients, make([]client, n-1)...)
	err = h.each(func(i int) (err error) {
		if i > 0 {
			h.clients[i], err = h.open(ctx, i)
		}
		return err
	})
	if err != nil {
		return m, err
	}
	if err := h.each(func(i int) error { return check(ctx, h.clients[i], i) }); err != nil {
		return m, err
	}
	m.After, m.ResidentAfter, err = h.memory()
	return m, errors.Join(err, h.checkHeld(m))
}

// open opens connection i and asks. The client is not nil.
func (h *holder) open(ctx context.Context, i int) (client, error) {
	c, err := h.t.dial(ctx, h.origins[i%len(h.origins)], h.at, h.run.roots)
	if err != nil {
		return noClient{}, err
	}
	return c, check(ctx, c, i)
}

// each calls f for all connections, holdAtOnce at a time.
func (h *holder) each(f func(i int) error) error {
	var running sync.WaitGroup
	failed := make([]error, holdAtOnce)
	for worker := range holdAtOnce {
		running.Go(func() {
			for i := worker; i < len(h.clients) && failed[worker] == nil; i += holdAtOnce {
				if err := f(i); err != nil {
					failed[worker] = fmt.Errorf("connection %d: %w", i, err)
				}
			}
		})
	}
	running.Wait()
	return errors.Join(failed...)
}

func (h *holder) memory() (testbed.MemoryUsage, uint64, error) {
	usage, err := h.group.Usage()
	if err != nil {
		return usage, 0, err
	}
	stat, err := machine.ReadProcStat(h.agent.PID())
	return usage, stat.RSS, err
}

// checkHeld returns an error if a connection was opened again, or the kernel has killed the agent.
func (h *holder) checkHeld(m Holding) error {
	dials := int64(0)
	for _, o := range h.origins {
		dials += o.dials.Load()
	}
	switch {
	case dials != int64(m.Connections):
		return fmt.Errorf("%d connections were opened, so %d of them were not held", dials, dials-int64(m.Connections))
	case m.After.Kills > 0:
		return errors.New("the kernel has killed the agent for its memory")
	}
	return nil
}

// noClient is a connection that could not be opened.
type noClient struct{}

func (noClient) ask(context.Context, []byte) ([]byte, error) { return nil, net.ErrClosed }
func (noClient) close()                                      {}
