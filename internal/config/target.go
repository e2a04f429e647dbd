package config

import (
	"net"
	"net/netip"
	"strconv"
)

// Transport is the protocol for DNS messages, to an upstream or from a client.
type Transport uint8

// The transports, with their usual ports.
const (
	PlainDNS     Transport = iota // UDP and TCP, 53
	DNSOverTLS                    // RFC 7858, 853
	DNSOverHTTPS                  // RFC 8484, 443
	DNSOverGRPC                   // CoreDNS's service DnsService, 443
	DNSOverQUIC                   // RFC 9250, 853
	DNSOverHTTP3                  // RFC 8484 over RFC 9114, 443
)

// String returns the transport's scheme in a Corefile.
func (t Transport) String() string {
	switch t {
	case DNSOverTLS:
		return "tls"
	case DNSOverHTTPS:
		return "https"
	case DNSOverGRPC:
		return "grpc"
	case DNSOverQUIC:
		return "quic"
	case DNSOverHTTP3:
		return "https3"
	default:
		return "dns"
	}
}

// OverQUIC reports whether t is over QUIC, which uses UDP.
func (t Transport) OverQUIC() bool { return t == DNSOverQUIC || t == DNSOverHTTP3 }

// networks returns the networks whose ports t takes.
func (t Transport) networks() []string {
	switch {
	case t == PlainDNS:
		return []string{"udp", "tcp"}
	case t.OverQUIC():
		return []string{"udp"}
	default:
		return []string{"tcp"}
	}
}

// Target is one TO of `forward`: a server's address, a server's name, or a Service, whose
// endpoints are the servers. It is comparable.
type Target struct {
	Transport Transport
	// Addr is the server's address; not valid where Host or Service is set.
	Addr netip.AddrPort
	// Host is the server's name, whose addresses are looked up, and Port its port.
	Host string
	Port uint16
	// Path is the path of the URL of an upstream over HTTPS.
	Path string
	// Service is NAMESPACE/NAME of the Service whose endpoints are the servers; Port
	// is then the port of the endpoints, 0 for that named dns or 53.
	Service string
	// ServerName is the name that this server's certificate must be for, where the
	// target itself gives one; "" leaves it to `tls_servername`, and else to Host.
	ServerName string
}

// String returns t as in a Corefile, with its port and without its ServerName.
func (t Target) String() string {
	var where string
	switch {
	case t.Service != "":
		where = "k8s:" + t.Service
		if t.Port != 0 {
			where += ":" + strconv.Itoa(int(t.Port))
		}
	case t.Host != "":
		where = net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
	default:
		where = t.Addr.String()
	}
	if t.Transport == PlainDNS {
		return where
	}
	return t.Transport.String() + "://" + where + t.Path
}
