package differential

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// schemes are those of the zones of the Corefile.
var schemes = []string{"tls", "https", "grpc", "quic", "https3"}

// clientAuths are what tls may ask of clients.
var clientAuths = []string{"nocert", "request", "require", "verify_if_given", "require_and_verify"}

// transportSite is a CoreDNS and an agent with the same Corefile, which has all transports.
type transportSite struct {
	authority *ca.Test
	// coredns and agent are the addresses of each by scheme, and for those with another client_auth than nocert by scheme and that,
	// with a space between them.
	coredns, agent map[string]netip.AddrPort
}

// streamLimits are the limits of each transport, which the queries don't reach.
const streamLimits = `https {
max_connections 100
max_streams 100
}
https3 {
max_connections 100
max_streams 100
}
quic {
max_connections 100
max_streams 100
worker_pool_size 512
}
grpc_server {
max_connections 100
max_streams 100
}
`

// startTransports starts both servers.
func startTransports(t *testing.T, s *site) *transportSite {
	t.Helper()
	ts := &transportSite{authority: ca.ForTest(t)}
	dir := t.TempDir()
	cert, key := ts.authority.ServerFiles(t, dir, "a server", time.Now().Add(time.Hour))
	files := cert + " " + key + " " + ts.authority.RootFile(t, dir)
	start := func(program string) map[string]netip.AddrPort {
		at := map[string]netip.AddrPort{}
		var text strings.Builder
		for _, auth := range clientAuths {
			var zones []string
			list := schemes
			if auth != "nocert" && auth != "require_and_verify" {
				list = schemes[:1]
			}
			for _, scheme := range list {
				addr := netip.AddrPortFrom(loopback, peer.Ports(t, 1)[0])
				zones = append(zones, fmt.Sprintf("%s://.:%d", scheme, addr.Port()))
				at[strings.TrimSuffix(scheme+" "+auth, " nocert")] = addr
			}
			fmt.Fprintf(&text, "%s {\nbind 127.0.0.1\nerrors\n%stls %s {\nclient_auth %s\n}\nforward . UPSTREAM\n}\n", strings.Join(zones, " "), streamLimits, files, auth)
		}
		at["dns"] = s.serve(t, program, ruleSet{}.corefile()+text.String(), apiserver.Admin)
		return at
	}
	ts.coredns, ts.agent = start("coredns"), start(agentProgram())
	return ts
}

// clientConfig returns the TLS settings of a client with the certificates.
func (ts *transportSite) clientConfig() *tls.Config { return &tls.Config{RootCAs: ts.authority.Pool()} }

// transportQueries are the questions over a transport.
func transportQueries(transport string) (qs []query) {
	list := slices.DeleteFunc(variations(), func(q query) bool {
		return !strings.HasSuffix(q.name, ".ext.test.") || q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR
	})
	list = append(list, slices.DeleteFunc(truncated(), func(q query) bool { return !strings.HasSuffix(q.name, ".ext.test.") })...)
	list = append(list, everyNth(forwarded(), 0, soak.Choose(7, 1))...)
	list = append(list, query{name: "host.ext.test.", qtype: dns.TypeA, ednsSize: ednsSize, options: []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}, note: "keepalive"})
	for _, q := range malformed() {
		if transport != "tls" {
			q.dropped = false // there is a reply to each request
		}
		list = append(list, q)
	}
	for _, q := range list {
		if q.tcp {
			continue // each is there without it, too
		}
		q.tcp, q.transport = true, transport
		qs = append(qs, q)
	}
	return qs
}

// TestTransports compares DNS over TLS, HTTPS, gRPC, QUIC and HTTP/3.
func TestTransports(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	s := newPlainSite(t)
	own := knownTransports()
	s.table = slices.Concat([]*knownDifference{knownSizes()}, knownMessages(), knownMalformed(), own)
	ts := startTransports(t, s)
	t.Run("transport", func(t *testing.T) {
		for transport := range transports {
			t.Run(transport, func(t *testing.T) {
				t.Parallel()
				r := s.run(t, false)
				r.coredns = ts.coredns["dns"]
				ts.compare(t, r, transport)
				r.report()
			})
		}
	})
	reportUnused(t, own)
}

// compare asks both servers over a transport.
func (ts *transportSite) compare(t *testing.T, r *run, transport string) {
	scheme, _, _ := strings.Cut(transport, "-")
	coredns := transports[transport](t, ts.coredns[scheme], ts.clientConfig())
	agentClient := transports[transport](t, ts.agent[scheme], ts.clientConfig())
	defer coredns.close()
	defer agentClient.close()
	queries, answers := transportQueries(transport), 0
	for _, q := range queries {
		if r.compareOver(coredns, agentClient, q, asking(t, q)).Outcome == "answer" {
			answers++
		}
	}
	if answers < len(queries)*9/10 {
		t.Errorf("CoreDNS answers %d of %d queries", answers, len(queries))
	}
	for _, o := range oddExchanges(transport) {
		q := query{name: "host.ext.test.", qtype: dns.TypeA, note: o.name, transport: transport, tcp: true}
		r.compareOver(coredns, agentClient, q, o.do)
	}
	ts.compareHandshakes(t, r, transport)
}

// compareOver compares what ask returns for both servers, and returns CoreDNS's. What is not a usual query gets a connection of its own.
func (r *run) compareOver(coredns, agentClient transportClient, q query, ask func(context.Context, transportClient) view) view {
	var views []view
	for _, c := range []transportClient{coredns, agentClient} {
		ctx, cancel := context.WithTimeout(r.t.Context(), q.wait())
		if q.note != "" {
			c.close()
		}
		views = append(views, ask(ctx, c))
		cancel()
		if q.note != "" {
			c.close()
		}
	}
	r.compareViews(agent{name: agentProgram()}, q.String(), q, views[0], views[1])
	return views[0]
}

// compareHandshakes connects to each server of the transport with each kind of client certificate, and to the first with each
// list of protocol names (ALPN).
func (ts *transportSite) compareHandshakes(t *testing.T, r *run, transport string) {
	ask := func(note, server string, cfg *tls.Config) {
		q := query{name: "host.ext.test.", qtype: dns.TypeA, note: note, transport: transport, tcp: true}
		r.compareOver(transports[transport](t, ts.coredns[server], cfg), transports[transport](t, ts.agent[server], cfg), q, asking(t, q))
	}
	if transport == "tls" {
		for _, protocols := range [][]string{{"dot"}, {"other"}, {"other", "dot"}} {
			cfg := ts.clientConfig()
			cfg.NextProtos = protocols
			ask("protocols "+strings.Join(protocols, ", "), transport, cfg)
		}
	}
	own, other := ts.authority.ClientCert(t), ca.ForTest(t).ClientCert(t)
	for _, auth := range clientAuths {
		server := transport + " " + auth
		if _, ok := ts.coredns[server]; !ok {
			continue
		}
		for name, cert := range map[string]*tls.Certificate{"no certificate": {}, "a certificate": &own, "a certificate of another CA": &other} {
			cfg := ts.clientConfig()
			// With Certificates the client would send none whose issuer the server doesn't name.
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
			ask(auth+", "+name, server, cfg)
		}
	}
}

// asking returns what asks q.
func asking(t *testing.T, q query) func(context.Context, transportClient) view {
	t.Helper()
	packet, err := q.pack(0)
	check.NoError(t, err)
	return func(ctx context.Context, c transportClient) view { return c.ask(ctx, packet) }
}

// oddExchange is something that a client does besides asking.
type oddExchange struct {
	name string
	do   func(context.Context, transportClient) view
}

// oddExchanges are those over a transport.
func oddExchanges(transport string) []oddExchange {
	packet, err := query{name: "host.ext.test.", qtype: dns.TypeA}.pack(0)
	if err != nil {
		panic(err) // a mistake in this file
	}
	switch transport {
	case "https", "https-1.1", "https3":
		return oddRequests(packet)
	case "grpc":
		return oddCalls(packet)
	case "quic":
		return oddStreams(packet)
	}
	return nil
}

// oddRequests are HTTP requests.
func oddRequests(packet []byte) (list []oddExchange) {
	const dnsMessage = "application/dns-message"
	for name, r := range map[string]httpRequest{
		"wrong path":             {method: http.MethodPost, path: "/dns", contentType: dnsMessage, body: packet},
		"path with a slash":      {method: http.MethodPost, path: "/dns-query/", contentType: dnsMessage, body: packet},
		"wrong path, GET":        {method: http.MethodGet, path: "/"},
		"PUT":                    {method: http.MethodPut, path: "/dns-query", contentType: dnsMessage, body: packet},
		"DELETE":                 {method: http.MethodDelete, path: "/dns-query"},
		"HEAD":                   {method: http.MethodHead, path: "/dns-query?dns=AAABAAABAAAAAAAAAAACAAE"},
		"wrong type":             {method: http.MethodPost, path: "/dns-query", contentType: "application/dns-json", body: packet},
		"no type":                {method: http.MethodPost, path: "/dns-query", body: packet},
		"type with parameter":    {method: http.MethodPost, path: "/dns-query", contentType: dnsMessage + "; x=y", body: packet},
		"type in upper case":     {method: http.MethodPost, path: "/dns-query", contentType: "Application/DNS-Message", body: packet},
		"accepts another type":   {method: http.MethodPost, path: "/dns-query", contentType: dnsMessage, accept: "text/html", body: packet},
		"no body":                {method: http.MethodPost, path: "/dns-query", contentType: dnsMessage},
		"body of 65,536 bytes":   {method: http.MethodPost, path: "/dns-query", contentType: dnsMessage, body: slices.Concat(packet, make([]byte, 1<<16-len(packet)))},
		"body of 65,537 bytes":   {method: http.MethodPost, path: "/dns-query", contentType: dnsMessage, body: slices.Concat(packet, make([]byte, 1<<16+1-len(packet)))},
		"no parameter":           {method: http.MethodGet, path: "/dns-query"},
		"another parameter":      {method: http.MethodGet, path: "/dns-query?name=host.ext.test"},
		"empty parameter":        {method: http.MethodGet, path: "/dns-query?dns="},
		"two parameters":         {method: http.MethodGet, path: "/dns-query?dns=AAABAAABAAAAAAAAAAACAAE&dns=AAABAAABAAAAAAAAAAACAAE"},
		"parameter with padding": {method: http.MethodGet, path: "/dns-query?dns=AAABAAABAAAAAAAAAAACAAE="},
		"no base64":              {method: http.MethodGet, path: "/dns-query?dns=***"},
		"base64 for files":       {method: http.MethodGet, path: "/dns-query?dns=AAABAAABAAAAAAAAAAACAAE%2B"},
		"POST with a parameter":  {method: http.MethodPost, path: "/dns-query?dns=AAABAAABAAAAAAAAAAACAAE", contentType: dnsMessage, body: packet},
	} {
		list = append(list, oddExchange{name: name, do: func(ctx context.Context, c transportClient) view {
			h, _ := c.(*httpClient)
			return h.do(ctx, r)
		}})
	}
	return list
}

// oddCalls are calls by gRPC.
func oddCalls(packet []byte) []oddExchange {
	call := func(method string, packet []byte) func(context.Context, transportClient) view {
		return func(ctx context.Context, c transportClient) view {
			g, _ := c.(*grpcClient)
			return g.call(ctx, method, packet)
		}
	}
	return []oddExchange{
		{name: "another method", do: call("/coredns.dns.DnsService/Transfer", packet)},
		{name: "another service", do: call("/dns.DnsService/Query", packet)},
		{name: "no message", do: call("/coredns.dns.DnsService/Query", nil)},
		{name: "message of 65,535 bytes", do: call("/coredns.dns.DnsService/Query", slices.Concat(packet, make([]byte, dns.MaxMsgSize-len(packet))))},
		{name: "message of 65,536 bytes", do: call("/coredns.dns.DnsService/Query", make([]byte, 1<<16))},
		{name: "message of 70,000 bytes", do: call("/coredns.dns.DnsService/Query", make([]byte, 70_000))},
	}
}

// oddStreams are streams over QUIC.
func oddStreams(packet []byte) []oddExchange {
	frame := func(length int, packet []byte) []byte {
		return append([]byte{byte(length >> 8), byte(length)}, packet...)
	}
	send := func(b []byte, end bool) func(context.Context, transportClient) view {
		return func(ctx context.Context, c transportClient) view {
			q, _ := c.(*quicClient)
			return q.send(ctx, b, end)
		}
	}
	withID := slices.Clone(packet)
	withID[1] = 1
	return []oddExchange{
		{name: "an ID", do: send(frame(len(withID), withID), true)},
		{name: "empty stream", do: send(nil, true)},
		{name: "half a length", do: send([]byte{0}, true)},
		{name: "length 0", do: send(frame(0, nil), true)},
		{name: "length of the message and one", do: send(frame(len(packet)+1, packet), true)},
		{name: "two messages", do: send(slices.Concat(frame(len(packet), packet), frame(len(packet), packet)), true)},
		{name: "bytes behind the message", do: send(frame(len(packet), slices.Concat(packet, []byte{1})), true)},
		{name: "no length", do: send(packet, true)},
		{name: "no end of the stream", do: send(frame(len(packet), packet), false)},
	}
}

// knownTransports are about transports.
func knownTransports() []*knownDifference {
	overHTTP := func(c comparison) bool { return strings.HasPrefix(c.transport, "https") }
	return append([]*knownDifference{
		{
			reason: "a client that asks how long its connection may be idle is told (RFC 7828)",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.EDNS += ", option 11 use tcp keep-alive, timeout 10000ms"
				return v, c.transport == "tls" && c.note == "keepalive"
			},
		},
		{
			reason: "a message of up to 65,535 bytes fits into a stream, whatever size of a datagram the client gives (RFC 9250, 4.6; RFC 8484, 6); CoreDNS truncates replies over QUIC as over UDP",
			expect: func(c comparison) (view, bool) {
				if !strings.Contains(c.Flags, "tc") || c.transport != "quic" && !strings.HasPrefix(c.transport, "https3") {
					return view{}, false
				}
				return c.ask(c.query), true
			},
		},
		{
			reason: "a denial is fresh for its SOA's MINIMUM at most (RFC 8484, 5.1; RFC 2308, 5); CoreDNS takes the SOA's TTL, and five seconds if there is an alias before it",
			expect: func(c comparison) (view, bool) {
				v := c.view
				v.Header = ""
				return v, overHTTP(c) && strings.HasPrefix(c.Header, "Cache-Control")
			},
		},
		{
			reason: "DNS errors are replies over QUIC as over TCP; the connection is closed only for what is no message of its own, or violates the protocol (RFC 9250, 4.3.3)",
			expect: func(c comparison) (view, bool) {
				if c.transport != "quic" || c.wire == nil || len(c.wire) < 12 || c.Outcome != "connection closed with code 2" || c.note == "response bit" {
					return view{}, false
				}
				v := view{Outcome: "answer", Opcode: "QUERY", Rcode: "FORMERR", Flags: "qr rd"}
				if strings.HasPrefix(c.note, "opcode") {
					v.Rcode, v.Opcode = "NOTIMP", dns.OpcodeToString[int(c.wire[2]>>3&15)]
				}
				return v, true
			},
		},
		{
			reason: "a stream has one message and then ends (RFC 9250, 4.2 and 4.3.3); CoreDNS takes the first one",
			expect: func(c comparison) (view, bool) {
				return view{Outcome: "connection closed with code 2"}, slices.Contains([]string{"two messages", "bytes behind the message", "no end of the stream"}, c.note)
			},
		},
		{
			reason: "what is no query is an error of the request (RFC 8484, 4.2.1), as CoreDNS has it for most such messages",
			expect: func(c comparison) (view, bool) {
				return view{Outcome: "400 Bad Request"}, overHTTP(c) && c.wire != nil && (c.Rcode == "FORMERR" || c.Rcode == "NOTIMP")
			},
		},
		{
			reason: "the status of a call says that its message is at fault, so that a client doesn't repeat it; CoreDNS's says nothing",
			expect: func(c comparison) (view, bool) {
				return view{Outcome: "status InvalidArgument"}, c.transport == "grpc" && (c.Outcome == "status Unknown" || c.wire != nil && (c.Rcode == "FORMERR" || c.Rcode == "NOTIMP"))
			},
		},
	}, knownRequests()...)
}

// knownRequests are about HTTP requests.
func knownRequests() (list []*knownDifference) {
	for _, d := range []struct {
		reason, outcome string
		notes           []string
	}{
		{"the method is not one of the resource's (RFC 9110, 15.5.6)", "405 Method Not Allowed", []string{"PUT", "DELETE", "HEAD"}},
		{"a body of another type is no query (RFC 8484, 4.1; RFC 9110, 15.5.16); CoreDNS takes any", "415 Unsupported Media Type", []string{"wrong type", "no type"}},
		{"a message has 65,535 bytes at most (RFC 8484, 6; RFC 9110, 15.5.14)", "413 Request Entity Too Large", []string{"body of 65,536 bytes", "body of 65,537 bytes"}},
	} {
		list = append(list, &knownDifference{reason: d.reason, expect: func(c comparison) (view, bool) {
			return view{Outcome: d.outcome}, slices.Contains(d.notes, c.note)
		}})
	}
	return list
}
