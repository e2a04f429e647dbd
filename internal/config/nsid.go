package config

import (
	"os"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// NSID is `nsid [DATA]`: the server's identifier for clients that request it (RFC 5001).
type NSID struct {
	ID string // the host's name by default
}

func (n *NSID) parse(p *parser, s statement) {
	p.body(s)
	n.ID = strings.Join(texts(s.args()), " ")
	switch {
	case len(n.ID) > wire.MaxNSID:
		p.errorf(s.args()[0], "the identifier has %d bytes, which is too much to send along with each reply; allowed: %d", len(n.ID), wire.MaxNSID)
	case len(s.args()) > 0 && n.ID == "":
		p.errorf(s.args()[0], "the identifier is empty; is an environment variable unset?")
	case n.ID == "":
		n.ID = ownName()
	}
}

// ownName returns the host's name, "" if it is unknown or too long.
func ownName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name[:min(len(name), wire.MaxNSID)]
}
