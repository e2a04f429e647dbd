package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Stats returns a snapshot. It visits all namespaces: it is meant for scrapes, not for queries.
func (v *View) Stats() Stats {
	s := Stats{
		Synced:   v.Synced(),
		SyncTime: time.Duration(v.syncTime.Load()),
		Serial:   v.serial.Load(),
		Opened:   v.opened,
		Failure:  v.outages.LastFailure(),
		Programming: map[string]stat.Snapshot{
			"cluster_ip":             v.programming[0].Read(),
			"headless_with_selector": v.programming[1].Read(),
		},
		Requests: v.requests.snapshot(),
		Gaps:     v.gapsNow(),
	}
	if at := v.lastEvent.Load(); at != 0 {
		s.LastEvent = time.Unix(0, at)
	}
	s.Faulty, s.Faults = v.faults.counts()
	s.SlowEvents = v.slow.count()
	v.mu.RLock()
	defer v.mu.RUnlock()
	s.Slices, s.Pods, s.Level = len(v.index.slices), len(v.index.pods), v.index.level.String()
	if v.index.level == levelNode {
		s.MaxSources = int(v.scope.maxNamespaces.Load())
	}
	for _, ns := range v.index.namespaces {
		if ns.exists() {
			s.Namespaces++
		}
		s.Sources += ns.sourceCount
	}
	s.Sources += v.index.namedNamespaces()
	s.Services, s.Endpoints = v.index.serviceCount, v.index.endpointCount
	return s
}

// IsClusterIP reports whether a is the cluster IP of a Service in view. It is safe for
// concurrent use and does not allocate.
func (v *View) IsClusterIP(a netip.Addr) bool {
	v.mu.RLock()
	_, ok := v.index.clusterIPs[addrKey(a.As16())] // IPv4 in its mapped form, as in the index
	v.mu.RUnlock()
	return ok
}

// EndpointsBehind returns the addresses of the ready endpoints of the Service whose cluster
// IP is a. The result is empty if there is no such Service or if its endpoints are not in
// view; the call requests them. It does not block and is safe for concurrent use.
func (v *View) EndpointsBehind(a netip.Addr) (list []netip.Addr) {
	var owners []*service
	v.mu.RLock()
	if r, ok := v.index.clusterIPs[addrKey(a.As16())]; ok {
		for key := range r.each {
			owners = append(owners, v.index.services[key])
		}
	}
	v.mu.RUnlock()
	for _, s := range owners {
		if s == nil || s.kind == orphan || !v.requireSlices(s, nil) {
			continue
		}
		for _, sl := range s.slices {
			for i := range min(sl.len(), maxEndpointsBehind-len(list)) {
				list = append(list, unpackAddr(sl.addr(i)).Unmap())
			}
		}
	}
	return list
}

// maxEndpointsBehind bounds the result of [View.EndpointsBehind]. Cluster DNS has one
// endpoint for some hundred cores.
const maxEndpointsBehind = 1000

// Endpoints returns the addresses of the ready endpoints of a Service, NAMESPACE/NAME, for
// DNS, the nearest first, and a channel that is closed when they may have changed. port 0
// is the port named dns, or else 53. Of a large Service it returns the nearest
// [maxEndpoints]; among equally near endpoints the choice differs from node to node.
//
// It does not block: a Service that doesn't exist or is not in view has no addresses.
// Callers call again whenever the channel is closed, which also happens without a change
// from time to time: these calls keep the Service's endpoints in view. The channel is nil
// if service can't be the name of a Service.
//
// It is safe for concurrent use.
func (v *View) Endpoints(service string, port uint16) (addrs []netip.AddrPort, changed <-chan struct{}) {
	ns, name, _ := strings.Cut(service, "/")
	key, ok := serviceKey(name, ns)
	if !ok {
		return nil, nil
	}
	v.mu.Lock()
	if v.index.endpointWaiters[key] == nil {
		v.index.endpointWaiters[key] = make(chan struct{})
	}
	changed = v.index.endpointWaiters[key]
	svc := v.index.services[key]
	v.mu.Unlock()
	if svc == nil || svc.kind == orphan || !v.requireSlices(svc, nil) {
		return nil, changed
	}
	return v.rankEndpoints(svc, port), changed
}

func (v *View) rankEndpoints(s *service, port uint16) []netip.AddrPort {
	var list []rankedEndpoint
	seen := make(map[netip.AddrPort]bool)
	for _, sl := range s.slices {
		p := sl.ports.findDNSPort(port)
		for i := range sl.len() {
			addr := netip.AddrPortFrom(unpackAddr(sl.addr(i)), p)
			if p == 0 || seen[addr] {
				continue
			}
			seen[addr] = true
			list = append(list, rankedEndpoint{addr, sl.locality(i).rank(), maphash.Comparable(v.seed, addr)})
		}
	}
	slices.SortFunc(list, func(a, b rankedEndpoint) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.tiebreak, b.tiebreak))
	})
	list = list[:min(len(list), maxEndpoints)]
	addrs := make([]netip.AddrPort, len(list))
	for i, n := range list {
		addrs[i] = n.addr
	}
	return addrs
}

// serialOf returns o's serial. If there are copies it is read under the lock that guards
// changes; names that depend on nothing else would not wait for that lock.
func (v *View) serialOf(o *origin) uint32 {
	if v.index.epochs != nil {
		v.mu.RLock()
		defer v.mu.RUnlock()
	}
	return o.serial.Load()
}

// hasPod reports whether a pod in namespace ns (a label in wire form) that may have a name
// has the address.
func (v *View) hasPod(a packedAddr, ns []byte, b *Budget) bool {
	at := addrKeyOf(string(a.bytes[:a.size]))
	v.mu.RLock()
	defer v.mu.RUnlock()
	r, ok := v.index.podIPs[at]
	if !ok {
		return false
	}
	for p := range r.each {
		if !b.spend(1) {
			return false
		}
		if p.named && string(p.label) == string(ns) {
			return true
		}
	}
	return false
}

// importsInto reports whether a ServiceImport, or a slice of one, is in the namespace of
// that label (in wire form).
func (v *View) importsInto(label []byte) bool {
	v.mu.RLock()
	ok := v.imports.namespaces[string(label)].exists()
	v.mu.RUnlock()
	return ok
}

// service returns the service, or the ServiceImport, with that key; nil if there is none.
func (v *View) service(key []byte, imports bool) *service {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.indexFor(imports).services[string(key)]
}

// indexFor returns the index of Services or of ServiceImports.
func (v *View) indexFor(imports bool) *index {
	if imports {
		return &v.imports
	}
	return &v.index
}

// hasNamespaceObject reports whether the Namespace with that label (in wire form) is in
// view.
func (v *View) hasNamespaceObject(label []byte) bool {
	v.mu.RLock()
	ns := v.index.namespaces[string(label)]
	ok := ns != nil && ns.hasObject
	v.mu.RUnlock()
	return ok
}

// hasNamespace reports whether the namespace with that label (in wire form), or anything in
// it, is in view.
func (v *View) hasNamespace(label []byte) bool {
	v.mu.RLock()
	ok := v.index.namespaces[string(label)].exists()
	v.mu.RUnlock()
	return ok
}

// sliceConverter returns what slices are converted with.
func (v *View) sliceConverter() converter {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.converter
}

// requireSlices reports whether all slices that s's names depend on are in view, and
// records that they are in use. If they are not, it requests them. In a dry run it only reports.
func (v *View) requireSlices(s *service, b *Budget) bool {
	if b != nil && b.dry {
		return s.complete
	}
	ns, sc := s.ns, v.scope
	tick := sc.tick.Load()
	if ns.lastUsed.Load() != tick {
		ns.lastUsed.Store(tick)
	}
	if s.used.tick.Load() != tick {
		sc.noteUse(s.used)
	}
	if s.kind == clusterIP && !ns.needsUnlabelled.Load() {
		ns.needsUnlabelled.Store(true)
	}
	if s.complete {
		return true
	}
	if s.withheld == 0 { // otherwise no source has more
		v.requestReconcile()
	}
	return false
}

// await waits until answer returns something other than [Incomplete] for q, or ctx ends.
func (v *View) await(ctx context.Context, q *wire.Query, answer func(*wire.Query, *wire.Reply, *Budget) (Outcome, wire.Name)) error {
	for {
		more := v.scope.more()
		var r wire.Reply
		r.Start(nil, q)
		if outcome, _ := answer(q, &r, nil); outcome != Incomplete {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// desiredSources returns the keys of the sources that are needed, and the Services that need sources besides. A level is left for a
// lower one only at half the use that led to it, to avoid flapping.
func (v *View) desiredSources() (keys []string, names serviceSet) {
	sc := v.scope
	used, gaps, at := v.namespacesInUse()
	most := func(l level, bound int) int {
		if at >= l {
			return bound / 2
		}
		return bound
	}
	maxNamespaces := int(sc.maxNamespaces.Load())
	wide := sc.cluster || len(used) > most(levelWide, maxNamespaces)
	if !wide {
		keys, names = v.servicesInUse()
		wide = names.selectorBytes() > most(levelWide, (maxNameSources-1)*maxSelectorBytes)
	}
	switch {
	case sc.cluster && sc.all, sc.usedRecently(sc.reverseUsed.Load()), wide && len(gaps) > most(levelAll, maxNamespaces):
		return []string{allSource}, nil
	case wide:
		return append(gaps, wideSources...), nil
	}
	return keys, names
}

// servicesInUse returns the labels of the namespaces of which all slices are in use, and the Services of others whose slices are: those that queries needed,
// and, if the selectors have room for them, the headless ones in namespaces of this node's pods. Names that many Services have are watched by namespace.
func (v *View) servicesInUse() (whole []string, used serviceSet) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	asked := v.scope.servicesAsked(&v.index)
	used = maps.Clone(asked)
	for key, ns := range v.index.headless {
		if ns.nodePods > 0 {
			used[key] = struct{}{}
		}
	}
	if len(used) > len(asked) && used.selectorBytes() > maxSelectorBytes {
		used = asked
	}
	for label, ns := range v.index.namespaces {
		if ns.exists() && v.scope.usedRecently(ns.reverseUsed.Load()) {
			whole = append(whole, label)
		}
	}
	for key := range v.scope.commonServices(&v.index, used) {
		delete(used, key)
		whole = append(whole, namespaceOf(key))
	}
	slices.Sort(whole)
	return slices.Compact(whole), used
}

// namespacesInUse returns the labels of the namespaces in use, those of the namespaces
// whose labelled slices are not sufficient, and the current level.
func (v *View) namespacesInUse() (used, gaps []string, at level) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for label, ns := range v.index.namespaces {
		recent := ns.exists() && v.scope.usedRecently(ns.lastUsed.Load())
		if !recent {
			ns.needsUnlabelled.Store(false)
		}
		if recent || ns.nodePods > 0 && ns.headlessCount > 0 {
			used = append(used, label)
		}
		if ns.selectorless > 0 || recent && ns.needsAllSlices() {
			gaps = append(gaps, label)
		}
	}
	return used, gaps, v.index.level
}

const (
	// dnsPort is the port of DNS, and dnsPortName the name that cluster DNS's Services give
	// it, whatever its number.
	dnsPort     = 53
	dnsPortName = "dns"
	// maxEndpoints bounds the result of [View.Endpoints].
	maxEndpoints = 16
)

// rankedEndpoint is an endpoint with what it is sorted by.
type rankedEndpoint struct {
	addr     netip.AddrPort
	rank     rank
	tiebreak uint64
}

// trustsSlicesOf reports whether slices of the service with that key may have the agent's
// addresses: it is in the agent's own namespace, or that is unknown.
func (v *View) trustsSlicesOf(key string) bool {
	return v.ownNamespace == "" || namespaceOf(key) == v.ownNamespace
}

// limitAddrWait makes the wait of the pod of that name for an address end in time.
func (v *View) limitAddrWait(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.index.addrWaits[name]
	if w == nil || w.limited {
		return
	}
	w.limited = true
	time.AfterFunc(maxAddrWait, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !v.ended {
			v.index.endAddrWait(name, w)
		}
	})
}

// SetLimits sets scope_idle and scope_max of a view that may be running; 0 stands for the default. It is safe for
// concurrent use.
func (v *View) SetLimits(idle time.Duration, most int) {
	v.scope.setLimits(idle, most)
	v.requestReconcile()
}

// gapsNow returns the gaps of v until now.
func (v *View) gapsNow() Gaps {
	v.gaps.mu.Lock()
	g := v.gaps.gaps
	v.gaps.mu.Unlock()
	for r := range numResources {
		if name := r.plural(); !v.listed[r].Load() && !slices.Contains(g.Unlisted, name) {
			g.Unlisted = append(g.Unlisted, name)
		}
	}
	slices.Sort(g.Unlisted)
	g.Failing, g.Unreadable = v.outages.Failing(), v.outages.Skipped()
	return g
}

// reserveSerial returns o's serial, which the next change will replace by a later one.
func (v *View) reserveSerial(o *origin) uint32 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	serial := o.serial.Load()
	o.serial.sent.Store(serial)
	o.serial.reserved.Store(true)
	return serial
}

// fitsScope returns an error if the slices of the needed namespaces, of which some are absent, are more than the scope allows.
func (v *View) fitsScope(needed, absent map[string]struct{}) error {
	sc := v.scope
	if len(absent) == 0 || sc.cluster && sc.all {
		return nil
	}
	used, gaps, at := v.namespacesInUse()
	most := int(sc.maxNamespaces.Load())
	switch wide := sc.cluster || at != levelNode; {
	case wide:
		if n := countUnion(absent, gaps); n > most {
			return fmt.Errorf("all endpoints of %d namespaces are needed, scope_max of kubernetes is %d; set scope_max %[1]d, or scope cluster with endpoints all", n, most)
		}
	default:
		if n := countUnion(needed, used); n > most {
			return fmt.Errorf("the endpoints of %d namespaces are needed, scope_max of kubernetes is %d; set scope_max %[1]d or scope cluster", n, most)
		}
	}
	return nil
}
