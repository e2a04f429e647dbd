package config

import (
	"net/netip"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Hosts is `hosts [FILE [ZONES…]] { INLINE…; ttl N; no_reverse; reload D; fallthrough [ZONES…] }`.
type Hosts struct {
	File  string // "/etc/hosts" by default
	Zones []wire.Name
	// Inline are the lines in hosts(5) form given in the block.
	Inline      []string
	TTL         uint32        // seconds, 3600 by default
	Reload      time.Duration // 5s by default, 0 is never
	NoReverse   bool
	Fallthrough *Fallthrough
}

func (h *Hosts) parse(p *parser, s statement) {
	*h = Hosts{File: "/etc/hosts", TTL: 3600, Reload: 5 * time.Second}
	args := s.args()
	if len(args) > 0 {
		h.File, args = p.filePath(s.name(), args[0]), args[1:]
	}
	h.Zones = p.zonesOr(args)
	rest := statement{words: s.words}
	for _, line := range s.body {
		if _, err := netip.ParseAddr(line.name().text); err != nil {
			rest.body = append(rest.body, line)
			continue
		}
		h.inline(p, line)
	}
	p.body(rest,
		opt("ttl SECONDS", toNumber(p, &h.TTL, 1, 65535)),
		opt("reload DURATION", p.toDuration(&h.Reload, 0, longest)),
		flag("no_reverse", &h.NoReverse),
		p.fallthroughs(&h.Fallthrough),
		replacedBy("fallthrough_unsupported", "types that a hosts file can't hold are NODATA; take the line out"),
	)
}

// inline reads an entry in hosts(5) form: ADDRESS NAMES….
func (h *Hosts) inline(p *parser, s statement) {
	if s.body != nil || !p.count(s, "ADDRESS NAMES…") {
		return
	}
	for _, w := range s.args() {
		if _, err := wire.ParseName(w.text); err != nil {
			p.warn(w, "%v; the other names of the line are answered", err)
		}
	}
	h.Inline = append(h.Inline, strings.Join(texts(s.words), " "))
}

// boundHostsTTL brings the TTL of the block's hosts within the bounds of its cache, through which CoreDNS passes the
// answers.
func boundHostsTTL(b *Block) {
	h, c := b.Hosts, b.Cache
	if h == nil || c == nil || !covered(c.Zones, h.Zones) {
		return
	}
	h.TTL = uint32(min(max(time.Duration(h.TTL)*time.Second, c.Success.MinTTL), c.Success.MaxTTL) / time.Second)
}
