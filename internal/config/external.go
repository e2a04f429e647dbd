package config

import (
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// K8sExternal is `k8s_external [ZONES…] { apex LABEL; ttl SECONDS; headless;
// fallthrough [ZONES…] }`: the addresses under which Services are reached from
// outside, below zones of their own.
type K8sExternal struct {
	Zones []wire.Name // the block's zones by default
	// Apex is the label of the name servers' names, in lower case; "dns" by default.
	Apex string
	TTL  uint32 // seconds, 5 by default
	// Headless gives the endpoints of headless Services names too.
	Headless    bool
	Fallthrough *Fallthrough
}

func (*K8sExternal) needsAgent() bool { return true }

func (k *K8sExternal) parse(p *parser, s statement) {
	*k = K8sExternal{Zones: p.zonesOr(s.args()), Apex: "dns", TTL: 5}
	p.body(s,
		opt("apex LABEL", func(args []token) {
			// Letters, digits, hyphens and underscores: a name made with it needs no escapes.
			k.Apex = strings.ToLower(args[0].text)
			if k.Apex == "" || len(k.Apex) > wire.MaxLabel || strings.Trim(k.Apex, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
				p.errorf(args[0], "%q is not one label of a domain name, such as dns", args[0].text)
			}
		}),
		opt("ttl SECONDS", toNumber(p, &k.TTL, 0, 3600)),
		flag("headless", &k.Headless),
		p.fallthroughs(&k.Fallthrough),
	)
}
