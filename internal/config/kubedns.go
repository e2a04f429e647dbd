package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The keys of the kube-dns ConfigMap that apply to a node's agent
// (kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/).
const (
	stubDomainsKey = "stubDomains"
	upstreamsKey   = "upstreamNameservers"
)

// stubTTL is the cache time of a stub domain, as in NodeLocal DNSCache.
const stubTTL = 30 * time.Second

// kubeDNS is the content of the kube-dns ConfigMap.
type kubeDNS struct {
	without   []string // keys that are not read
	files     []file
	stubs     []stub
	upstreams []string
}

// stub is one stub domain.
type stub struct {
	domain  token
	servers []token
}

// readKubeDNS reads the folder at which the ConfigMap is mounted. A missing folder, or one
// without the two keys, is an empty kubeDNS.
func readKubeDNS(folder string, without []string) (kubeDNS, error) {
	k := kubeDNS{without: without}
	if folder == "" {
		return k, nil
	}
	var domains map[string][]string
	text, path, err := k.read(folder, stubDomainsKey, &domains, `{"DOMAIN": ["IP", …], …}`)
	if err != nil {
		return kubeDNS{}, err
	}
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		s := stub{domain: token{text: domain, file: path, line: keyLine(text, domain)}}
		for _, server := range domains[domain] {
			s.servers = append(s.servers, token{text: server, file: path, line: s.domain.line})
		}
		k.stubs = append(k.stubs, s)
	}
	if _, path, err = k.read(folder, upstreamsKey, &k.upstreams, `["IP", …]`); err != nil {
		return kubeDNS{}, err
	}
	for _, server := range k.upstreams {
		// As in forward, but without text that is more than one word of a Corefile.
		_, _, err := parseUpstream(server)
		if strings.ContainsAny(server, " \t\r\n\"{}#") {
			err = fmt.Errorf("%q is not an IP address", server)
		}
		if err != nil {
			return kubeDNS{}, &ParseError{File: path, Word: server, Text: err.Error()}
		}
	}
	return k, nil
}

// read decodes the file of one key into dst; a missing file leaves dst unchanged. path is the
// file's name, text its content.
func (k *kubeDNS) read(folder, key string, dst any, shape string) (text []byte, path string, err error) {
	path = filepath.Join(folder, key)
	if slices.Contains(k.without, key) {
		return nil, path, nil
	}
	text, err = ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, path, nil
	}
	if err != nil {
		return nil, path, &ParseError{File: path, Text: fmt.Sprintf("can't read the kube-dns ConfigMap's %s: %v; see --kubednscm", key, err)}
	}
	k.files = append(k.files, file{path: path, text: text})
	if len(bytes.TrimSpace(text)) == 0 {
		return text, path, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	err = decoder.Decode(dst)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows the value")
		}
	}
	if err != nil {
		return nil, path, &ParseError{File: path, Line: errorLine(text, err), Text: fmt.Sprintf("%s of the kube-dns ConfigMap is not JSON of the form %s: %v", key, shape, err)}
	}
	return text, path, nil
}

// errorLine returns the line of text at which decoding failed, 0 if it is unknown.
func errorLine(text []byte, err error) int {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	offset := int64(-1)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		offset = int64(len(bytes.TrimSpace(text)))
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	if offset < 0 || offset > int64(len(text)) {
		return 0
	}
	return 1 + bytes.Count(text[:offset], []byte{'\n'})
}

// keyLine returns the line of text with the JSON key, 0 if the key is written with escapes.
func keyLine(text []byte, key string) int {
	i := bytes.Index(text, []byte(`"`+key+`"`))
	if i < 0 {
		return 0
	}
	return 1 + bytes.Count(text[:i], []byte{'\n'})
}

// stubBlocks returns the block for each stub domain, as NodeLocal DNSCache writes it: bound to
// the local IPs, with errors, a cache of 30 s, and the domain's servers.
func (p *parser) stubBlocks(list []stub) []*Block {
	var blocks []*Block
	for _, s := range list {
		b := &Block{Port: p.opts.Port, File: s.domain.file, Line: s.domain.line, Errors: &Errors{}}
		key, err := parseKey(s.domain.text)
		if err != nil || key.ported {
			p.errorf(s.domain, "the stub domain %q is not a domain name", s.domain.text)
		} else {
			p.suspectZone(s.domain)
		}
		b.Zones = key.zones
		if len(p.opts.LocalIPs) > 0 {
			b.Bind = &Bind{Addrs: append([]netip.Addr(nil), p.opts.LocalIPs...)}
		}
		cache := defaultCache()
		cache.Zones = b.Zones
		cache.Success.MaxTTL, cache.Denial.MaxTTL = stubTTL, stubTTL
		b.Cache = &cache
		forward := defaultForward()
		b.Forward = &forward
		if len(s.servers) == 0 {
			p.errorf(s.domain, "the stub domain %q has no server; list at least one IP address", s.domain.text)
		} else {
			forward.upstreams(p, s.servers)
		}
		p.block, p.firsts = b, map[string]token{"forward": s.domain}
		p.setListen()
		blocks = append(blocks, b)
	}
	return blocks
}
