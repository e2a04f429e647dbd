package config

import (
	"os"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// NSID is `nsid [DATA]`: who asks for it is told which server answers.
type NSID struct {
	ID string // the host's name by default
}

func (n *NSID) parse(p *parser, s statement) {
	p.body(s, nil)
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

// ownName is the host's name, as far as it is known and fits.
func ownName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name[:min(len(name), wire.MaxNSID)]
}
