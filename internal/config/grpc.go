package config

import (
	"fmt"
	"slices"
	"strings"
)

// GRPC is `grpc FROM TO… { … }`: upstreams that are asked over CoreDNS's gRPC service. As in
// CoreDNS it gets the queries that no `forward` of the block takes, wherever it stands. It has the
// options of `forward` that apply to it.
//
// `fallthrough` is accepted and has no effect: no directive that has answers comes after grpc.
type GRPC struct {
	// Forward is the last in the chain of the block's forwards.
	Forward Forward
}

const grpcUsage = "grpc FROM TO… (TO: an IP address or a name, with or without a port, grpc:// before it, a resolv.conf file, or k8s:NAMESPACE/NAME)"

func (g *GRPC) parse(p *parser, s statement) {
	f := &g.Forward
	*f = defaultForward()
	f.GRPC = true
	table := slices.DeleteFunc(f.options(p), func(o option) bool {
		return slices.Contains([]string{"force_tcp", "prefer_udp", "doh_method", "next", "next_on_nodata"}, o.name)
	})
	f.read(p, s, grpcUsage, append(table, opt("fallthrough [ZONES…]", func(args []token) {
		p.zones(args)
		p.suspect(s.name(), "fallthrough has no effect: no directive with answers comes after grpc; take it out")
	})))
}

// joinGRPC makes p.block's grpc the last of its forwards.
func (p *parser) joinGRPC() {
	b := p.block
	switch {
	case b.GRPC == nil:
	case b.Forward == nil:
		b.Forward = &b.GRPC.Forward
	default:
		p.name = "grpc"
		defer func() { p.name = "" }()
		b.Forward.suspectCovered(p, p.firsts["grpc"], &b.GRPC.Forward, "narrow that one, or take its names out with `except`")
		for f := range chain(b.Forward) {
			if f.Next == nil {
				f.Next = &b.GRPC.Forward
				break
			}
		}
	}
}

// parseGRPCUpstream is parseUpstream for the directive grpc. The port is 53 for an address without
// a scheme, as in CoreDNS, and 443 after grpc://.
func parseGRPCUpstream(text string) (to Target, path string, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	switch {
	case ok && scheme == DNSOverGRPC.String():
		to, err = parseSecure(DNSOverGRPC, rest)
		return to, "", err
	case ok && scheme == "unix":
		return to, "", fmt.Errorf("%q: CoreDNS takes Unix domain sockets, this version of nodens doesn't; let the server listen on an IP address such as 127.0.0.1, and write that with its port", text)
	case ok && scheme != PlainDNS.String():
		return to, "", fmt.Errorf("%q has the scheme %q; write grpc://ADDRESS, and the option `tls` for TLS", text, scheme)
	}
	if to, path, err = parseUpstream(text); path == "" {
		to.Transport = DNSOverGRPC
	}
	return to, path, err
}
