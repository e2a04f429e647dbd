package config

import (
	"net/netip"
	"time"
)

// Loadbalance is `loadbalance [round_robin|weighted WEIGHTFILE] { reload DURATION; prefer CIDR… }`.
type Loadbalance struct {
	// Weights is the path of the file with the weights, "" for round_robin: addresses are shuffled.
	Weights string
	// Reload is the time between two checks of the file; 0 is never.
	Reload time.Duration
	// Prefer are the networks whose addresses come first, in this order.
	Prefer []netip.Prefix
}

// needsAgent: the order of weights and of preferred networks is made for each answer.
func (l *Loadbalance) needsAgent() bool { return l.Weights != "" || len(l.Prefer) > 0 }

// maxPreferred bounds the networks of `prefer`; each address of an answer is compared with all of them.
const maxPreferred = 64

func (l *Loadbalance) parse(p *parser, s statement) {
	switch policy := s.word(); {
	case len(s.args()) == 0:
	case policy.text == "round_robin":
		p.fits(s, &syntax{usage: "loadbalance [round_robin|weighted WEIGHTFILE]", most: 1})
	case policy.text != "weighted":
		p.unknown(policy, "policy", []string{"round_robin", "weighted"})
	case p.fits(s, &syntax{usage: "loadbalance weighted WEIGHTFILE", least: 2, most: 2}):
		l.Weights, l.Reload = p.filePath(s.name(), s.args()[1]), 30*time.Second
	}
	p.body(s,
		opt("reload DURATION", func(args []token) {
			l.Reload, _ = p.duration(args[0], 0, longest)
			if s.word().text != "weighted" {
				p.errorf(args[0], "only a file of weights is read again; write: loadbalance weighted WEIGHTFILE, or take the line out")
			}
		}),
		opt("prefer CIDR…", func(args []token) { l.prefer(p, args) }),
	)
}

// prefer parses the networks of a line.
func (l *Loadbalance) prefer(p *parser, args []token) {
	for _, w := range args {
		prefix, err := netip.ParsePrefix(w.text)
		if err != nil {
			p.errorf(w, "%q is no network such as 10.0.0.0/8 or 2001:db8::/32", w.text)
			continue
		}
		l.Prefer = append(l.Prefer, prefix.Masked())
	}
	if len(l.Prefer) > maxPreferred {
		p.errorf(args[0], "prefer has %d networks; allowed: up to %d", len(l.Prefer), maxPreferred)
	}
}
