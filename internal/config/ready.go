package config

// Ready is `ready [ADDRESS] { monitor until-ready|continuously }`; ":8181" by
// default.
type Ready struct {
	Addr string
}

func (r *Ready) parse(p *parser, s statement) {
	r.Addr = ":8181"
	if p.count(s, 0, 1, "ready [ADDRESS:PORT]") && len(s.args()) == 1 {
		r.Addr, _ = p.listen(s.args()[0])
	}
	p.body(s, options{
		// Both are the same here: sockets and the first sync, which readiness
		// waits for, stay until shutdown, which ends readiness at once.
		"monitor": {usage: "monitor until-ready|continuously", least: 1, most: 1, set: func(args []token) {
			choice(p, args[0], "monitor", map[string]bool{"until-ready": true, "continuously": true})
		}},
	})
}
