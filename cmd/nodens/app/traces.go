package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/otlp"
	"github.com/nodens-dns/nodens/server/resolver"
)

// exporterKey identifies an exporter: all blocks with the same endpoint and service name share one.
type exporterKey struct{ endpoint, service string }

// openExporters opens the exporters of g's directives, or reuses old's exporters (nil: none).
func openExporters(a *builder, g, old *generation) {
	for _, b := range g.cfg.Blocks {
		if b.Trace == nil || b.Trace.Endpoint == "" {
			continue
		}
		key := exporterKey{b.Trace.Endpoint, b.Trace.Service}
		switch {
		case g.exporters[key] != nil:
		case old != nil && old.exporters[key] != nil:
			g.exporters[key] = old.exporters[key]
		default:
			g.exporters[key] = otlp.New(otlp.Options{
				Endpoint: key.endpoint, Resource: resourceOf(a, key.service), Lookup: a.lookup, Logger: a.log.With("part", "trace"),
			})
		}
	}
}

// resourceOf describes the agent in traces.
func resourceOf(a *builder, service string) []otlp.Attr {
	attrs := []otlp.Attr{otlp.Text("service.name", service), otlp.Text("service.version", a.opts.Build.Version)}
	if a.opts.NodeName != "" {
		attrs = append(attrs, otlp.Text("k8s.node.name", a.opts.NodeName))
	}
	return attrs
}

// tracingOf returns which of b's queries have spans, nil if none have.
func tracingOf(g *generation, b *config.Block) *resolver.Tracing {
	if b.Trace == nil || b.Trace.Endpoint == "" {
		return nil
	}
	return &resolver.Tracing{To: g.exporters[exporterKey{b.Trace.Endpoint, b.Trace.Service}], Every: b.Trace.Every, Slow: b.Trace.Slow}
}

// lookupCollector returns the addresses of a collector's host. The views answer names of the cluster, because the
// node's own resolver does not know them. Other names are looked up by the node's resolver, which may be this agent.
func (a *agent) lookupCollector(ctx context.Context, host string) ([]netip.Addr, error) {
	if g := a.current.Load(); g != nil {
		name, err := wire.ParseName(host)
		if err != nil {
			return nil, err
		}
		for _, p := range g.blocks {
			if p.cluster() == nil || !inOrigins(p.cluster(), name) {
				continue
			}
			return clusterAddrs(ctx, p.cluster(), host)
		}
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// inOrigins reports whether name is in a zone of z.
func inOrigins(z *kubernetes.Zone, name wire.Name) bool {
	for _, o := range z.Origins() {
		if name.Under(o) {
			return true
		}
	}
	return false
}

// clusterAddrs returns the addresses that z has for host, IPv4 first. It waits until the view has loaded them.
func clusterAddrs(ctx context.Context, z *kubernetes.Zone, host string) (addrs []netip.Addr, err error) {
	for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
		list, err := clusterRecords(ctx, z, host, qtype)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, list...)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("the cluster has no address for %s", host)
	}
	return addrs, nil
}

// clusterRecords returns the addresses of one type.
func clusterRecords(ctx context.Context, z *kubernetes.Zone, host string, qtype uint16) ([]netip.Addr, error) {
	name, err := wire.ParseName(host)
	if err != nil {
		return nil, err
	}
	var q wire.Query
	if q.Parse(wire.AppendQuery(nil, 0, []byte(name), qtype, nil, wire.SafeUDP)) != wire.Serve {
		return nil, fmt.Errorf("%q is not a valid name", host)
	}
	var r wire.Reply
	r.Start(nil, &q)
	found, _ := z.Answer(&q, &r, nil)
	if found == kubernetes.Incomplete {
		if err := z.Await(ctx, &q); err != nil {
			return nil, fmt.Errorf("loading %s: %w", host, err)
		}
		r.Start(nil, &q)
		found, _ = z.Answer(&q, &r, nil)
	}
	if found != kubernetes.Answered {
		return nil, fmt.Errorf("the view of the cluster has no address for %s", host)
	}
	return r.Addrs(), nil
}
