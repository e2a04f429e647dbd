package upstream

import (
	"crypto/rand"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// DNS cookies (RFC 7873, RFC 9018) towards servers over UDP. Who is not on the way has to guess a port and an ID to forge a reply,
// 31 bits at best; with a cookie, 64 bits more:
//
//   - A query has a client cookie, which is random and another one for each server, and the server cookie of the server's last reply.
//   - A reply with another client cookie is dropped like one with another ID.
//   - Once a server has sent a cookie, a reply over UDP without one is not believed: the query is sent again over TCP. If
//     there is none over TCP either, the server has no cookies any more.
//   - BADCOOKIE brings a new server cookie, with which the query is sent again, once; after that over TCP (RFC 7873, 5.3).
//   - A server that has not sent a cookie after cookieTries queries, or that refuses the option, gets none for cookiePause. So one that
//     drops such queries costs no more than a few repetitions.

const (
	clientCookieLen = 8
	// shortestCookie and longestCookie are the lengths of a client's and a server's cookie together (RFC 7873, 4).
	shortestCookie = clientCookieLen + 8
	longestCookie  = clientCookieLen + 32
	cookieTries    = 8
	cookiePause    = time.Hour
)

// cookies are those of one server. The zero value is ready. It is safe for concurrent use.
type cookies struct {
	mu     sync.Mutex
	value  [longestCookie]byte // the client's cookie and the server's
	n      int                 // its length; 0: there is no client's yet
	tries  int                 // queries since the last cookie
	paused time.Time           // until when none is sent
}

// sentCookie is the cookie of one query.
type sentCookie struct {
	client [clientCookieLen]byte
	sent   bool
	known  bool // the server had sent one
}

// put adds a cookie to options, of a query that is sent at now. first says that the query is not repeated because it is late.
func (c *cookies) put(options []byte, now time.Time, first bool) ([]byte, sentCookie) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.n > clientCookieLen
	if now.Before(c.paused) || !known && !first || wire.HasOption(options, wire.OptionCookie) {
		return options, sentCookie{}
	}
	if c.n == 0 {
		c.n, _ = rand.Read(c.value[:clientCookieLen])
	}
	if c.tries++; !known && c.tries > cookieTries {
		c.pause(now)
		return options, sentCookie{}
	}
	return wire.SetOption(options, wire.OptionCookie, c.value[:c.n]), sentCookie{client: [clientCookieLen]byte(c.value[:]), sent: true, known: known}
}

// pause makes put send no cookies for a while; c is locked.
func (c *cookies) pause(now time.Time) {
	c.n, c.tries, c.paused = min(c.n, clientCookieLen), 0, now.Add(cookiePause)
}

// fits reports whether msg, a reply, may be the one to a query with this cookie.
func (s *sentCookie) fits(msg []byte) bool {
	if !s.sent {
		return true
	}
	cookie, _, _ := replyCookie(msg)
	return cookie == nil || len(cookie) >= clientCookieLen && len(cookie) <= longestCookie && subtle.ConstantTimeCompare(cookie[:clientCookieLen], s.client[:]) == 1
}

// replyCookie returns the cookie in msg, nil for none. full is false without a server's part: the server sends back options that it
// does not know.
func replyCookie(msg []byte) (cookie []byte, rcode wire.Rcode, full bool) {
	options, rcode := wire.ReplyOptions(msg)
	cookie, _ = wire.OptionData(options, wire.OptionCookie)
	return cookie, rcode, len(cookie) >= shortestCookie
}

// cookieVerdict says what comes of a reply.
type cookieVerdict uint8

const (
	cookieGood    cookieVerdict = iota
	cookieAgain                 // the query is sent again
	cookieOverTCP               // the query is sent again over TCP
)

// observe learns from msg, the reply to a query with the cookie s. again says that the query was sent again because of its cookie.
func (c *cookies) observe(s *sentCookie, msg []byte, now time.Time, udp, again bool) cookieVerdict {
	cookie, rcode, has := replyCookie(msg)
	c.mu.Lock()
	defer c.mu.Unlock()
	if has {
		c.n, c.tries = copy(c.value[:], cookie), 0
	}
	switch bad := udp && rcode == wire.BadCookie; {
	case bad && has && !again:
		return cookieAgain
	case bad, udp && s.known && !has:
		return cookieOverTCP
	case has:
		return cookieGood
	}
	return c.missing(s, rcode, now, again)
}

// missing is observe for a reply without a cookie that is to be believed; c is locked.
func (c *cookies) missing(s *sentCookie, rcode wire.Rcode, now time.Time, again bool) cookieVerdict {
	refused := rcode == wire.FormErr && !again
	if s.known || refused {
		c.pause(now)
	}
	if refused && !s.known {
		return cookieAgain
	}
	return cookieGood
}
