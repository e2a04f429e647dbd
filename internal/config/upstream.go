package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// upstreams reads TO….
func (f *Forward) upstreams(p *parser, words []word) {
	for _, w := range words {
		to, path, err := parseUpstream(w.text)
		switch {
		case err != nil:
			p.fault(w, "%v", err)
		case path != "":
			f.file(p, w, path)
		default:
			f.add(Target{Addr: to})
		}
	}
	if n := len(f.To); n > maxUpstreams {
		p.fault(words[0], "there are %d upstreams; allowed: 1 to %d", n, maxUpstreams)
	}
}

// file adds the name servers of a resolv.conf file.
func (f *Forward) file(p *parser, w word, path string) {
	text, err := readFile(path)
	if errors.Is(err, os.ErrNotExist) {
		p.fault(w, "%q is neither an IP address nor a file that exists; write an IP address, or the path of a resolv.conf file", w.text)
		return
	}
	if err != nil {
		p.fault(w, "can't read %q: %v", w.text, err)
		return
	}
	p.uses(path)
	servers := nameservers(text)
	if len(servers) == 0 {
		p.fault(w, "%s names no name server; add a `nameserver ADDRESS` line to it, or write the upstream's IP address here", path)
	}
	if !slices.Contains(f.Files, path) {
		f.Files = append(f.Files, path)
	}
	for _, server := range servers {
		f.add(Target{Addr: server})
	}
}

// Nameservers reads the name servers of the resolv.conf file at path, in its order
// and with port 53: what a reload compares with [Forward.To]. A file without any is
// an empty list and no error.
func Nameservers(path string) ([]netip.AddrPort, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the name servers: %w", err)
	}
	return nameservers(text), nil
}

// nameservers are the addresses of text's nameserver lines. Lines that hold none
// are passed over, as the system's resolver does (resolv.conf(5)).
func nameservers(text []byte) []netip.AddrPort {
	var list []netip.AddrPort
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, netip.AddrPortFrom(addr.Unmap(), 53))
		}
	}
	return list
}

// parseUpstream reads one TO: an address, or the path of a file.
func parseUpstream(text string) (to netip.AddrPort, path string, err error) {
	rest, err := cutScheme(text)
	if err != nil {
		return to, "", err
	}
	if rest == "" {
		return to, "", fmt.Errorf("%q is empty: is an environment variable unset?", text)
	}
	if strings.Contains(rest, "/") {
		return to, rest, nil
	}
	if addr, err := netip.ParseAddr(unbracket(rest)); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 53), "", nil
	}
	if to, err := netip.ParseAddrPort(rest); err == nil {
		if to.Port() == 0 {
			return to, "", fmt.Errorf("%q has port 0; allowed: 1 to 65535", text)
		}
		return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), "", nil
	}
	if _, err := os.Stat(rest); err == nil {
		return to, rest, nil
	}
	return to, "", fmt.Errorf("%q is neither an IP address nor a file that exists; names of servers are not looked up, write IP or IP:PORT", text)
}

// cutScheme takes "dns://" off and refuses other transports.
func cutScheme(text string) (string, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text, nil
	}
	switch scheme {
	case "dns":
		return rest, nil
	case "tls", "https", "quic", "grpc":
		return "", fmt.Errorf("%q: CoreDNS has %s://, this version of nodens asks upstreams over plain UDP and TCP only; write IP or IP:PORT", text, scheme)
	}
	return "", fmt.Errorf("%q has an unknown scheme %q; allowed: dns", text, scheme)
}

// unbracket takes the brackets off "[::1]".
func unbracket(s string) string {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok := strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return s
}
