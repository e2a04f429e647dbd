package config

import (
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Transfer is `transfer [ZONES…] { to ADDRESSES…|*; source ADDRESS }`: who may transfer the block's zones,
// and who is told of their changes.
type Transfer struct {
	// Zones are the zones, and those below them, that the directive is about; the block's by default.
	Zones []wire.Name
	// Any says that every client may transfer the zones.
	Any bool
	// To are the servers that may transfer the zones, from any port. They get a NOTIFY at this port
	// when a zone changes.
	To []netip.AddrPort
	// Source is the local address of the NOTIFYs; not valid: the kernel chooses it.
	Source netip.Addr
	// Next is the next directive of the same block, nil for the last.
	Next *Transfer
}

const (
	// maxTransferPeers bounds the servers of one directive, and maxTransfers the directives of a block:
	// each change of a zone is sent to each of them.
	maxTransferPeers = 64
	maxTransfers     = 100
)

func (t *Transfer) parse(p *parser, s statement) {
	t.Zones = p.zonesOr(s.args())
	before := len(p.errs)
	p.body(s,
		opt("to ADDRESSES…|*", func(args []token) { t.addPeers(p, args) }),
		opt("source ADDRESS", func(args []token) {
			addr, err := netip.ParseAddr(args[0].text)
			switch {
			case t.Source.IsValid():
				p.errorf(args[0], "the source is set already, to %s; keep one", t.Source)
			case err != nil:
				p.errorf(args[0], "%q is not an IP address such as 192.0.2.53", args[0].text)
			default:
				t.Source = addr.Unmap()
			}
		}),
	)
	if !t.Any && len(t.To) == 0 && len(p.errs) == before {
		p.errorf(s.name(), "no client may transfer the zones; name the servers that may, such as `to 192.0.2.1`, or all clients with `to *`")
	}
}

// addPeers reads the servers that may transfer.
func (t *Transfer) addPeers(p *parser, args []token) {
	for _, w := range args {
		if w.text == wildcard {
			t.Any = true
			continue
		}
		addr, err := address(w.text, plainPort)
		switch {
		case err != nil || !addr.IsValid():
			p.errorf(w, "%q is not an address such as 192.0.2.1, 192.0.2.1:5300 or [2001:db8::1]:5300, nor * for all clients", w.text)
		case slices.Contains(t.To, addr): // twice is once
		case len(t.To) >= maxTransferPeers:
			p.errorf(w, "more than %d servers; let them transfer from each other", maxTransferPeers)
			return
		default:
			t.To = append(t.To, addr)
		}
	}
}

func (t *Transfer) next() **Transfer { return &t.Next }

// join appends a further directive to the chain.
func (t *Transfer) join(p *parser, s statement, more directive) {
	extend(p, s, t, more.(*Transfer), maxTransfers, "transfer directives; name several zones in one")
}
