package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// suspect records that w is valid, but probably not what its author means. See
// [Config.Suspicious].
func (p *parser) suspect(w token, format string, args ...any) {
	if len(p.suspicious) >= maxErrors {
		return
	}
	f := p.parseError(w, format, args...)
	text := f.Error()
	if !slices.ContainsFunc(p.suspicious, func(o *ParseError) bool { return o.Error() == text }) {
		p.suspicious = append(p.suspicious, f)
	}
}

// suspectZones looks at zones as they are written: words that are probably no zones, zones that
// are named twice, and, if they are a directive's own, zones that the block does not serve.
func (p *parser) suspectZones(words []token) {
	seen := make(map[wire.Name]bool)
	for _, w := range words {
		key, err := parseKey(w.text)
		if err != nil {
			continue // already an error
		}
		p.suspectZone(w)
		for _, zone := range key.zones {
			if seen[zone] {
				p.suspect(w, "the zone %q is named twice", w.text)
				break
			}
			seen[zone] = true
		}
		if p.option == "" && p.name != "" {
			p.zoneWords = append(p.zoneWords, zoneWord{directive: p.name, at: w, zones: key.zones})
		}
	}
}

// zoneWord is a zone in the arguments of a directive.
type zoneWord struct {
	directive string
	at        token
	zones     []wire.Name
}

// suspectZone reports a word that is a valid zone and probably not meant as one.
func (p *parser) suspectZone(w token) {
	text := zoneText(w.text)
	d, err := time.ParseDuration(text)
	switch {
	case text == "":
	case err == nil && !isNumber(text):
		p.suspectDuration(w, d)
	case isNumber(text) && p.name == "":
		p.suspect(w, "%q is read as a zone; write a port after a colon: `.:%s`", w.text, w.text)
	case isNumber(text[strings.LastIndexByte(text, '.')+1:]):
		p.suspect(w, "%q is read as a zone, and no domain ends in a number", w.text)
	case strings.HasPrefix(text, "*"):
		p.suspect(w, "%q: there are no wildcards in zones; a zone includes all names below it, so write it without the asterisk", w.text)
	case p.name == "log" && slices.Contains(append([]string{"all", "stdout"}, classes...), text):
		p.suspect(w, "%q is read as a zone; classes are written in braces: log { class denial error }", w.text)
	}
}

// zoneText returns a zone without its scheme, its port and the final dot, in lower case.
func zoneText(text string) string {
	if _, after, ok := strings.Cut(text, "://"); ok {
		text = after
	}
	text, _, _ = cutPort(text)
	return strings.ToLower(strings.TrimSuffix(text, "."))
}

// suspectDuration reports a duration where zones stand.
func (p *parser) suspectDuration(w token, d time.Duration) {
	if p.name == "cache" {
		p.suspect(w, "%q is read as a zone; the TTL is a number of seconds before the zones, such as `cache %d`", w.text, int(d.Seconds()))
		return
	}
	p.suspect(w, "%q is read as a zone, not as a duration", w.text)
}

// isNumber reports whether text has nothing but digits.
func isNumber(text string) bool { return strings.Trim(text, "0123456789") == "" }

// suspectArguments reports arguments of a directive that are names of its options.
func (p *parser) suspectArguments(s statement, table options) {
	for _, w := range s.args() {
		if o := table.find(w.text); o != nil && o.advice == "" {
			p.suspect(w, "%q is read as an argument of %s; options are written in braces on lines of their own", w.text, p.name)
		}
	}
}

// suspectBlock looks at the block as a whole.
func (p *parser) suspectBlock() {
	b := p.block
	defer func() { p.name = "" }()
	words := p.zoneWords
	p.zoneWords = nil
	if b.Hosts != nil && b.Hosts.Fallthrough == nil && b.Forward != nil && covered(b.Hosts.Zones, b.Zones) {
		p.name = "hosts"
		p.suspect(p.firsts["hosts"], "without `fallthrough` it answers SERVFAIL for all names that it does not have, and only reverse look-ups are forwarded; add `fallthrough`")
	}
	if b.Rewrite != nil || b.Autopath != nil {
		return // queries have other names, too
	}
	for _, w := range words {
		if usesZone(b, w) {
			continue
		}
		p.name = w.directive
		p.suspect(w.at, "the zone %q has no effect: the block serves %s", w.at.text, strings.Join(allTexts(b.Zones), ", "))
	}
}

// usesZone reports whether queries of the block may be for w, or the view that w names has an effect: k8s_external answers
// from it, whatever its zones are, and PTR records point into its first zone.
func usesZone(b *Block, w zoneWord) bool {
	if w.directive == "kubernetes" && (b.K8sExternal != nil || slices.ContainsFunc(b.Zones, reverse)) {
		return true
	}
	return slices.ContainsFunc(w.zones, func(z wire.Name) bool { return reverse(z) || overlap(z, b.Zones) })
}

// covered reports whether each zone is one of others, or below one.
func covered(others, zones []wire.Name) bool {
	return !slices.ContainsFunc(zones, func(z wire.Name) bool { return !slices.ContainsFunc(others, z.Under) })
}

// overlap reports whether zone has names in common with one of others.
func overlap(zone wire.Name, others []wire.Name) bool {
	return slices.ContainsFunc(others, func(o wire.Name) bool { return zone.Under(o) || o.Under(zone) })
}

// suspectBind reports addresses that the agent does not add to the node, and that no interface
// of this machine has.
func (p *parser) suspectBind(words []token) {
	if len(p.opts.LocalIPs) == 0 {
		return
	}
	own := slices.Concat(p.opts.LocalIPs, p.opts.HostListen)
	seen := make(map[netip.Addr]bool)
	for _, w := range words {
		addr, err := netip.ParseAddr(w.text)
		if err != nil {
			continue // an interface
		}
		addr = addr.Unmap()
		if seen[addr] {
			p.suspect(w, "the address %s is named twice", w.text)
		}
		seen[addr] = true
		if slices.Contains(own, addr) || addr.IsLoopback() || addr.IsUnspecified() || !p.opts.OffNode && onThisMachine(addr) {
			continue
		}
		p.suspect(w, "%s is not an address of --localip (%s), so the agent does not add it to the node; add it to --localip, or take it out", w.text, strings.Join(allTexts(p.opts.LocalIPs), ","))
	}
}

// onThisMachine reports whether an interface of this machine has the address.
func onThisMachine(addr netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}
