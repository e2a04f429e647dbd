// Package connlimit limits the connections of a listener, in total and for each client
// address. At a limit it chooses the connection that is closed to make room for a new one.
//
// A [Set] knows which connections are open, their clients and how long each has been idle.
// It holds no sockets and starts no goroutines. Its owner accepts and closes connections,
// and calls the Set under a lock of its own.
package connlimit

import (
	"iter"
	"net/netip"
	"time"
)

// Conn is an open connection.
type Conn interface {
	comparable
	// ClientAddr is the address of the client, or what groups the addresses of one client
	// (see internal/podrange). It must not change while the connection is in a Set.
	ClientAddr() netip.Addr
	// Activity returns the time of the last query or request, or of the connection if there
	// was none, and whether a query is unanswered.
	Activity() (last time.Duration, busy bool)
}

// Limit is the limit that a new connection has reached.
type Limit uint8

const (
	// None: no limit was reached.
	None Limit = iota
	// Client: the client has as many connections as one client may have.
	Client
	// Total: the listener has as many connections as it may have.
	Total
	// Limits is the number of Limit values.
	Limits
)

// Set is the set of a listener's open connections. Set the exported fields before the first
// method call. It is not safe for concurrent use.
type Set[C Conn] struct {
	// Total and PerClient are the maximum numbers of connections, of all clients and of one
	// address. Both are at least 1.
	Total, PerClient int
	// Fair decides which connection a full Set evicts. If it is set, the client with the most
	// connections loses the one that has been idle longest; no client loses one to a client
	// that has as many, unless Force is set. It loses a busy one if no idle one can go but those of clients with an eighth as many,
	// and the other client has at most an eighth as many, the new one included. While less than an eighth of Total is free, the Set is
	// full for a client that has as many as are free. If Fair is not set, the connection of any client that has been
	// idle longest goes (RFC 7766, 6.2.3).
	Fair bool
	// Force evicts a busy connection if there is no idle one, so that a new one is always
	// accepted.
	Force bool

	list    []C
	index   map[C]int // in list
	clients map[netip.Addr]int
}

// Add adds c. If a limit is reached and another connection is removed for c, evict is true
// and the caller closes victim. If none can be removed, ok is false and c is not added. A
// client that has reached its own limit loses one of its own connections. met is the limit
// that was reached.
//
// At a limit Add inspects every connection, which takes less time than the kernel takes to
// open one.
func (s *Set[C]) Add(c C) (victim C, evict bool, met Limit, ok bool) {
	if s.index == nil {
		s.index, s.clients = make(map[C]int), make(map[netip.Addr]int)
	}
	client := c.ClientAddr()
	switch {
	case s.clients[client] >= s.PerClient:
		met = Client
	case s.isFull(client):
		met = Total
	}
	if met != None {
		victim, evict = s.victim(client, met)
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

// sharePart is the part of Total below which places are shared, and the part of another client's connections that a
// client may have and still take a busy one.
const sharePart = 8

// isFull reports whether the Set has no room for a connection of client unless another one goes.
func (s *Set[C]) isFull(client netip.Addr) bool {
	free := s.Total - len(s.list)
	return free <= 0 || s.Fair && !HasShare(s.clients[client], free, s.Total)
}

// HasShare reports whether a client that has some of total places may take another one while free are free: nearly
// all are in use once less than an eighth is free, and then the client must have less than that. So each client finds a
// free place, unless those with as many connections as itself take them all.
func HasShare(has, free, total int) bool { return free > 0 && (free >= total/sharePart || has < free) }

// victim chooses the connection that makes room for one of client, which has reached the
// limit met; ok is false if there is none.
func (s *Set[C]) victim(client netip.Addr, met Limit) (found C, ok bool) {
	var worst rank
	light := s.lightest(met)
	for _, c := range s.list {
		last, busy := c.Activity()
		if !s.mayEvict(c.ClientAddr(), client, met, busy) {
			continue
		}
		st := rank{busy: busy, last: last, light: !busy && s.clients[c.ClientAddr()] <= light}
		if s.Fair {
			st.conns = s.clients[c.ClientAddr()]
		}
		if !ok || st.before(worst) {
			found, worst, ok = c, st, true
		}
	}
	return found, ok
}

// mayEvict reports whether a connection of the client from, which may be busy, may go for one of the client to,
// which has reached the limit met.
func (s *Set[C]) mayEvict(from, to netip.Addr, met Limit, busy bool) bool {
	switch {
	case s.Force || !busy:
		return from == to || met == Total && (!s.Fair || s.Force || s.clients[from] > s.clients[to])
	case met != Total || !s.Fair:
		return false
	}
	return s.clients[from] >= sharePart*(s.clients[to]+1)
}

// lightest returns up to how many connections a client keeps its idle ones while a busy one of another client may go: an
// eighth of the most that a client has.
func (s *Set[C]) lightest(met Limit) (n int) {
	if !s.Fair || s.Force || met != Total {
		return 0
	}
	for _, conns := range s.clients {
		n = max(n, conns/sharePart)
	}
	return n
}

// rank decides which connection is evicted.
type rank struct {
	light bool // idle, of a client with far fewer than another one
	busy  bool
	conns int // connections of its client
	last  time.Duration
}

// before reports whether a connection with this rank is evicted before one with rank o.
func (s rank) before(o rank) bool {
	switch {
	case s.light != o.light:
		return !s.light
	case s.busy != o.busy:
		return !s.busy
	case s.conns != o.conns:
		return s.conns > o.conns
	}
	return s.last < o.last
}

// Remove removes c if it is in the Set.
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

// Len returns the number of connections.
func (s *Set[C]) Len() int { return len(s.list) }

// Clients returns the number of client addresses.
func (s *Set[C]) Clients() int { return len(s.clients) }

// All iterates over the connections in no particular order. The Set must not change meanwhile.
func (s *Set[C]) All() iter.Seq[C] {
	return func(yield func(C) bool) {
		for _, c := range s.list {
			if !yield(c) {
				return
			}
		}
	}
}
