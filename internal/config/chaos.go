package config

// Chaos is `chaos [VERSION] [AUTHORS…]`: TXT queries of the class CH for the server's version, host
// name and authors are answered.
type Chaos struct {
	Version string // "" is the agent's name and version
	Authors []string
}

const (
	// maxChaosText is the longest text of a TXT record in one string (RFC 1035, 3.3).
	maxChaosText = 255
	// maxChaosAuthors bounds the records of a reply.
	maxChaosAuthors = 100
)

func (c *Chaos) parse(p *parser, s statement) {
	p.body(s)
	args := s.args()
	for _, w := range args {
		if len(w.text) > maxChaosText {
			p.errorf(w, "a text has %d bytes; allowed: up to %d", len(w.text), maxChaosText)
		}
	}
	if len(args) > 1+maxChaosAuthors {
		p.errorf(s.name(), "there are %d authors; allowed: up to %d", len(args)-1, maxChaosAuthors)
	}
	if len(args) > 0 {
		c.Version, c.Authors = args[0].text, texts(args[1:])
	}
}
