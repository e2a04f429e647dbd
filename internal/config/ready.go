package config

// Ready is `ready [ADDRESS] { monitor until-ready|continuously }`; ":8181" by
// default.
type Ready struct {
	Addr string
}

func (r *Ready) parse(p *parser, s statement) {
	r.Addr = p.listenArgument(s, "ready [ADDRESS:PORT]", ":8181")
	// Both are the same here: sockets and the first sync, which readiness
	// waits for, stay until shutdown, which ends readiness at once.
	p.body(s, opt("monitor until-ready|continuously", toChoice(p, new(bool), "monitor", map[string]bool{"until-ready": true, "continuously": true})))
}
