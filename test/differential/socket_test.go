package differential

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// maxIdleSockets bounds the UDP sockets that are kept for later queries.
const maxIdleSockets = 128

// sockets are those of all queries.
var sockets socketPool

// socketPool keeps UDP sockets for later queries to the same server: opening one for each query takes a third of the time
// that a comparison takes. A TCP connection is for one query. The zero value is empty. It is safe for concurrent
// use.
type socketPool struct {
	mu   sync.Mutex
	idle []*socket // the one that was used last is the last
}

// socket is a socket or connection, and what may use it again.
type socket struct {
	*dns.Conn
	key socketKey
}

// socketKey says which queries may use a socket.
type socketKey struct {
	server          netip.AddrPort
	from, namespace string
	tcp             bool
}

// get returns a socket for the query that nothing else uses.
func (p *socketPool) get(q query, network string, server netip.AddrPort) (*socket, error) {
	key := socketKey{server, q.from, q.namespace, q.tcp}
	if s := p.take(key); s != nil {
		return s, nil
	}
	conn, err := q.dial(network, server)
	if err != nil {
		return nil, err
	}
	return &socket{conn, key}, nil
}

// take removes a socket with the key from those that are idle, and returns it; nil for none.
func (p *socketPool) take(key socketKey) *socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range slices.Backward(p.idle) {
		if s.key == key {
			p.idle = slices.Delete(p.idle, i, i+1)
			return s
		}
	}
	return nil
}

// put keeps the socket for the next query if it is reusable: no reply to its last query is to come. One that comes
// nevertheless is taken for the next query's, whose ID differs, and so is a difference.
func (p *socketPool) put(s *socket, reusable bool) {
	if !reusable || s.key.tcp {
		s.Close()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == maxIdleSockets {
		p.idle[0].Close()
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.idle = append(p.idle, s)
}
