package config

// Loadbalance is `loadbalance [round_robin]`: addresses are shuffled.
type Loadbalance struct{}

func (l *Loadbalance) parse(p *parser, s statement) {
	if args := s.args(); len(args) > 0 {
		switch args[0].text {
		case "round_robin":
			p.count(s, 0, 1, "loadbalance [round_robin]")
		case "weighted":
			f := p.errorf(args[0], `CoreDNS has the policy "weighted", this version of nodens doesn't: use round_robin`)
			f.Allowed = []string{"round_robin"}
			return // its options would be reported once more
		default:
			p.unknown(args[0], "policy", []string{"round_robin"})
		}
	}
	p.body(s, options{
		"prefer": replacedBy("addresses are put in random order; take the line out"),
	})
}
