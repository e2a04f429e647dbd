package upstream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/grpcframe"
	"github.com/nodens-dns/nodens/internal/wire"
)

// newGRPCTransport returns a transport to a server of CoreDNS's gRPC service at addr, the address
// of target. It opens no connection. Without TLS settings in opts the connections are HTTP/2
// without TLS.
//
// A unary call is one HTTP/2 request, so the connections are those of DNS over HTTPS, with their
// bounds. The gRPC library would bring its own connections, resolver, balancer and retries, which
// this package has already.
func newGRPCTransport(target config.Target, addr netip.AddrPort, opts connOptions) transport {
	t := newHTTPTransport(target, addr, opts)
	t.url.Path, t.codec = grpcframe.Path, grpcCodec{}
	t.header = http.Header{
		"Content-Type": {grpcframe.ContentType},
		"Te":           {"trailers"}, // how gRPC finds proxies that drop the status
		"User-Agent":   {""},
	}
	t.client.ForceAttemptHTTP2, t.client.Protocols = false, new(http.Protocols) // gRPC needs HTTP/2
	t.client.Protocols.SetHTTP2(opts.tls != nil)
	t.client.Protocols.SetUnencryptedHTTP2(opts.tls == nil)
	if opts.tls != nil {
		t.client.TLSClientConfig.VerifyConnection = checkHTTP2 // net/http would use HTTP/1.1 then
	}
	return t
}

// checkHTTP2 returns an error for a server without HTTP/2.
func checkHTTP2(c tls.ConnectionState) error {
	if c.NegotiatedProtocol != "h2" {
		return errNoHTTP2
	}
	return nil
}

var errNoHTTP2 = errors.New("the server does not offer HTTP/2 (ALPN h2), which gRPC needs")

// grpcCodec is a unary call of gRPC over HTTP/2.
type grpcCodec struct{}

func (grpcCodec) setQuery(r *http.Request, query []byte) {
	setBody(r, grpcframe.Append(make([]byte, 0, len(query)+grpcframe.MaxOverhead), query))
}

var errNoStatus = errors.New("the server sends no gRPC status; is it a gRPC server, and are proxies before it made for gRPC?")

// readReply is [httpCodec.readReply]. A server without the name may say so by the status
// NOT_FOUND, which is an NXDOMAIN.
func (grpcCodec) readReply(resp *http.Response, query []byte) ([]byte, error) {
	defer resp.Body.Close()
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, newHTTPStatusError(resp)
	case kind != grpcframe.ContentType && !strings.HasPrefix(kind, grpcframe.ContentType+"+"):
		return nil, fmt.Errorf("unexpected media type %.60q instead of %s; is it a gRPC server?", kind, grpcframe.ContentType)
	}
	body, err := readBody(resp, grpcframe.MaxFrame)
	if err != nil {
		return nil, err
	}
	result := resp.Trailer
	if resp.Header.Get(grpcframe.StatusHeader) != "" { // a response without a message
		result = resp.Header
	}
	switch status := result.Get(grpcframe.StatusHeader); status {
	case "":
		return nil, errNoStatus
	case grpcframe.OK.String():
		return grpcframe.Parse(body)
	case grpcframe.NotFound.String():
		return wire.AppendRefusal(nil, query, wire.NXDomain, false), nil
	default:
		text := fmt.Sprintf("gRPC status %.10q: %.100q", status, result.Get(grpcframe.MessageHeader))
		return nil, statusError{text, status == grpcframe.Unavailable.String()}
	}
}
