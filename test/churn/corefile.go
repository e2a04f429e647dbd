package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
)

// markerName has an address that says which Corefile is in force.
const markerName = "marker.hosts.test."

// settings are what differs between the Corefiles of a run.
type settings struct {
	generation       int // of the marker
	success, denial  int // entries
	zones, hostNames int
	policy           string
	forceTCP         bool
	wide             bool // the view is the whole cluster's
	firstUpstream    int
}

// baseline are the settings with which samples are taken.
func baseline(generation int) settings {
	return settings{generation: generation, success: 1000, denial: 500, zones: 2, hostNames: 10, policy: "fastest"}
}

// randomSettings are others.
func randomSettings(generation int, random *rand.Rand) settings {
	return settings{
		generation: generation, success: 100 + random.IntN(3000), denial: 100 + random.IntN(1000), zones: random.IntN(8), hostNames: random.IntN(200),
		policy:   []string{"fastest", "random", "round_robin", "sequential"}[random.IntN(4)],
		forceTCP: random.IntN(3) == 0, wide: random.IntN(2) == 0, firstUpstream: random.IntN(2),
	}
}

// marker returns the address of markerName.
func (s settings) marker() netip.Addr {
	return netip.AddrFrom4([4]byte{203, byte(s.generation >> 16), byte(s.generation >> 8), byte(s.generation)})
}

// corefile returns the Corefile of an agent.
func (r *run) corefile(a *agent, s settings) string {
	var hosts, zones strings.Builder
	for i := range s.hostNames {
		fmt.Fprintf(&hosts, "        203.0.113.%d h%d.hosts.test\n", 1+i, i)
	}
	forward := fmt.Sprintf("forward . %s %s {\n        policy %s\n        expire 1s\n", r.upstreams[s.firstUpstream].Addr(), r.upstreams[1-s.firstUpstream].Addr(), s.policy)
	if s.forceTCP {
		forward += "        force_tcp\n"
	}
	forward += "    }"
	for i := range s.zones {
		fmt.Fprintf(&zones, "zone-%d.test:%d {\n    bind @BIND@\n    cache %d\n    %s\n}\n", i, a.ports.dns, 10+i, forward)
	}
	binds := strings.Trim(fmt.Sprint(a.addrs()), "[]")
	scope := "node"
	if s.wide {
		scope = "cluster"
	}
	return strings.NewReplacer(
		"@DNS@", fmt.Sprint(a.ports.dns), "@TLS@", fmt.Sprint(a.ports.tls), "@HTTPS@", fmt.Sprint(a.ports.https), "@WEB@", a.web().String(),
		"@CERT@", filepath.Join(r.dir, "server.crt"), "@KEY@", filepath.Join(r.dir, "server.key"), "@CA@", filepath.Join(r.dir, "ca.pem"),
		"@CACHE@", fmt.Sprintf("cache 3600 {\n        success %d\n        denial %d\n    }", s.success, s.denial), "@FORWARD@", forward,
		"@SECURE@", r.secure.Addr().String(), "@KUBECONFIG@", r.api.Kubeconfig, "@SCOPE@", scope,
		"@MARKER@", s.marker().String(), "@HOSTS@", hosts.String(), "@ZONES@", strings.ReplaceAll(zones.String(), "@BIND@", binds), "@BIND@", binds,
	).Replace(corefileTemplate)
}

// corefileTemplate is the part that all Corefiles have.
const corefileTemplate = `.:@DNS@ {
    bind @BIND@
    errors
    prometheus @WEB@
    pprof @WEB@
    ready @WEB@
    @CACHE@
    @FORWARD@
}
cluster.local:@DNS@ {
    bind @BIND@
    errors
    kubernetes cluster.local {
        kubeconfig @KUBECONFIG@
        pods verified
        scope @SCOPE@
        ttl 5
    }
}
hosts.test:@DNS@ {
    bind @BIND@
    hosts {
        @MARKER@ marker.hosts.test
        203.0.113.250 calm.hosts.test
@HOSTS@    }
}
tls.test:@DNS@ {
    bind @BIND@
    cache 30
    forward . tls://@SECURE@ {
        tls @CA@
        tls_servername upstream.test
        expire 1s
    }
}
tls://.:@TLS@ {
    bind @BIND@
    tls @CERT@ @KEY@
    cache
    @FORWARD@
}
https://.:@HTTPS@ {
    bind @BIND@
    tls @CERT@ @KEY@
    cache
    @FORWARD@
}
@ZONES@`
