// Package connlimit bounds the connections of a listener: how many all clients may have
// and how many one may have. When a limit is reached it names the connection that has
// to be closed in favour of a new one.
//
// A [Set] knows which connections are open, whose they are and since when each is idle.
// It holds no sockets and starts nothing. Its owner accepts and closes connections, and
// calls the Set under a lock of its own.
package connlimit

import (
	"iter"
	"net/netip"
	"time"
)

// Conn is an open connection.
type Conn interface {
	comparable
	// ClientAddr is the address of the client. It must not change while the connection
	// is in a Set.
	ClientAddr() netip.Addr
	// Activity is when the last query or request came, or else the connection, and
	// whether one is not answered yet.
	Activity() (last time.Duration, busy bool)
}

// Limit is a limit that a new connection has met.
type Limit uint8

const (
	// None: there was room.
	None Limit = iota
	// Client: the client has all the connections that one may have.
	Client
	// Total: the listener has all the connections that it may have.
	Total
	// Limits is the number of values.
	Limits
)

// Set is the open connections of one listener. Fill in the limits before the first call
// of a method. It is not safe for concurrent use.
type Set[C Conn] struct {
	// Total and PerClient are the most connections at once, of all clients and of one
	// address. Both are at least 1.
	Total, PerClient int
	// Fair decides what a full Set gives up. If set, the client that has the most
	// connections loses the one that has been idle for longest. If not, whichever
	// connection has been idle for longest goes, as RFC 7766, 6.2.3 has it.
	Fair bool
	// Force has a busy connection go where no idle one can, so that a new one always
	// gets in.
	Force bool

	list    []C
	index   map[C]int // in list
	clients map[netip.Addr]int
}

// Add takes c in. If a limit is reached, another connection may have to go: then evict
// is true, and victim is in the Set no more and must be closed. ok is false, and c not
// in the Set, if no connection can go. A client that has all it may have gives up one of
// its own, so that it is in nobody's way but its own. met says which limit it was.
//
// At a limit it looks at every connection. That takes less time than the kernel takes to
// open one.
func (s *Set[C]) Add(c C) (victim C, evict bool, met Limit, ok bool) {
	if s.index == nil {
		s.index, s.clients = make(map[C]int), make(map[netip.Addr]int)
	}
	client := c.ClientAddr()
	switch {
	case s.clients[client] >= s.PerClient:
		met = Client
	case len(s.list) >= s.Total:
		met = Total
	}
	if met != None {
		victim, evict = s.victim(func(o C) bool { return met == Total || o.ClientAddr() == client })
		if !evict {
			return victim, false, met, false
		}
		s.Remove(victim)
	}
	s.index[c] = len(s.list)
	s.list = append(s.list, c)
	s.clients[client]++
	return victim, evict, met, true
}

// victim is the connection that goes, of those that may; ok is false if none can.
func (s *Set[C]) victim(may func(C) bool) (found C, ok bool) {
	var worst rank
	for _, c := range s.list {
		last, busy := c.Activity()
		if busy && !s.Force || !may(c) {
			continue
		}
		st := rank{busy: busy, last: last}
		if s.Fair {
			st.conns = s.clients[c.ClientAddr()]
		}
		if !ok || st.before(worst) {
			found, worst, ok = c, st, true
		}
	}
	return found, ok
}

// rank is what decides which connection goes.
type rank struct {
	busy  bool
	conns int // connections of its client
	last  time.Duration
}

// before reports whether a connection that stands so goes before another one.
func (s rank) before(o rank) bool {
	switch {
	case s.busy != o.busy:
		return !s.busy
	case s.conns != o.conns:
		return s.conns > o.conns
	}
	return s.last < o.last
}

// Remove forgets c, if it is there.
func (s *Set[C]) Remove(c C) {
	at, ok := s.index[c]
	if !ok {
		return
	}
	delete(s.index, c)
	last := len(s.list) - 1
	if at != last {
		s.list[at] = s.list[last]
		s.index[s.list[at]] = at
	}
	var none C
	s.list[last] = none
	s.list = s.list[:last]
	client := c.ClientAddr()
	if s.clients[client]--; s.clients[client] == 0 {
		delete(s.clients, client)
	}
}

// Len is the number of connections.
func (s *Set[C]) Len() int { return len(s.list) }

// Clients is the number of addresses that have connections.
func (s *Set[C]) Clients() int { return len(s.clients) }

// All gives every connection, in no order. The Set must not change meanwhile.
func (s *Set[C]) All() iter.Seq[C] {
	return func(yield func(C) bool) {
		for _, c := range s.list {
			if !yield(c) {
				return
			}
		}
	}
}
