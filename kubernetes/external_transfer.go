package kubernetes

import (
	"context"

	"github.com/nodens-dns/nodens/internal/wire"
)

// SOA is as [Zone.SOA].
func (e *External) SOA(name wire.Name) (soa wire.RR, ok bool) { return e.zone.SOA(name) }

// Snapshot is as [Zone.Snapshot]. Only with `headless` it needs slices. The snapshot has the NS record with the name server's
// addresses, and the records of each Service that is reachable from outside: its addresses, and SRV records of its name and
// of its named ports. A load balancer that has only a host name is a CNAME, beside which there are no SRV records of the same name
// (RFC 1034, 3.6.2). With `headless`, a headless Service has the addresses of its endpoints, and SRV records of its own name, of
// its endpoints' names and of its named ports. Endpoints behind cluster IPs have no records.
func (e *External) Snapshot(ctx context.Context, name wire.Name) (*Snapshot, error) {
	return e.zone.snapshot(ctx, Snapshot{zone: e.zone, external: e, origin: e.zone.transferableOrigin(name)})
}

// has reports whether the service with that key has names. Below the label of the name servers no Service has.
func (e *External) has(key string, s *service) bool {
	if s.kind == orphan || namespaceOf(key) == e.apex {
		return false
	}
	return s.externallyReachable() || e.headless && s.kind == headless
}

// yieldExternalNameserver yields the NS record and the addresses of the name server.
func (s *Snapshot) yieldExternalNameserver(w *recordYielder) {
	host := []byte(s.origin.server + string(s.origin.name))
	w.add([]byte(s.origin.name), wire.TypeNS, host)
	for addr := range (nameserverAddrs{s.external, nil}).each {
		w.addAddr(host, addr)
	}
}

// yieldExternal yields the records of s, which has names outside of the cluster.
func (w *recordYielder) yieldExternal(s keyedService) {
	owner := joinName(nil, "", s.key, w.svc)
	switch {
	case owner == nil:
	case !s.externallyReachable():
		w.addServiceAddrs(owner, s.service)
		w.yieldHeadless(owner, s)
	case s.loadBalancerName() != "":
		to := []byte(s.loadBalancerName())
		w.add(owner, wire.TypeCNAME, to)
		w.yieldPorts(nil, to, s)
	default:
		for addr := range s.eachExternal {
			w.addAddr(owner, addr)
		}
		w.yieldPorts(owner, owner, s)
	}
}

// yieldHeadless yields the records of the endpoints of s, each once: the addresses of their names, and the SRV records of the
// service's name, which is owner, of theirs, and of named ports. Weights are those of answers.
func (w *recordYielder) yieldHeadless(owner []byte, s keyedService) {
	pairs := make(map[string]int)
	w.eachHeadlessSRV(owner, s, func(name, _ []byte, _ srvTarget) { pairs[string(name)]++ })
	w.yieldEndpointAddrs(s)
	seen := make(map[endpointRecord]struct{})
	w.eachHeadlessSRV(owner, s, func(name, host []byte, to srvTarget) {
		id := endpointRecord{front: to.prefix, owner: string(name), port: to.number}
		if _, dup := seen[id]; dup || to.number == 0 {
			return
		}
		seen[id] = struct{}{}
		w.addSRV(name, srvWeight(pairs[id.owner]), to.number, host)
	})
}

// yieldEndpointAddrs yields the addresses of the endpoints' names.
func (w *recordYielder) yieldEndpointAddrs(s keyedService) {
	seen := make(map[glue]struct{})
	for _, sl := range s.slices {
		for i := 0; i < sl.len() && !w.stopped; i++ {
			at := glue{sl.hostname(i), sl.addr(i)}
			host := joinName(nil, at.prefix, s.key, w.svc)
			if _, dup := seen[at]; dup || host == nil {
				continue
			}
			seen[at] = struct{}{}
			w.addAddr(host, at.addr)
		}
	}
}

// eachHeadlessSRV calls f for each pair of an endpoint, whose name is host, and a port, with each name that has an SRV record of it. A
// port without a number, and an endpoint without ports, are pairs with the number 0, which have no record but count
// in the weight, as in [match.pairsInSlice]. It stops at [maxTransferPairs].
func (w *recordYielder) eachHeadlessSRV(owner []byte, s keyedService, f func(name, host []byte, to srvTarget)) {
	pairs := 0
	for _, sl := range s.slices {
		if pairs > maxTransferPairs {
			return
		}
		ports := w.slicePorts(sl, s.key)
		for i := 0; i < sl.len() && !w.stopped; i++ {
			if pairs += len(ports); pairs > maxTransferPairs {
				return
			}
			host := joinName(nil, sl.hostname(i), s.key, w.svc)
			if host == nil {
				continue
			}
			for _, p := range ports {
				to := srvTarget{sl.hostname(i), p.number}
				f(owner, host, to)
				f(host, host, to)
				if p.owner != nil {
					f(p.owner, host, to)
				}
			}
		}
	}
}

// slicePorts returns the ports of sl, a slice of the service with that key, each with the name of its SRV records, nil for none. Without
// ports it is one without a number.
func (w *recordYielder) slicePorts(sl *slice, key string) (list []ownedPort) {
	for p := sl.ports; p != ""; {
		name, proto, number, rest := p.next()
		p = rest
		list = append(list, ownedPort{w.portOwner(name, proto, key), number})
	}
	if list == nil {
		list = []ownedPort{{}}
	}
	return list
}
