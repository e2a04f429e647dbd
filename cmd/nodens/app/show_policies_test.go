package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// draftObjects are two pods, of which a policy binds one.
const draftObjects = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1}
status: {podIPs: [{ip: 127.0.0.7}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop}
spec: {nodeName: node-1}
status: {podIPs: [{ip: 127.0.0.8}]}
---
apiVersion: nodens.dev/v1alpha1
kind: DNSPolicy
metadata: {name: own, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, allow: [a.test]}
`

// TestDraftPolicy: a draft shows which names it would deny of those that the selected pods have asked for. Names that come from a search
// path are left out.
func TestDraftPolicy(t *testing.T) {
	port, dir := peer.Ports(t, 1)[0], t.TempDir()
	socket, objects := filepath.Join(dir, "a.sock"), filepath.Join(dir, "objects.yaml")
	agenttest.WriteFile(t, objects, draftObjects)
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.1 a.test b.test c.test\n }\n kubernetes cluster.local {\n  manifests %s\n }\n}\n", port, objects)
	startAgent(t, corefile, func(o *options.Agent) {
		o.AdminSocket, o.NodeName, o.DNSPolicies = socket, "node-1", options.DNSPoliciesOpen
	})
	ask := func(from, name string) string {
		c := dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}}
		m, _, err := c.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(name, dns.TypeA), fmt.Sprint("127.0.0.1:", port))
		check.NoError(t, err)
		return dns.RcodeToString[m.Rcode]
	}
	check.NoError(t, peer.Await(t.Context(), "the policy", func(context.Context) error {
		if ask("127.0.0.7", "none.test.") != "REFUSED" {
			return errors.New("it does not bind")
		}
		return nil
	}))
	for _, name := range []string{"a.test.", "b.test.", "c.test.", "c.test.", "a.test.shop.svc.cluster.local."} {
		ask("127.0.0.7", name)
		ask("127.0.0.8", name)
	}
	draft := func(text string) (got report.DraftPolicy, err error) {
		return got, report.Post(t.Context(), socket, "/policies/draft", []byte(text), &got)
	}
	got, err := draft("apiVersion: nodens.dev/v1alpha1\nkind: DNSPolicy\nmetadata: {name: p, namespace: shop}\nspec: {podSelector: {}, allow: [b.test, none.test]}\n")
	check.NoError(t, err)
	if got.Addresses != 2 || got.Denied != 5 || got.WindowSeconds <= 0 || got.Queries < 10 {
		t.Errorf("the draft: %+v", got)
	}
	names := make(map[string]uint64)
	for _, n := range got.Names {
		names[fmt.Sprint(n.Namespace, "/", n.Pod, " ", n.Address, " ", n.Name, " ", n.DeniedNow)] = n.Queries
	}
	want := map[string]uint64{"shop/web 127.0.0.7 c.test. true": 2, "shop/db 127.0.0.8 a.test. false": 1, "shop/db 127.0.0.8 c.test. false": 2}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("denied (-want +got):\n%s", diff)
	}
	if _, err := draft("kind: Pod\n"); err == nil || !strings.Contains(err.Error(), "the draft: it has no kind DNSPolicy") {
		t.Errorf("a draft of another kind: %v", err)
	}
	if _, err := draft(strings.Repeat("#", report.MaxDraft+1)); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a large draft: %v", err)
	}
}

// TestNoDraft: an agent without policies says so.
func TestNoDraft(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "a.sock")
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n}\n", peer.Ports(t, 1)[0]), func(o *options.Agent) { o.AdminSocket = socket })
	err := report.Post(t.Context(), socket, "/policies/draft", nil, new(report.DraftPolicy))
	if err == nil || !strings.Contains(err.Error(), "run it with --dns-policies=open or closed") {
		t.Errorf("without policies: %v", err)
	}
}
