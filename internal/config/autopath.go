package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Autopath is `autopath [ZONES…] RESOLV-CONF|@kubernetes`: finish a client's search
// path here.
type Autopath struct {
	// Zones are the zones in which it applies, by default the block's.
	Zones []wire.Name
	// Kubernetes is `@kubernetes`: the search path is the asking pod's, followed
	// by Search.
	Kubernetes bool
	// Search are the search domains of the file, or of the machine's own resolv.conf
	// with `@kubernetes`: in its order, each once and without the root. It is never
	// empty without Kubernetes.
	Search []wire.Name
}

const (
	// maxSearch is the longest search path that Kubernetes gives a pod.
	maxSearch = 32
	// podSearch are the domains of the cluster that a pod's search path starts
	// with: its namespace's, the one of all services, and the cluster's.
	podSearch     = 3
	autopathUsage = "autopath [ZONES…] RESOLV-CONF|@kubernetes"
)

func (a *Autopath) parse(p *parser, s statement) {
	p.body(s)
	if !p.count(s, autopathUsage) {
		return
	}
	last := len(s.args()) - 1
	a.Zones = p.zonesOr(s.args()[:last])
	switch from := s.args()[last]; {
	case from.text == "@kubernetes":
		a.Kubernetes = true
		a.host(p, from)
	case strings.HasPrefix(from.text, "@"):
		p.unknown(from, "source of the search path", []string{"@kubernetes"})
	default:
		a.file(p, from)
	}
}

// file reads the search path from the file that w names.
func (a *Autopath) file(p *parser, w token) {
	if p.offNode(w.text) {
		return
	}
	text, err := ReadFile(w.text)
	if errors.Is(err, os.ErrNotExist) {
		p.errorf(w, "%q is neither @kubernetes nor a file that exists; write: %s", w.text, autopathUsage)
		return
	}
	if err != nil {
		p.errorf(w, "can't read %q: %v", w.text, err)
		return
	}
	p.recordFile(w.text, text)
	a.Search = searches(text)
	if n := len(a.Search); n == 0 {
		p.errorf(w, "%s names no search domain; add a `search DOMAINS…` line to it", w.text)
	} else if n > maxSearch {
		p.errorf(w, "%s names %d search domains; allowed: 1 to %d", w.text, n, maxSearch)
	}
}

// host reads the machine's search domains, which the kubelet appends to the cluster's
// domains in a pod's search path as far as there is room. A machine without the file has
// none.
func (a *Autopath) host(p *parser, w token) {
	path := p.opts.ResolvConf
	if p.offNode(path) {
		return
	}
	text, err := ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		p.errorf(w, "can't read %q, whose search domains are at the end of a pod's search path: %v", path, err)
		return
	}
	p.recordFile(path, text)
	a.Search = searches(text)
	a.Search = a.Search[:min(len(a.Search), maxSearch-podSearch)]
}

// SearchDomains returns the search domains of the resolv.conf file at path, in order. A file without
// any is not an error.
func SearchDomains(path string) ([]wire.Name, error) {
	text, err := ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the search domains: %w", err)
	}
	list := searches(text)
	return list[:min(len(list), maxSearch)], nil
}

// searches are the domains of text's last line of the keyword search or domain
// (resolv.conf(5)), each once. It skips words that are not names, as the system's resolver
// does, and the root, because every search ends with the name itself.
func searches(text []byte) []wire.Name {
	var list []wire.Name
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "search":
			list = domains(fields[1:])
		case "domain":
			list = domains(fields[1:2])
		}
	}
	return list
}

func domains(texts []string) []wire.Name {
	var list []wire.Name
	for _, text := range texts {
		name, err := wire.ParseName(text)
		if err == nil && name != wire.Root && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}
