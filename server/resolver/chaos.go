package resolver

import (
	"math/rand/v2"
	"os"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Chaos answers TXT queries of the class CH about the server. It is immutable and safe for
// concurrent use. A nil Chaos answers nothing.
type Chaos struct {
	version, host string
	authors       []string
}

// NewChaos makes the Chaos of cfg. version is what it tells unless cfg has another text.
func NewChaos(cfg *config.Chaos, version string) *Chaos {
	c := &Chaos{version: version, authors: cfg.Authors}
	if cfg.Version != "" {
		c.version = cfg.Version
	}
	var err error
	if c.host, err = os.Hostname(); err != nil {
		c.host = "localhost"
	}
	return c
}

// The names that are answered, in wire form.
const (
	chaosVersionBind   = "\x07version\x04bind\x00"
	chaosVersionServer = "\x07version\x06server\x00"
	chaosHostname      = "\x08hostname\x04bind\x00"
	chaosServerID      = "\x02id\x06server\x00" // RFC 4892
	chaosAuthors       = "\x07authors\x04bind\x00"
)

// answer answers r if its question is about the server; else it returns false and leaves the reply.
func (c *Chaos) answer(r *Request) bool {
	if c == nil || r.Query.Class != wire.ClassCH || r.Query.Type != wire.TypeTXT {
		return false
	}
	switch string(r.Query.Name()) {
	case chaosVersionBind, chaosVersionServer:
		r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.version)
	case chaosHostname, chaosServerID:
		r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.host)
	case chaosAuthors:
		for _, i := range rand.Perm(len(c.authors)) {
			r.reply.AddText(wire.Answer, wire.ClassCH, 0, c.authors[i])
		}
	default:
		return false
	}
	r.source = fromChaos
	r.note(stepOf[fromChaos], Answered, "a question about the server")
	return true
}
