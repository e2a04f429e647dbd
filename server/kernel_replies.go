package server

import (
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/reply"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/udp"
)

// KernelPath is the part of [kernelpath.Program] that the server uses.
type KernelPath interface {
	Put(a *kernelpath.Answer) bool
	SetGroup(addr netip.Addr, g *kernelpath.Group)
	Clear()
	SetListeners(listeners map[netip.AddrPort]uint32) error
	Epochs() (cluster, cached *epoch.Table)
}

// kernelPath is what all readers of a server share to copy replies into the kernel.
type kernelPath struct {
	log     *slog.Logger
	program KernelPath
	tables  reply.Tables
	lastID  uint32 // the last kernelPathID that was assigned

	mu        sync.Mutex
	fixed     epoch.Value            // a counter that never moves, for groups that no client leaves
	groups    map[clientGroup]uint32 // the numbers of groups
	lastGroup uint32                 // the last number that was assigned; none is used twice
}

// clientGroup is a [resolver.ClientGroup] as a key.
type clientGroup struct {
	of        *resolver.Autopath
	namespace string
	acls      *resolver.Routes
	class     uint64
	family    resolver.ClientFamily
	policies  *dnspolicy.Table
	policy    *dnspolicy.Class
}

// maxGroups is how many groups have a number. A node has pods of some hundred namespaces at most; one that gets
// another number only loses the copies that were made for it.
const maxGroups = 4096

// group returns the number and the mark of g; the zero Group for all clients.
func (c *kernelPath) group(g *resolver.ClientGroup) kernelpath.Group {
	if g.IsAll() {
		return kernelpath.Group{}
	}
	mark := g.Mark
	if g.Of == nil && g.Policies == nil {
		mark = epoch.Mark{Index: c.fixed.Index, Value: fixedEpoch}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := clientGroup{g.Of, string(g.Namespace), g.ACLs, g.Class, g.Family, g.Policies, g.Policy}
	n, ok := c.groups[key]
	if !ok {
		if c.groups == nil || len(c.groups) >= maxGroups {
			c.groups = make(map[clientGroup]uint32)
		}
		c.lastGroup++
		n = c.lastGroup
		c.groups[key] = n
	}
	return kernelpath.Group{Number: n, Mark: mark}
}

// fixedEpoch is the value of the counter that never moves.
const fixedEpoch = 1

// forgetGroups forgets the numbers of groups, of server blocks that may be gone.
func (c *kernelPath) forgetGroups() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups = nil
}

// kernelReplies is the [replySink] of a reader whose replies are copied into the kernel, which then answers the same
// queries itself.
type kernelReplies struct {
	s      *Server
	path   *kernelPath
	config *activeConfig
	answer kernelpath.Answer // scratch space
	// request and terms are of the answer.
	request *resolver.Request
	terms   *resolver.Reusable
}

// begin implements replySink.
func (k *kernelReplies) begin(cfg *activeConfig, _ time.Duration) { k.config = cfg }

// find implements replySink: what the kernel has a reply to does not come to the reader.
func (k *kernelReplies) find(*resolver.Request, *udp.Packet) (found, wanted bool) {
	return false, k.config.kernelPathID.Load() != 0
}

// keep implements replySink.
func (k *kernelReplies) keep(r *resolver.Request, t *resolver.Reusable, a *reply.Answer) {
	k.request, k.terms = r, t
	k.answer = kernelpath.Answer{Answer: *a, Listener: k.config.kernelPathID.Load(), Group: k.path.group(&t.Clients), Source: k}
	if k.path.program.Put(&k.answer) && k.answer.Group.Number != 0 {
		k.path.program.SetGroup(r.Client.Addr(), &k.answer.Group)
	}
}

// HitReporter implements [kernelpath.Source].
func (k *kernelReplies) HitReporter() kernelpath.HitReporter {
	return k.request.HitCounter(k.terms, len(k.answer.Reply))
}

// end implements replySink: the kernel's hits are counted by [kernelpath.Program.Sweep].
func (k *kernelReplies) end(*resolver.Routes, time.Duration) {}

// panicked implements replySink.
func (k *kernelReplies) panicked(v any) {
	k.s.panics.Add(1)
	k.s.log.Error("copying a reply panicked", "panic", v, "stack", string(debug.Stack()))
}

// close implements replySink.
func (k *kernelReplies) close() {}

// disable makes the server receive all queries and drops all copies. It is called
// before what is served changes and when the server stops answering.
func (c *kernelPath) disable() {
	if c == nil {
		return
	}
	c.setListeners(nil)
	c.program.Clear()
	c.forgetGroups()
}

// enable allows copies at all addresses that serve plain DNS and are not wildcards.
// A new configuration gets a new number, so that copies from earlier ones are not found. The
// caller holds the server's lock.
func (c *kernelPath) enable(listeners map[ListenAddr]*listener) {
	if c == nil {
		return
	}
	numbers := make(map[netip.AddrPort]uint32)
	for addr, l := range listeners {
		cfg := l.config.Load()
		if cfg.Transport != config.PlainDNS || addr.Addr().IsUnspecified() {
			continue
		}
		if cfg.kernelPathID.Load() == 0 {
			c.lastID++
			cfg.kernelPathID.Store(c.lastID)
		}
		numbers[addr.AddrPort] = cfg.kernelPathID.Load()
	}
	c.setListeners(numbers)
}

func (c *kernelPath) setListeners(numbers map[netip.AddrPort]uint32) {
	if err := c.program.SetListeners(numbers); err != nil {
		c.log.Error("setting the listeners of the kernel path failed", "err", err)
	}
}
