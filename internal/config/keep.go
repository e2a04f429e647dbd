package config

import (
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Keep is `keep NAMES…`: the block's cache always has the addresses of these names.
type Keep struct {
	Names []wire.Name // in lower case, without duplicates
}

// maxKeep bounds the names of a block: each is asked for twice in its TTL, on each node.
const maxKeep = 64

func (k *Keep) parse(p *parser, s statement) {
	p.count(s, "keep NAMES…")
	for _, w := range s.args() {
		name, err := wire.ParseName(strings.ToLower(w.text))
		switch {
		case err != nil:
			p.errorf(w, "%v", err)
		case name == wire.Root || strings.HasPrefix(w.text, "*"):
			p.errorf(w, "%q is no name of a host; write each name in full, such as registry.example.com", w.text)
		case slices.Contains(k.Names, name):
			p.suspect(w, "the name %q is there twice", w.text)
		default:
			k.Names = append(k.Names, name)
		}
	}
	p.body(s)
}

func (k *Keep) join(p *parser, s statement, next directive) {
	for _, name := range next.(*Keep).Names {
		if !slices.Contains(k.Names, name) {
			k.Names = append(k.Names, name)
		}
	}
}

// setKeep gives the block's cache the names of its keep directive, and reports those that it can't keep. Answers that have expired
// are served as with serve_stale, also without it.
func (p *parser) setKeep() {
	b := p.block
	if b.Keep == nil || len(b.Keep.Names) == 0 { // which is an error already
		return
	}
	defer func() { p.name = "" }()
	p.name = "keep"
	at := p.firsts[p.name]
	if b.Cache == nil || b.Forward == nil {
		p.errorf(at, "the block has no cache and forward that could keep the names; add both, or move keep to the block that has them")
		return
	}
	p.checkKeep(at)
	b.Cache.Keep = slices.Sorted(slices.Values(b.Keep.Names))
	if st := &b.Cache.Stale; *st == (Stale{}) {
		*st = Stale{ClientTimeout: staleClientTimeout, TTL: staleTTL, Recheck: staleRecheck}
	}
}

// checkKeep reports names of the block's keep directive, at at, that are too many or not the block's.
func (p *parser) checkKeep(at token) {
	b := p.block
	n, least := len(b.Keep.Names), min(b.Cache.Success.Entries, b.Cache.Denial.Entries)
	switch {
	case n > maxKeep:
		p.errorf(at, "the block keeps %d names; allowed: %d", n, maxKeep)
	case least < 4*n: // a name has two entries
		p.errorf(at, "the block keeps %d names, and its cache has room for %d entries of a kind; make it %d or more", n, least, 4*n)
	}
	for _, name := range b.Keep.Names {
		under := func(zone wire.Name) bool { return name.Under(zone) }
		if at.text = name.String(); !slices.ContainsFunc(b.Zones, under) || !slices.ContainsFunc(b.Cache.Zones, under) {
			p.errorf(at, "%s is not in a zone of the block and of its cache; move it to the block that answers it", name)
		}
	}
}
