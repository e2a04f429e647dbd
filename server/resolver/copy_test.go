package resolver_test

import (
	"testing"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/rewrite"
	"github.com/nodens-dns/nodens/server/template"
)

// TestCopied: zones where who asks matters, or that somebody asks, or what can change
// without a trace, have no copies.
func TestCopied(t *testing.T) {
	for name, z := range map[string]*resolver.Zone{
		"acl": {ACL: new(resolver.ACL)}, "dns64": {DNS64: new(resolver.DNS64)}, "rewrite": {Rewrite: new(rewrite.Rules)},
		"template": {Template: new(template.Templates)}, "autopath": {Autopath: new(resolver.Autopath)}, "hosts": {Hosts: new(hosts.Table)},
		"k8s_external": {External: new(noExternal)}, "log": {Log: &resolver.QueryLog{Rules: []resolver.LogRule{{}, {EveryQuery: true}}}}, "dnstap": {Taps: make([]resolver.Tap, 1)},
	} {
		if z.Copied() {
			t.Errorf("with %s there are copies", name)
		}
	}
	if z := (&resolver.Zone{Cache: new(cache.Cache), Errors: new(resolver.ErrorLog), Log: &resolver.QueryLog{Rules: make([]resolver.LogRule, 1)}, Minimal: true, NSID: "x", Bufsize: 1232}); !z.Copied() {
		t.Error("a plain zone has no copies")
	}
}

// noExternal is an External that is never asked.
type noExternal struct{ resolver.External }
