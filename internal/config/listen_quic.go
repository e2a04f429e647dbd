package config

import "math"

// QUICLimits are limits of one address that serves a transport over QUIC, none of which raises a
// limit of the agent. Zero fields have the agent's.
type QUICLimits struct {
	// MaxStreams is how many queries a client may have in flight on one connection.
	MaxStreams int
	// MaxConns is how many connections there may be.
	MaxConns int
	// Workers is how many queries may be in flight on all connections.
	Workers int
}

// QUIC is `quic { max_streams N; max_connections N; worker_pool_size N }` for addresses that serve
// DNS over QUIC. It has no effect on others.
type QUIC struct{ QUICLimits }

func (x *QUIC) parse(p *parser, s statement) {
	p.count(s, "quic { max_streams|max_connections|worker_pool_size NUMBER }")
	p.body(s,
		quicOption(p, "max_streams", 1, &x.MaxStreams),
		quicOption(p, "max_connections", 0, &x.MaxConns),
		quicOption(p, "worker_pool_size", 1, &x.Workers),
	)
}

// HTTP3 is `https3 { max_streams N; max_connections N }` for addresses that serve DNS over HTTP/3.
// It has no effect on others.
type HTTP3 struct{ QUICLimits }

func (x *HTTP3) parse(p *parser, s statement) {
	p.count(s, "https3 { max_streams|max_connections NUMBER }")
	p.body(s, quicOption(p, "max_streams", 0, &x.MaxStreams), quicOption(p, "max_connections", 0, &x.MaxConns))
}

// quicOption returns the option name, which sets dst. A second one is an error, as in CoreDNS.
func quicOption(p *parser, name string, least int64, dst *int) option {
	o := opt(name+" NUMBER", toNumber(p, dst, least, math.MaxInt32))
	o.once = true
	return o
}
