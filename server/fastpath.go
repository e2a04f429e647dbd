package server

import (
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/fastpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

// FastPath is the part of [fastpath.Program] that the server uses.
type FastPath interface {
	Put(a *fastpath.Answer) bool
	SetGroup(addr netip.Addr, g *fastpath.Group)
	Clear()
	SetListeners(listeners map[netip.AddrPort]uint32) error
	Epochs() (cluster, cached *epoch.Table)
}

// fastPathCopier copies answers into the kernel.
type fastPathCopier struct {
	program FastPath
	tables  epochTables
	lastID  uint32 // the last fastPathID that was assigned

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
}

// maxGroups is how many groups have a number. A node has pods of some hundred namespaces at most; one that gets
// another number only loses the copies that were made for it.
const maxGroups = 4096

// group returns the number and the mark of g; the zero Group for all clients.
func (c *fastPathCopier) group(g *resolver.ClientGroup) fastpath.Group {
	if g.IsAll() {
		return fastpath.Group{}
	}
	mark := g.Mark
	if g.Of == nil {
		mark = epoch.Mark{Index: c.fixed.Index, Value: fixedEpoch}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.groups[clientGroup{g.Of, string(g.Namespace), g.ACLs, g.Class}]
	if !ok {
		if c.groups == nil || len(c.groups) >= maxGroups {
			c.groups = make(map[clientGroup]uint32)
		}
		c.lastGroup++
		n = c.lastGroup
		c.groups[clientGroup{g.Of, string(g.Namespace), g.ACLs, g.Class}] = n
	}
	return fastpath.Group{Number: n, Mark: mark}
}

// fixedEpoch is the value of the counter that never moves.
const fixedEpoch = 1

// forgetGroups forgets the numbers of groups, of server blocks that may be gone.
func (c *fastPathCopier) forgetGroups() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups = nil
}

// UseFastPath copies the replies to UDP queries to f, which then answers the same queries in
// the kernel. Call it before any other method.
func (s *Server) UseFastPath(f FastPath) {
	s.fastPath = &fastPathCopier{program: f}
	s.fastPath.tables.cluster, s.fastPath.tables.cached = f.Epochs()
	s.fastPath.fixed = s.fastPath.tables.cached.AcquireValue()
	s.fastPath.fixed.Store(fixedEpoch)
}

// activeConfig is what one address serves now.
type activeConfig struct {
	ListenerConfig
	// fastPathID identifies this configuration in the kernel; 0 if nothing is copied.
	fastPathID atomic.Uint32
}

// replySources returns what requests need for copies of replies along a search path; nil if nothing is copied.
func (c *fastPathCopier) replySources() *resolver.ReplySources {
	if c == nil {
		return nil
	}
	return new(resolver.ReplySources)
}

// udpRequest is the request of a UDP reader, with what copying its reply needs.
type udpRequest struct {
	resolver.Request
	epochs epochs
	copy   resolver.Copy
	answer fastpath.Answer
}

// HitReporter implements [fastpath.Source].
func (r *udpRequest) HitReporter() fastpath.HitReporter {
	return r.Copied(&r.copy, len(r.answer.Reply))
}

// copyReply copies msg, the reply to r, into the kernel if there is a fast path and the reply may be copied.
// If that panics, the client still gets msg.
func (s *Server) copyReply(cfg *activeConfig, r *udpRequest, msg []byte) {
	if s.fastPath == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.log.Error("copying a reply panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	s.fastPath.put(cfg, r, msg)
}

// put copies msg, the reply to r, into the kernel if it may be copied.
func (c *fastPathCopier) put(cfg *activeConfig, r *udpRequest, msg []byte) {
	if msg == nil || cfg.fastPathID.Load() == 0 {
		return
	}
	var ok bool
	if r.copy, ok = r.Copy(); !ok {
		return
	}
	if c.tables.moved(&r.copy, r.epochs) {
		return
	}
	r.answer = fastpath.Answer{
		Listener: cfg.fastPathID.Load(), Query: &r.Query, Reply: msg, Source: r,
		Cluster: !r.copy.FromCache, Mark: r.copy.Mark, More: r.copy.More, Group: c.group(&r.copy.Clients), Expires: r.copy.Expires, Ends: r.copy.Ends,
		Counts: r.copy.CountsDown, Life: r.copy.Life, MaxSize: r.copy.MaxSize, Shuffled: r.copy.Shuffled, Waste: r.copy.Waste,
	}
	if c.program.Put(&r.answer) && r.answer.Group.Number != 0 {
		c.program.SetGroup(r.Client.Addr(), &r.answer.Group)
	}
}

// disableFastPath makes the server receive all queries and drops all copies. It is called
// before what is served changes and when the server stops answering.
func (s *Server) disableFastPath() {
	if s.fastPath == nil {
		return
	}
	s.setFastPathListeners(nil)
	s.fastPath.program.Clear()
	s.fastPath.forgetGroups()
}

// enableFastPath allows copies at all addresses that serve plain DNS and are not wildcards.
// A new configuration gets a new number, so that copies from earlier ones are not found. The
// caller holds s.mu.
func (s *Server) enableFastPath() {
	c := s.fastPath
	if c == nil {
		return
	}
	listeners := make(map[netip.AddrPort]uint32)
	for addr, l := range s.listeners {
		cfg := l.config.Load()
		if cfg.Transport != config.PlainDNS || addr.Addr().IsUnspecified() {
			continue
		}
		if cfg.fastPathID.Load() == 0 {
			c.lastID++
			cfg.fastPathID.Store(c.lastID)
		}
		listeners[addr.AddrPort] = cfg.fastPathID.Load()
	}
	s.setFastPathListeners(listeners)
}

func (s *Server) setFastPathListeners(listeners map[netip.AddrPort]uint32) {
	if err := s.fastPath.program.SetListeners(listeners); err != nil {
		s.log.Error("setting the listeners of the fast path failed", "err", err)
	}
}
