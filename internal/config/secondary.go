package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Secondary is `secondary [ZONES…] { transfer from ADDRESS…; fallthrough [ZONES…] }`.
type Secondary struct {
	// Zones are those that are transferred; the block's zones by default.
	Zones []wire.Name
	// From are the primary servers, in the order in which they are asked.
	From        []netip.AddrPort
	Fallthrough *Fallthrough
	// Next is the next directive of the same block, nil for the last.
	Next *Secondary
}

// needsAgent: see [ZoneFile.needsAgent].
func (s *Secondary) needsAgent() bool {
	return s != nil && (s.Fallthrough != nil || s.Next.needsAgent())
}

const (
	transferFromUsage = "transfer from ADDRESS…"
	// maxPrimaries bounds the primary servers of a zone.
	maxPrimaries = 16
)

func (s *Secondary) parse(p *parser, st statement) {
	s.Zones = p.zonesOr(st.args())
	before := len(p.errs)
	p.body(st,
		opt(transferFromUsage, func(args []token) { s.transferFrom(p, args) }),
		p.fallthroughs(&s.Fallthrough),
		replacedBy("catalog", "write the member zones as zones of secondary, or forward them to a CoreDNS that has the catalog"),
	)
	if len(s.From) == 0 && len(p.errs) == before {
		p.errorf(st.name(), "no primary server; write in its block: %s", transferFromUsage)
	}
}

// transferFrom reads the arguments of `transfer from ADDRESS…`.
func (s *Secondary) transferFrom(p *parser, args []token) {
	if args[0].text != "from" {
		p.errorf(args[0], "%q is not from; write: %s", args[0].text, transferFromUsage)
		return
	}
	for _, w := range args[1:] {
		addr, ok := primaryAddr(w.text)
		switch {
		case !ok:
			p.errorf(w, "%q is not an IP address, with or without a port, such as 192.0.2.1 or [2001:db8::1]:5353", w.text)
		case slices.Contains(s.From, addr):
			p.suspect(w, "the primary server %s is named twice", addr)
		case len(s.From) == maxPrimaries:
			p.errorf(w, "a zone has more than %d primary servers; leave some out", maxPrimaries)
			return
		default:
			s.From = append(s.From, addr)
		}
	}
}

// primaryAddr reads an address whose port is 53 by default.
func primaryAddr(text string) (netip.AddrPort, bool) {
	if addr, err := netip.ParseAddrPort(text); err == nil {
		return addr, addr.Port() != 0
	}
	if host, port, err := net.SplitHostPort(text); err == nil && port == "" {
		text = host
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return netip.AddrPortFrom(addr, 53), err == nil
}

func (s *Secondary) next() **Secondary { return &s.Next }

// join appends a further directive to the chain.
func (s *Secondary) join(p *parser, st statement, next directive) {
	more := next.(*Secondary)
	for first := range chain(s) {
		if zone, ok := common(first.Zones, more.Zones); ok {
			p.errorf(st.name(), "the zone %s has a `secondary` already; name all its primary servers there", zone)
			return
		}
	}
	extend(p, st, s, more, maxFiles, "`secondary`; name several zones in one, or write a server block for some of them")
}

// All returns the directives of a block in order; none if s is nil.
func (s *Secondary) All() []*Secondary { return slices.Collect(chain(s)) }
