package config

import (
	"net/netip"

	"github.com/nodens-dns/nodens/internal/wire"
)

// DNS64 is `dns64 [PREFIX] { prefix PREFIX; translate_all; allow_ipv4 }`: it synthesizes IPv6
// addresses from IPv4 addresses for names without any (RFC 6147).
type DNS64 struct {
	Prefix netip.Prefix // 64:ff9b::/96 by default; the length is one that RFC 6052 allows
	// TranslateAll includes names that have IPv6 addresses.
	TranslateAll bool
	// AllowIPv4 includes clients that query over IPv4.
	AllowIPv4 bool
}

func (*DNS64) needsAgent() bool { return true }

// wellKnown is the well-known prefix (RFC 6052, 2.1).
var wellKnown = netip.PrefixFrom(netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b}), 96)

func (d *DNS64) parse(p *parser, s statement) {
	d.Prefix = wellKnown
	if p.count(s, "dns64 [PREFIX]") && len(s.args()) > 0 {
		d.prefix(p, s.args()[0])
	}
	p.body(s,
		opt("prefix PREFIX", func(args []token) { d.prefix(p, args[0]) }),
		flag("translate_all", &d.TranslateAll),
		flag("allow_ipv4", &d.AllowIPv4),
	)
}

func (d *DNS64) prefix(p *parser, w token) {
	prefix, err := netip.ParsePrefix(w.text)
	if err != nil || !prefix.Addr().Is6() || prefix.Addr().Is4In6() {
		p.errorf(w, "%q is not an IPv6 prefix such as 64:ff9b::/96", w.text)
		return
	}
	if _, ok := wire.NewPrefix64(prefix); !ok {
		p.errorf(w, "%q has a length that IPv4 addresses can't be put behind; allowed: 32, 40, 48, 56, 64, 96", w.text)
		return
	}
	d.Prefix = prefix.Masked()
}
