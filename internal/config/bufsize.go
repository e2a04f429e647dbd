package config

import "github.com/nodens-dns/nodens/internal/wire"

// Bufsize is `bufsize [SIZE]`: the upper limit of a client's EDNS payload size, 512 to 65535
// bytes. The default is [wire.SafeUDP].
type Bufsize struct {
	Size uint16
}

func (b *Bufsize) parse(p *parser, s statement) {
	b.Size = wire.SafeUDP
	p.body(s)
	if !p.count(s, "bufsize [SIZE]") || len(s.args()) == 0 {
		return
	}
	if n, ok := p.number(s.args()[0], 512, 65535); ok {
		b.Size = uint16(n)
	}
}
