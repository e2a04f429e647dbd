package app

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
)

// openViews opens the views of all blocks.
func openViews(a *builder, g, old *generation) error {
	for _, b := range g.cfg.Blocks {
		if b.Kubernetes == nil {
			continue
		}
		if _, err := openView(a, g, b, old); err != nil {
			return err
		}
	}
	if a.opts.DNSPolicies != options.DNSPoliciesOff && g.policies() == nil {
		return errors.New("--dns-policies: no server block has a kubernetes directive, through which DNSPolicies are watched; add one, or set --dns-policies=off")
	}
	return nil
}

// endpointsViewOf returns the view that resolves the upstreams of b that are Services, nil if
// none is one.
func endpointsViewOf(a *builder, g *generation, b *config.Block, old *generation) (*kubernetes.View, error) {
	for f := b.Forward; f != nil; f = f.Next {
		for _, to := range f.To {
			if to.Service != "" {
				return openView(a, g, config.Cluster(g.cfg.Blocks, b), old)
			}
		}
	}
	return nil, nil
}

// openView returns the view of b. Blocks with the same viewKey share one, also across a
// reload.
func openView(a *builder, g *generation, b *config.Block, old *generation) (*kubernetes.View, error) {
	addrs, err := concreteAddrs(b.Listen)
	if err != nil {
		return nil, err
	}
	labels := config.PodLabels(g.cfg.Blocks)
	external := slices.ContainsFunc(g.cfg.Blocks, func(b *config.Block) bool { return b.K8sExternal != nil })
	key := viewKey(b, addrs, labels, needs{external, slices.ContainsFunc(g.cfg.Blocks, hasReverseZone)})
	policies := a.newPolicies(g, key)
	if policies != nil {
		key += withPolicies
	}
	if v := g.views[key]; v != nil {
		return v, nil
	}
	if old != nil && old.views[key] != nil {
		g.views[key] = old.views[key]
		return old.views[key], nil
	}
	if old != nil && b.Kubernetes.Save != "" {
		old.saveViews() // so that a view of other options goes on from there as far as it can
	}
	v, err := kubernetes.Open(b.Kubernetes, kubernetes.Options{
		Log: a.log, ServerAddrs: addrs, Node: a.opts.NodeName, Zone: a.opts.NodeZone, NoExternal: !external,
		Epochs: a.epochs, ObservePod: a.clients.observer(labels), PodLabels: labels, ObserveNamespace: a.clientLevels.observer(),
		ObservePodCIDRs: a.clients.podCIDRsObserver(), Policies: policies, PolicyCounters: &a.policies, Egress: a.egress,
	})
	if err != nil {
		return nil, err
	}
	g.views[key] = v
	return v, nil
}

// withPolicies ends the key of the view that has the policies.
const withPolicies = " with policies"

// newPolicies returns a table for the policies of the view of that key if it is the first one of g, else nil. It also is nil without
// policies.
func (a *builder) newPolicies(g *generation, key string) *dnspolicy.Table {
	if g.firstView == "" {
		g.firstView = key
	}
	if a.opts.DNSPolicies == options.DNSPoliciesOff || key != g.firstView {
		return nil
	}
	t := dnspolicy.NewTable()
	t.Closed, t.Host = a.opts.DNSPolicies == options.DNSPoliciesClosed, a.addrs.knows
	return t
}

// concreteAddrs returns the addresses of listen, with this machine's addresses in place of an
// unspecified one.
func concreteAddrs(listen []netip.AddrPort) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, l := range listen {
		if !l.Addr().IsUnspecified() {
			addrs = append(addrs, l.Addr())
			continue
		}
		all, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("listing this machine's addresses: %w", err)
		}
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				addrs = append(addrs, p.Addr().Unmap())
			}
		}
	}
	return addrs, nil
}

// viewKey identifies a view by everything that decides what it watches and how it keeps it (see
// [kubernetes.Open]), also on demand: `pods verified`, `ignore empty_service` and reverse zones make queries need what
// nobody has asked for before, and what a view can't get while the API server is away.
//
// The needs are those of all blocks together, so that blocks for names and for addresses, as in NodeLocal DNSCache's Corefile,
// share a view.
func viewKey(b *config.Block, addrs []netip.Addr, labels []string, all needs) string {
	k := *b.Kubernetes
	var tls config.TLS
	if k.TLS != nil {
		tls = *k.TLS
	}
	return fmt.Sprintf("%q", []any{
		k.Endpoint, tls, k.Kubeconfig, k.Context, k.Manifests, k.QPS, k.Burst, k.Save, addrs,
		k.Labels, k.NamespaceLabels, k.NoEndpoints, k.EndpointPodNames, len(k.Multicluster) > 0, k.Zonal,
		k.Scope, k.AllEndpoints, k.Topology, k.Pods == config.PodsVerified, k.IgnoreEmptyService, labels, all,
	})
}

// needs are what the blocks of a configuration need of their views besides the options of their directives.
type needs struct {
	// external says that there is a `k8s_external`, reverse that a block answers for addresses.
	external, reverse bool
}

// hasReverseZone reports whether b answers names of addresses from a view.
func hasReverseZone(b *config.Block) bool {
	return b.Kubernetes != nil && slices.ContainsFunc(b.Kubernetes.Zones, func(z wire.Name) bool { return strings.HasSuffix(string(z), "\x04arpa\x00") })
}
