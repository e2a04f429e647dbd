package server

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/fastpath"
)

// Kernel is what the server needs of [fastpath.Program], which says what its methods do.
type Kernel interface {
	Put(a *fastpath.Answer) bool
	Clear()
	SetListeners(doors map[netip.AddrPort]uint32) error
	Epochs() (cluster, cached *epoch.Table)
}

// copier gives copies of answers to the kernel. A nil copier gives none.
type copier struct {
	kernel          Kernel
	cluster, cached *epoch.Table
	routes          uint32 // the number of the last ones; 0 stands for none
}

// UseKernel has copies of answers to UDP queries given to k, which answers the next ones in
// the server's place. It is called before anything else.
func (s *Server) UseKernel(k Kernel) {
	s.copies = &copier{kernel: k}
	s.copies.cluster, s.copies.cached = k.Epochs()
}

// epochs is where the counters of all copies stood when a query was begun: what an answer
// was made of may have changed before its copy is put.
type epochs struct{ cluster, cached uint64 }

func (c *copier) glance() epochs {
	if c == nil {
		return epochs{}
	}
	return epochs{cluster: c.cluster.Any(), cached: c.cached.Any()}
}

// closeDoors has every query come to the server, and forgets all copies: for when what is
// served changes, and for when the server no longer answers.
func (s *Server) closeDoors() {
	if s.copies == nil {
		return
	}
	s.setDoors(nil)
	s.copies.kernel.Clear()
}

// openDoors has copies given at the addresses of s, as far as these serve plain DNS at an
// address of their own. Routes that are new get a number, so that copies of those before are
// found no more. s is locked.
func (s *Server) openDoors() {
	c := s.copies
	if c == nil {
		return
	}
	doors := make(map[netip.AddrPort]uint32)
	for addr, l := range s.listeners {
		cfg := l.config.Load()
		rt := cfg.Routes
		if cfg.Transport != config.PlainDNS || addr.Addr().IsUnspecified() {
			continue
		}
		if rt.number.Load() == 0 {
			c.routes++
			rt.number.Store(c.routes)
		}
		doors[addr] = rt.number.Load()
	}
	s.setDoors(doors)
}

func (s *Server) setDoors(doors map[netip.AddrPort]uint32) {
	if err := s.copies.kernel.SetListeners(doors); err != nil {
		s.log.Error("the kernel does not learn at which addresses it may answer", "err", err)
	}
}

// copied reports whether copies of z's answers are as good as what z would say: neither
// who asks nor that somebody asks may matter, and nothing that can change without a trace
// may come before the sources that copies are made of.
func (z *Zone) copied() bool {
	for _, matters := range [...]bool{
		z.ACL != nil, z.DNS64 != nil, z.Rewrite != nil, z.Template != nil, z.Autopath != nil,
		z.Hosts != nil, z.External != nil, z.Log != nil, len(z.Taps) > 0,
	} {
		if matters {
			return false
		}
	}
	return true
}

// put gives the kernel a copy of msg, the reply to x on rt, if it is one that may be copied.
func (c *copier) put(rt *Routes, x *request, msg []byte) {
	if c == nil || msg == nil || rt.number.Load() == 0 || rt.views || !x.copied() {
		return
	}
	rcode := x.reply.Rcode()
	x.copy = fastpath.Answer{
		Listener: rt.number.Load(), Query: &x.query, Reply: msg, MaxSize: x.zone.maxSize(), Source: x,
		Shuffled: (x.ordered || x.zone.Shuffle) && rcode == wire.NoError,
	}
	if c.mark(x) {
		c.kernel.Put(&x.copy)
	}
}

// copied reports whether x's reply is as good for the next one who asks the same. One with
// names that an ACL was asked about is not, whatever zone it is of.
func (x *request) copied() bool {
	if x.source != fromCluster && x.source != fromCache || x.verdicts != 0 || x.viaSearch || !x.zone.copied() {
		return false
	}
	rcode := x.reply.Rcode()
	return (rcode == wire.NoError || rcode == wire.NXDomain) &&
		(!x.ordered || x.reply.Count(wire.Answer) < 2 || x.zone.Cluster.Rotatable(&x.query))
}

// mark notes in x.copy until when it is true; false if that can't be told.
func (c *copier) mark(x *request) (ok bool) {
	a := &x.copy
	switch x.source {
	case fromCluster:
		a.Cluster = true
		a.Mark, ok = x.zone.Cluster.Mark(&x.query, &x.reply)
		return ok && c.cluster.Any() == x.epochs.cluster
	case fromCache:
		var t cache.Lease
		if t, ok = x.zone.Cache.Lease(&x.query, x.arrival); !ok || x.zone.inCluster(&x.query) {
			return false
		}
		a.Mark, a.Expires, a.Ends, a.Life, a.Counts = t.Mark, t.Renew, t.Expires, t.Life, t.CountsDown
		x.copyDenial = t.Denial
		return c.cached.Any() == x.epochs.cached
	}
	return false
}

// HitReporter is [fastpath.Source].
func (x *request) HitReporter() fastpath.HitReporter {
	return &holding{
		zone: x.zone, query: bytes.Clone(x.query.Packet), reply: len(x.copy.Reply),
		rcode: x.reply.Rcode(), source: x.source, v6: x.v6(), denied: x.copyDenial,
	}
}

// v6 reports whether the client came over IPv6.
func (x *request) v6() bool { return x.client.Addr().Is6() && !x.client.Addr().Is4In6() }

// inCluster reports whether q's name is one that the view of the cluster may come to have.
func (z *Zone) inCluster(q *wire.Query) bool {
	if z.Cluster == nil {
		return false
	}
	for _, origin := range z.Cluster.Origins() {
		if wire.Under(q.Name(), origin) {
			return true
		}
	}
	return false
}

// holding is what has to be known of a copy when it was given.
type holding struct {
	zone   *Zone
	query  []byte
	reply  int // bytes
	rcode  wire.Rcode
	source source
	v6     bool
	denied bool // of the cache's answers: which kind
}

// ReportHits counts the queries that were answered with the copy as if the server had, and keeps
// what it was made of in use.
func (h *holding) ReportHits(n uint64, took time.Duration) {
	var x request
	if x.query.Parse(h.query) != wire.Serve {
		return
	}
	x.source, x.latency = h.source, took
	h.zone.Stats.countCopies(h, &x, n)
	switch h.source {
	case fromCluster:
		h.zone.Cluster.Touch(&x.query)
	case fromCache:
		h.zone.Cache.CountHits(&x.query, n, h.denied, clock.Now())
	}
}
