package config

import "github.com/nodens-dns/nodens/internal/wire"

// K8sExternal is `k8s_external [ZONES…] { … }`: the addresses under which Services
// are reached from outside, below zones of their own.
type K8sExternal struct {
	Zones []wire.Name // the block's zones where none are given
	// Apex is the label of the name servers' names, "dns" by default.
	Apex string
	TTL  uint32 // seconds, 5 by default
	// Headless gives the endpoints of headless Services names too.
	Headless    bool
	Fallthrough *Fallthrough
}

func (k *K8sExternal) parse(p *parser, s statement) {
	*k = K8sExternal{Zones: p.zonesOr(s.args()), Apex: "dns", TTL: 5}
}
