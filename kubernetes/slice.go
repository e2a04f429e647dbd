package kubernetes

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// slice holds the ready endpoints of one EndpointSlice. It is immutable.
type slice struct {
	name string // namespace/name of the object
	key  string // of the service it belongs to
	// cluster is the label, in wire form, of the cluster that a ServiceImport's endpoints are
	// in; "" is none.
	cluster string
	size    int    // of an address: 4 or 16
	addrs   string // packed RDATA in ascending order; an address with two hostnames occurs twice
	// hosts are the endpoints' hostnames in lower case, "" for the dashed address; nil if all
	// are "".
	hosts []string
	ports portList
	// localities has the [locality] of each endpoint as a byte; "" if all are zero.
	localities string
	// zones are the topology zones of the endpoints, if zonal names are enabled; nil if none
	// is known.
	zones []zoneName
	// version is the object's resourceVersion, 0 if it has none.
	version uint64
	class   sliceClass
	// withheld says that the endpoints are not in the index; see [slice.withhold].
	withheld bool
	byHost   *hostnameIndex // nil if there are few hosts
	ref      *sliceRef      // set by the index
}

// sliceClass says for which sources of the wide level a slice is.
type sliceClass uint8

const (
	anySlice      sliceClass = iota // of the slice controller, for a Service that is not headless
	headlessSlice                   // has the label of headless Services' slices
	foreignSlice                    // doesn't have it, and is not the slice controller's
)

// sliceController is the value of the label endpointslice.kubernetes.io/managed-by that Kubernetes' own
// controller sets.
const sliceController = "endpointslice-controller.k8s.io"

// classOfSlice returns the class of a slice with these labels.
func classOfSlice(labels map[string]string) sliceClass {
	if _, ok := labels[corev1.IsHeadlessService]; ok {
		return headlessSlice
	}
	if labels[discoveryv1.LabelManagedBy] == sliceController {
		return anySlice
	}
	return foreignSlice
}

// sliceRef stands for a slice in the index by address. It stays when the slice is replaced,
// so that only addresses that come or go cost something. The view's lock guards current,
// whose service and name don't change.
type sliceRef struct{ current *slice }

// compare orders the slices of an address by service and name.
func (r *sliceRef) compare(t *sliceRef) int {
	if c := strings.Compare(r.current.key, t.current.key); c != 0 {
		return c
	}
	return strings.Compare(r.current.name, t.current.name)
}

const (
	// sliceOverhead and endpointOverhead estimate the memory of a slice and of an endpoint,
	// with their entries in the index, besides what they point to.
	sliceOverhead    = 1024
	endpointOverhead = 96
	// maxNamespaceSlices bounds the memory of the slices of a namespace: some 70,000 endpoints
	// in slices of 100.
	maxNamespaceSlices = 8 << 20
)

// cost estimates the memory that s takes.
func (s *slice) cost() int {
	if s.withheld {
		return 0
	}
	n := sliceOverhead + len(s.ports) + s.len()*(endpointOverhead+2*s.size)
	for _, host := range s.hosts {
		n += 16 + len(host)
	}
	return n
}

// withhold removes the endpoints of s, which is not in the index yet, because its namespace
// has too many. Its service is then incomplete.
func (s *slice) withhold() {
	*s = slice{name: s.name, key: s.key, cluster: s.cluster, size: s.size, version: s.version, class: s.class, withheld: true}
}

// noteWithheld adds a fault if s is withheld.
func (s *slice) noteWithheld(f *faults) {
	if s.withheld {
		f.add("endpoints of the namespace take more than %d MiB, the cluster DNS answers for this service", maxNamespaceSlices>>20)
	}
}

// len returns the number of endpoints.
func (s *slice) len() int { return len(s.addrs) / s.size }

// addr returns the packed address of endpoint i.
func (s *slice) addr(i int) string { return s.addrs[i*s.size : (i+1)*s.size] }

// each yields each address once.
func (s *slice) each(yield func(string) bool) {
	last := ""
	for i := range s.len() {
		addr := s.addr(i)
		if addr != last && !yield(addr) {
			return
		}
		last = addr
	}
}

// missingIn yields each address of s that t, whose addresses have the same size, does not have, once.
func (s *slice) missingIn(t *slice) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		i := 0
		for addr := range s.each {
			for i < t.len() && t.addr(i) < addr {
				i++
			}
			if (i == t.len() || t.addr(i) != addr) && !yield(addr) {
				return
			}
		}
	}
}

// host returns the hostname of endpoint i, "" for the dashed address.
func (s *slice) host(i int) string {
	if s.hosts == nil {
		return ""
	}
	return s.hosts[i]
}

// searchAddr returns the first endpoint whose address is not less than addr.
func (s *slice) searchAddr(addr string) int {
	lo, hi := 0, s.len()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.addr(mid) < addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// hasDuplicateAddrs reports whether an address occurs twice, with two hostnames.
func (s *slice) hasDuplicateAddrs() bool {
	if s.byHost != nil {
		return s.byHost.duplicateAddrs
	}
	for i := 1; s.hosts != nil && i < s.len(); i++ {
		if s.addr(i) == s.addr(i-1) {
			return true
		}
	}
	return false
}

func (s *slice) same(t *slice) bool {
	return s.key == t.key && s.cluster == t.cluster && s.addrs == t.addrs && s.ports == t.ports && s.localities == t.localities &&
		s.class == t.class && s.withheld == t.withheld && slices.Equal(s.hosts, t.hosts) && slices.Equal(s.zones, t.zones)
}

// hostname returns the hostname of endpoint i, or its dashed address.
func (s *slice) hostname(i int) string {
	if host := s.host(i); host != "" {
		return host
	}
	return string(appendDashed(nil, s.addr(i)))
}

// locality returns the locality of endpoint i.
func (s *slice) locality(i int) locality {
	if s.localities == "" {
		return 0
	}
	return locality(s.localities[i])
}

// localityMasks returns the bits that all endpoints have, and those that any has.
func (s *slice) localityMasks() (all, some locality) {
	if s.localities == "" {
		return 0, 0
	}
	all = ^locality(0)
	for i := range len(s.localities) {
		all &= locality(s.localities[i])
		some |= locality(s.localities[i])
	}
	return all, some
}

// inZone reports whether endpoint i is in zone z; the zero zone contains all endpoints.
func (s *slice) inZone(i int, z zoneName) bool {
	var all zoneName
	return z == all || s.zones != nil && s.zones[i] == z
}

// nextInZone returns the first endpoint from i on that is in zone z, s.len() if there is
// none.
func (s *slice) nextInZone(z zoneName, i int) int {
	for i < s.len() && !s.inZone(i, z) {
		i++
	}
	return i
}

// indexHosts builds the index of s's hostnames if there are many.
func (s *slice) indexHosts() {
	n := len(s.hosts)
	if n <= maxUnindexedHosts || n > 1<<16 || s.byHost != nil {
		return
	}
	o := hostnameIndex{list: make([]uint16, n), duplicateAddrs: s.hasDuplicateAddrs()}
	for i := range o.list {
		o.list[i] = uint16(i)
	}
	slices.SortStableFunc(o.list, func(a, b uint16) int { return strings.Compare(s.hosts[a], s.hosts[b]) })
	s.byHost = &o
}
