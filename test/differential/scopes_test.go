package differential

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// foreignManagers are values of the label endpointslice.kubernetes.io/managed-by of slices that are not the
// EndpointSlice controller's; "" is no label.
var foreignManagers = []string{"", "endpointslicemirroring-controller.k8s.io", "mesh.example"}

// addForeignSlices makes some of the slices of each Service those of others, who need not label the slices of a headless
// Service.
func (g *generator) addForeignSlices(d dice) {
	for _, s := range g.slices {
		if !d.percent(35) {
			continue
		}
		delete(s.Labels, corev1.IsHeadlessService)
		delete(s.Labels, discoveryv1.LabelManagedBy)
		if by := d.pick(foreignManagers); by != "" {
			s.Labels[discoveryv1.LabelManagedBy] = by
		}
	}
}

// TestScopes compares CoreDNS, over random objects, with agents that watch as little as they need, the slices of headless
// Services in the whole cluster, and all slices; and with one that has the same objects out of a file.
func TestScopes(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server and CoreDNS takes minutes: skipped under -short")
	}
	s := newSite(t)
	s.fixedWorld = &world{}
	n := seed(t)
	for i := range uint64(soak.Choose(2, 25)) {
		t.Run(fmt.Sprintf("seed-%d", n+i), func(t *testing.T) { s.scopes(t, n+i) })
	}
}

// scopes compares the scopes over the world of that seed.
func (s *site) scopes(t *testing.T, n uint64) {
	g := newGenerator(n)
	g.addForeignSlices(newDice(n, 1<<32))
	t.Cleanup(func() { s.clean(t, &g.world) }) // the servers have ended by then
	check.NoError(t, s.write(t.Context(), &g.world))
	text := corefiles[0].text
	r := s.run(t, false)
	r.coredns = s.serve(t, "coredns", text, apiserver.Admin)
	const option = "pods insecure\n"
	for name, other := range map[string]string{
		"node":    text,
		"wide":    strings.Replace(text, option, option+"scope cluster\n", 1),
		"all":     strings.Replace(text, option, option+"scope cluster\nendpoints all\n", 1),
		"crowded": strings.Replace(text, option, option+"scope_max 1\n", 1),
		"file":    strings.Replace(text, "kubeconfig KUBECONFIG", "manifests "+s.saveObjects(t), 1),
	} {
		r.agents = append(r.agents, s.serveAgent(t, agent{name: name}, other, apiserver.Agent))
	}
	r.facts = collectFacts(s.fixedWorld, &g.world)
	var forward, backward []query
	for _, name := range g.owners() {
		switch {
		case !validName(name):
		case strings.HasSuffix(name, ".arpa."):
			backward = append(backward, query{name: name, qtype: dns.TypePTR})
		default:
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
				forward = append(forward, query{name: name, qtype: qtype})
			}
		}
	}
	r.compare(forward)
	r.compare(backward) // after these an agent watches all slices
	r.report()
}

// saveObjects writes the API server's objects to a file and returns its path.
func (s *site) saveObjects(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	save := func(kind, version string, list runtime.Object, err error) {
		check.NoError(t, err)
		list.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
		b, err := json.Marshal(list)
		check.NoError(t, err)
		fmt.Fprintf(&text, "---\n%s\n", b)
	}
	ctx, all := t.Context(), metav1.ListOptions{}
	ns, err := s.client.CoreV1().Namespaces().List(ctx, all)
	save("NamespaceList", "v1", ns, err)
	services, err := s.client.CoreV1().Services("").List(ctx, all)
	save("ServiceList", "v1", services, err)
	slices, err := s.client.DiscoveryV1().EndpointSlices("").List(ctx, all)
	save("EndpointSliceList", "discovery.k8s.io/v1", slices, err)
	path := filepath.Join(t.TempDir(), "objects.yaml")
	check.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}
