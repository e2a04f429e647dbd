package upstream

import (
	"crypto/tls"
	"net/netip"
	"sync/atomic"
	"time"
)

// streamOptions is what a [stream] needs beside the server's address.
type streamOptions struct {
	// tls makes it DNS over TLS (RFC 7858); nil is plain TCP. It is copied. An empty
	// ServerName is the server's address.
	tls *tls.Config
	// source is the address to ask from; the system's choice if it is not valid.
	source netip.Addr
	// expire is how long an idle connection is kept; 0 keeps none.
	expire time.Duration
	// maxAge is how long a connection takes new queries; 0 is for ever.
	maxAge time.Duration
	// maxIdle is the most idle connections kept; 0 is as many as there are.
	maxIdle int
	// strays counts the messages that answer nothing, broken the connections that
	// could not be made or broke with queries in flight. nil counts nothing.
	strays, broken *atomic.Uint64
}

// newStream opens no connection yet.
func newStream(to netip.AddrPort, opts streamOptions) transport {
	return newTCP(to, pooling{busy: maxBusyTCP, spare: maxIdleTCP, expire: opts.expire}, neverStops)
}
