package config

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

const tlsUsage = "tls [CERT KEY] [CA]"

// transportOptions adds forward's options for connections to upstreams.
func (f *Forward) transportOptions(p *parser, table options, at map[string]token) {
	table["tls"] = option{usage: tlsUsage, most: 3, set: func(args []token) { f.TLS = tlsClient(p, p.paths(args)) }}
	table["tls_servername"] = option{usage: "tls_servername NAME", least: 1, most: 1, set: func(args []token) {
		f.ServerName, at["tls_servername"] = args[0].text, args[0]
		if !hostname(f.ServerName) {
			p.errorf(args[0], "%q is not a host name", f.ServerName)
		}
	}}
	table["doh_method"] = option{usage: "doh_method POST|GET", least: 1, most: 1, set: func(args []token) {
		f.DoHMethod, _ = choice(p, args[0], "method", map[string]string{"POST": "POST", "GET": "GET"})
	}}
	table["source_address"] = option{usage: "source_address IP", least: 1, most: 1, set: func(args []token) {
		addr, err := netip.ParseAddr(args[0].text)
		if err != nil {
			p.errorf(args[0], "%q is not an IP address", args[0].text)
		}
		f.SourceAddress, at["source_address"] = addr.Unmap(), args[0]
	}}
	table["resolver"] = option{usage: "resolver IP…", least: 1, most: -1, set: func(args []token) {
		f.Resolver, at["resolver"] = resolvers(p, args), args[0]
	}}
}

// maxResolvers bounds the servers that resolve names of upstreams. Each one that does not
// answer costs seconds.
const maxResolvers = 15

// resolvers reads addresses with or without a port.
func resolvers(p *parser, args []token) []netip.AddrPort {
	var list []netip.AddrPort
	for _, w := range args {
		at, err := address(w.text, 53)
		switch {
		case err != nil:
			p.errorf(w, "%v", err)
		case !at.IsValid():
			p.errorf(w, "%q is not an IP address; write IP or IP:PORT", w.text)
		case !slices.Contains(list, at):
			list = append(list, at)
		}
	}
	if len(list) > maxResolvers {
		p.errorf(args[0], "there are %d resolvers; allowed: 1 to %d", len(list), maxResolvers)
	}
	return list
}

// tlsClient reads the files that args name, so that errors are found at the start.
func tlsClient(p *parser, args []token) *TLSClient {
	c := &TLSClient{}
	switch len(args) {
	case 1:
		c.CA = args[0].text
	case 2:
		c.Cert, c.Key = args[0].text, args[1].text
	case 3:
		c.Cert, c.Key, c.CA = args[0].text, args[1].text, args[2].text
	}
	if p.anyOffNode(args) {
		return c
	}
	texts, ok := tlsFiles(p, args)
	if !ok {
		return c
	}
	if len(args) >= 2 {
		if _, err := tls.X509KeyPair(texts[0], texts[1]); err != nil {
			p.errorf(args[0], "%q and %q are not a certificate and its key in PEM: %v", args[0].text, args[1].text, err)
		}
	}
	if n := len(args); n%2 == 1 && !x509.NewCertPool().AppendCertsFromPEM(texts[n-1]) {
		p.errorf(args[n-1], "%q holds no certificate in PEM; name the file of the authority that signs the upstreams' certificates", args[n-1].text)
	}
	return c
}

// tlsFiles returns the content of the files that args name.
func tlsFiles(p *parser, args []token) (texts [][]byte, ok bool) {
	for _, w := range args {
		text, err := ReadFile(w.text)
		if err != nil {
			p.errorf(w, "can't read %q: %v; write: %s", w.text, err, tlsUsage)
			return nil, false
		}
		p.recordFile(w.text, text)
		texts = append(texts, text)
	}
	return texts, true
}

// rcodes reads names of rcodes, in any case.
func rcodes(p *parser, args []token) []wire.Rcode {
	const last = 23 // BADCOOKIE (IANA, DNS RCODEs); higher codes are for private use
	table := make(map[string]wire.Rcode)
	for c := range wire.Rcode(last + 1) {
		table[c.String()] = c
	}
	var list []wire.Rcode
	for _, w := range args {
		w.text = strings.ToUpper(w.text)
		if c, ok := choice(p, w, "rcode", table); ok && !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// failures reads rcodes other than NOERROR.
func failures(p *parser, args []token) []wire.Rcode {
	for _, w := range args {
		if strings.EqualFold(w.text, wire.NoError.String()) {
			p.errorf(w, "NOERROR is not a failure; use next_on_nodata for empty answers")
		}
	}
	return rcodes(p, args)
}

// checkNames checks the options against the upstreams when both are known.
func (f *Forward) checkNames(p *parser, at map[string]token) {
	f.checkQUIC(p, at)
	for _, to := range f.To {
		if to.ServerName != "" && f.ServerName != "" {
			p.errorf(at["tls_servername"], "the upstream %s already has the server name %s; remove one of the two", to, to.ServerName)
		}
		addr := to.Addr.Addr()
		if f.SourceAddress.IsValid() && addr.IsValid() && addr.Is4() != f.SourceAddress.Is4() {
			p.errorf(at["source_address"], "the upstream %s and %s have different address families; write a forward for each family", to, f.SourceAddress)
		}
	}
}

// checkQUIC refuses the options that choose between UDP and TCP if an upstream has neither.
func (f *Forward) checkQUIC(p *parser, at map[string]token) {
	i := slices.IndexFunc(f.To, func(to Target) bool { return to.Transport == DNSOverQUIC })
	if i < 0 {
		return
	}
	for _, o := range []struct {
		name string
		set  bool
	}{{"force_tcp", f.ForceTCP}, {"prefer_udp", f.PreferUDP}} {
		if o.set {
			p.errorf(at["forward"], "the upstream %s is asked over QUIC, which %s can't change; write tls:// for TLS over TCP, remove %[2]s, or give the upstream a forward of its own", f.To[i], o.name)
		}
	}
}
