package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/resolvconf"
)

// upstreams parses TO….
func (f *Forward) upstreams(p *parser, words []token) {
	for _, w := range words {
		parse := parseUpstream
		if f.GRPC {
			parse = parseGRPCUpstream
		}
		to, path, err := parse(w.text)
		switch {
		case err != nil:
			p.errorf(w, "%v", err)
		case path != "":
			f.file(p, w, path)
		default:
			if slices.Contains(f.To, to) {
				p.suspect(w, "the upstream %s is named twice", to)
			}
			f.add(to)
		}
	}
	if n := len(f.To); n > maxUpstreams {
		p.errorf(words[0], "there are %d upstreams; allowed: 1 to %d", n, maxUpstreams)
	}
}

// file adds the name servers of a resolv.conf file.
func (f *Forward) file(p *parser, w token, path string) {
	var servers []netip.AddrPort
	switch {
	case p.offNode(path):
		f.Files = append(f.Files, path)
		servers = []netip.AddrPort{UnknownNameserver}
	case p.isNodes(path):
		servers = p.hostServers(w)
	default:
		servers = f.readServers(p, w, path)
	}
	for _, server := range servers {
		f.add(Target{Transport: f.transport(), Addr: server})
	}
}

// readServers returns the name servers of a resolv.conf file, and adds the file. Without any it records an error.
func (f *Forward) readServers(p *parser, w token, path string) []netip.AddrPort {
	text, err := ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		p.errorf(w, "%q is neither an IP address nor a file that exists; write an IP address, or the path of a resolv.conf file", w.text)
		return nil
	}
	if err != nil {
		p.errorf(w, "can't read %q: %v", w.text, err)
		return nil
	}
	p.recordFile(path, text)
	servers, bad := nameservers(text)
	for _, line := range bad {
		p.warn(token{file: path, line: line}, "the nameserver line has no IP address, and is left out")
	}
	faults := len(p.errs)
	if servers = p.fileServers(w, servers); len(servers) == 0 && len(p.errs) == faults {
		p.errorf(w, "%s names no name server; add a `nameserver ADDRESS` line to it, or write the upstream's IP address here", path)
	}
	if !slices.Contains(f.Files, path) {
		f.Files = append(f.Files, path)
	}
	if n := len(servers); n > maxUpstreams {
		p.warn(w, "%s names %d name servers; the first %d are used", path, n, maxUpstreams)
		servers = servers[:maxUpstreams]
	}
	return servers
}

// Nameservers returns the name servers in the resolv.conf file at path, in order, with port 53.
// A reload compares them with [Forward.To]. A file without name servers is not an error.
func Nameservers(path string) ([]netip.AddrPort, error) {
	text, err := ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the name servers: %w", err)
	}
	servers, _ := nameservers(text)
	return servers, nil
}

// nameservers returns the addresses of the nameserver lines of text, and the numbers of those without an
// address.
func nameservers(text []byte) (list []netip.AddrPort, bad []int) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile+1)
	for number := 1; lines.Scan(); number++ {
		switch addr, ok := resolvconf.Nameserver(lines.Text()); {
		case addr.IsValid():
			list = append(list, netip.AddrPortFrom(addr, plainPort))
		case ok:
			bad = append(bad, number)
		}
	}
	return list, bad
}

// parseUpstream parses one TO: a target, or the path of a file.
func parseUpstream(text string) (to Target, path string, err error) {
	if service, ok := strings.CutPrefix(text, "k8s:"); ok {
		to, err = parseService(service)
		return to, "", err
	}
	transport, rest, err := cutScheme(text)
	if err != nil {
		return to, "", err
	}
	if rest == "" {
		return to, "", fmt.Errorf("%q is empty: is an environment variable unset?", text)
	}
	if transport != PlainDNS {
		to, err = parseSecure(transport, rest)
		return to, "", err
	}
	if strings.Contains(rest, "/") {
		return to, rest, nil
	}
	if to.Addr, err = address(rest, plainPort); err != nil || to.Addr.IsValid() {
		return to, "", err
	}
	if _, err := os.Stat(rest); err == nil {
		return to, rest, nil
	}
	to.Host, to.Port, err = parseHost(rest, plainPort)
	return to, "", err
}

// plainPort is the usual port of DNS over UDP and TCP (RFC 1035, 4.2).
const plainPort = 53

// parseSecure parses HOST[%SERVERNAME][:PORT][/PATH]; only HTTPS has a path.
func parseSecure(transport Transport, text string) (to Target, err error) {
	to.Transport = transport
	port := transport.defaultPort(plainPort)
	host := text
	if transport == DNSOverHTTPS {
		var slash bool
		if host, to.Path, slash = strings.Cut(text, "/"); slash && to.Path != "" {
			to.Path = "/" + to.Path
		}
	}
	host, to.ServerName = cutServerName(host)
	if to.ServerName != "" && !hostname(to.ServerName) {
		return to, fmt.Errorf("%q is not a host name that a certificate could be for", to.ServerName)
	}
	if to.Addr, err = address(host, port); err != nil || to.Addr.IsValid() {
		return to, err
	}
	to.Host, to.Port, err = parseHost(host, port)
	return to, err
}

// cutServerName removes the name after the last percent sign from "IP%NAME:PORT" or
// "[IP%NAME]:PORT".
func cutServerName(text string) (rest, name string) {
	at := strings.LastIndexByte(text, '%')
	if at < 0 {
		return text, ""
	}
	rest, name = text[:at], text[at+1:]
	if i := strings.IndexAny(name, "]:"); i >= 0 {
		rest, name = rest+name[i:], name[:i]
	}
	return rest, name
}

// parseService parses NAMESPACE/NAME[:PORT].
func parseService(text string) (to Target, err error) {
	service, port, ported := strings.Cut(text, ":")
	namespace, name, ok := strings.Cut(service, "/")
	if !ok || !label(namespace) || !label(name) {
		return to, fmt.Errorf("%q is not a Service; write k8s:NAMESPACE/NAME or k8s:NAMESPACE/NAME:PORT", "k8s:"+text)
	}
	to.Service = service
	if ported {
		to.Port, err = parsePort(port)
	}
	return to, err
}

// address parses IP or IP:PORT; port is the default. If text is not an address, the result is
// not valid and err is nil.
func address(text string, port uint16) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(unbracket(text)); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), port), nil
	}
	to, err := netip.ParseAddrPort(text)
	switch {
	case err != nil: // the name of a server, or a file
		return netip.AddrPort{}, nil //nolint:nilerr // not an address, but not an error here
	case to.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%q has port 0; allowed: 1 to 65535", text)
	}
	return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), nil
}

// parseHost parses NAME or NAME:PORT; port is the default.
func parseHost(text string, port uint16) (string, uint16, error) {
	host, digits, ported := strings.Cut(text, ":")
	if ported {
		var err error
		if port, err = parsePort(digits); err != nil {
			return "", 0, err
		}
	}
	if !hostname(host) {
		return "", 0, fmt.Errorf("%q is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT", text)
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), port, nil
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is not a port; allowed: 1 to 65535", text)
	}
	return uint16(port), nil
}

// hostname reports whether s can be a host name: labels of letters, digits, hyphens and
// underscores. The last label is not a number, which excludes mistyped addresses (RFC 1123,
// 2.1).
func hostname(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) > 253 {
		return false
	}
	last := ""
	for l := range strings.SplitSeq(s, ".") {
		if !label(strings.ReplaceAll(strings.ToLower(l), "_", "x")) {
			return false
		}
		last = l
	}
	return strings.Trim(last, "0123456789") != ""
}

// label reports whether s is a label of lower-case letters, digits and inner hyphens (RFC 1123,
// 2.1).
func label(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// cutScheme removes the scheme; the default is "dns".
func cutScheme(text string) (Transport, string, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return PlainDNS, text, nil
	}
	switch scheme {
	case "dns":
		return PlainDNS, rest, nil
	case "tls":
		return DNSOverTLS, rest, nil
	case "https":
		return DNSOverHTTPS, rest, nil
	case "grpc":
		return 0, "", fmt.Errorf("%q: forward does not speak gRPC; write it with the directive `grpc`", text)
	case "quic":
		return DNSOverQUIC, rest, nil
	}
	return 0, "", fmt.Errorf("%q has an unknown scheme %q; allowed: dns, https, quic, tls", text, scheme)
}

// unbracket removes the brackets from "[::1]".
func unbracket(s string) string {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok := strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return s
}
