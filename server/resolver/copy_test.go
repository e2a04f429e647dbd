package resolver_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/server/balance"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/template"
)

// TestAgentOnly: directives for which the client matters, or that each query is seen, or whose answers can change
// without a trace, need the agent.
func TestAgentOnly(t *testing.T) {
	for name, z := range map[string]*resolver.Zone{
		"client_limit": {Limit: new(resolver.ClientLimit)}, "dns64": {DNS64: new(resolver.DNS64)}, "rewrite": {Rewrite: rulesOf(t, "rewrite edns0 local set 0xffee 0x61")},
		"template": {Template: new(template.Templates)}, "k8s_external": {External: new(noExternal)}, "log": {Log: &resolver.QueryLog{Rules: []resolver.LogRule{{}, {EveryQuery: true}}}}, "dnstap": {Taps: make([]resolver.Tap, 1)},
		"file": {File: zoneFile(t, true)}, "loadbalance": {Balance: new(balance.Balancer)},
	} {
		if got := z.AgentOnly(); !cmp.Equal(got, []string{name}) {
			t.Errorf("with %s, %q need the agent", name, got)
		}
	}
	if z := (&resolver.Zone{Cache: new(cache.Cache), Errors: new(resolver.ErrorLog), Log: &resolver.QueryLog{Rules: make([]resolver.LogRule, 1)}, Minimal: true, Rewrite: rulesOf(t, "rewrite name a.test b.test"), Autopath: new(resolver.Autopath), Hosts: new(hosts.Table), File: zoneFile(t, false), NSID: "x", Bufsize: 1232}); len(z.AgentOnly()) > 0 {
		t.Errorf("in a plain zone, %q need the agent", z.AgentOnly())
	}
}

// noExternal is an External that is never asked.
type noExternal struct{ resolver.External }
