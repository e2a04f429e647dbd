package server

import (
	"net/netip"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/server/fastpath"
	"github.com/nodens-dns/nodens/server/resolver"
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
	lastID          uint32 // of the last activeConfig that has one
}

// UseKernel has copies of answers to UDP queries given to k, which answers the next ones in
// the server's place. It is called before anything else.
func (s *Server) UseKernel(k Kernel) {
	s.copies = &copier{kernel: k}
	s.copies.cluster, s.copies.cached = k.Epochs()
}

// activeConfig is what one address serves now.
type activeConfig struct {
	ListenerConfig
	// fastPathID stands for this configuration in the kernel; 0 if it gets no copies.
	fastPathID atomic.Uint32
}

// udpRequest is the request of a UDP reader, with what the copy of its reply takes.
type udpRequest struct {
	resolver.Request
	epochs epochs
	copy   resolver.Copy
	answer fastpath.Answer
}

// HitReporter is [fastpath.Source].
func (r *udpRequest) HitReporter() fastpath.HitReporter {
	return r.Copied(&r.copy, len(r.answer.Reply))
}

// epochs are the counters of all copies when a query begins. If they have moved when its
// reply is copied, what the reply is made of may have changed.
type epochs struct{ cluster, cached uint64 }

func (c *copier) epochs() epochs {
	if c == nil {
		return epochs{}
	}
	return epochs{cluster: c.cluster.Any(), cached: c.cached.Any()}
}

// put gives the kernel a copy of msg, the reply to r, if it is one that may be copied.
func (c *copier) put(cfg *activeConfig, r *udpRequest, msg []byte) {
	if c == nil || msg == nil || cfg.fastPathID.Load() == 0 {
		return
	}
	var ok bool
	if r.copy, ok = r.Copy(); !ok {
		return
	}
	now := c.epochs()
	if r.copy.FromCluster && now.cluster != r.epochs.cluster || !r.copy.FromCluster && now.cached != r.epochs.cached {
		return
	}
	r.answer = fastpath.Answer{
		Listener: cfg.fastPathID.Load(), Query: &r.Query, Reply: msg, Source: r,
		Cluster: r.copy.FromCluster, Mark: r.copy.Mark, Expires: r.copy.Expires, Ends: r.copy.Ends,
		Counts: r.copy.CountsDown, Life: r.copy.Life, MaxSize: r.copy.MaxSize, Shuffled: r.copy.Shuffled,
	}
	c.kernel.Put(&r.answer)
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
// address of their own. New configurations get a new number, so that copies of the replies
// before are found no more. s is locked.
func (s *Server) openDoors() {
	c := s.copies
	if c == nil {
		return
	}
	doors := make(map[netip.AddrPort]uint32)
	for addr, l := range s.listeners {
		cfg := l.config.Load()
		if cfg.Transport != config.PlainDNS || addr.Addr().IsUnspecified() {
			continue
		}
		if cfg.fastPathID.Load() == 0 {
			c.lastID++
			cfg.fastPathID.Store(c.lastID)
		}
		doors[addr] = cfg.fastPathID.Load()
	}
	s.setDoors(doors)
}

func (s *Server) setDoors(doors map[netip.AddrPort]uint32) {
	if err := s.copies.kernel.SetListeners(doors); err != nil {
		s.log.Error("the kernel does not learn at which addresses it may answer", "err", err)
	}
}
