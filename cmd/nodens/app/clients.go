package app

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/podrange"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
)

// attribution tells the table of clients whose the addresses are. It is safe for concurrent use. A nil
// attribution, and one without a table, do nothing.
type attribution struct {
	table *clients.Table
	path  *kernelPath
	// ranges gets the addresses of pods, too; nil: nobody needs them.
	ranges *podrange.Ranges
	// off says that the table does not count queries, and only knows whose the addresses are.
	off bool

	mu sync.Mutex
	// pods are the pods that have an address, by view. Views of one cluster agree.
	pods map[netip.Addr]map[int]labelledPod
	last int // number of the last view
}

func newAttribution(table *clients.Table, path *kernelPath) *attribution {
	return &attribution{table: table, path: path, pods: make(map[netip.Addr]map[int]labelledPod)}
}

// labelledPod is a pod with some of its labels and the ndots of its resolver.
type labelledPod struct {
	clients.Pod
	keys   []string
	values string // see [kubernetes.NodePod]
	podTraits
}

// podTraits are what is reported about one or more pods: the highest ndots of their resolvers, and whether none has an IPv6
// address.
type podTraits struct {
	ndots    int
	ipv4Only bool
}

// value returns the value of the label, "" for none.
func (p *labelledPod) value(key string) string {
	i := slices.Index(p.keys, key)
	if values := strings.Split(p.values, "\x00"); i >= 0 && i < len(values) {
		return values[i]
	}
	return ""
}

// label returns the value of a label of the pod with that address and UID, "" for none.
func (x *attribution) label(addr netip.Addr, uid, key string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.pods[addr] {
		if p.UID == uid {
			return p.value(key)
		}
	}
	return ""
}

// observer returns what a new view calls for the pods of the node, with the values of labels; nil for
// nothing.
func (x *attribution) observer(labels []string) func(netip.Addr, kubernetes.NodePod) {
	if x == nil || x.table == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	view := x.last
	return func(addr netip.Addr, p kubernetes.NodePod) { x.setPod(view, addr, p, labels) }
}

// podCIDRsObserver returns what a new view calls for the podCIDRs of the node; nil for nothing.
func (x *attribution) podCIDRsObserver() func([]netip.Prefix) {
	if x == nil || x.ranges == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	view := x.last
	return func(list []netip.Prefix) { x.ranges.SetPrefixes(view, list) }
}

// setPod records that by the view the address belongs to p, or to no pod if p is zero.
func (x *attribution) setPod(view int, addr netip.Addr, p kubernetes.NodePod, labels []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p == (kubernetes.NodePod{}) {
		if delete(x.pods[addr], view); len(x.pods[addr]) == 0 {
			delete(x.pods, addr)
		}
	} else {
		if x.pods[addr] == nil {
			x.pods[addr] = make(map[int]labelledPod)
		}
		x.pods[addr][view] = labelledPod{keys: labels, values: p.Labels, podTraits: podTraits{ndotsOf(&p), !p.HasIPv6}, Pod: clients.Pod{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			Workload: clients.Workload{Kind: p.WorkloadKind, Name: p.WorkloadName},
		}}
	}
	pod := x.podAt(addr)
	if x.ranges != nil {
		x.ranges.SetPod(addr, len(x.pods[addr]) > 0, pod != clients.Pod{} && x.ipv4Only(addr))
	}
	x.path.reportClient(addr) // what the kernel has answered so far is the present owner's
	x.table.SetPod(addr, pod)
}

// onNode returns what reports whether an address is the node's or that of one of its pods.
func (x *attribution) onNode(host *hostAddrs) func(netip.Addr) bool {
	if x == nil {
		return host.knows
	}
	return func(addr netip.Addr) bool { return x.ranges.Has(addr) || host.knows(addr) }
}

// podAt returns the pod that has the address by all views that know one; the zero Pod if they don't
// agree.
func (x *attribution) podAt(addr netip.Addr) (pod clients.Pod) {
	for _, p := range x.pods[addr] {
		if pod != (clients.Pod{}) && pod != p.Pod {
			return clients.Pod{}
		}
		pod = p.Pod
	}
	return pod
}

// ipv4Only reports whether all views say that the pod with the address has no IPv6 address.
func (x *attribution) ipv4Only(addr netip.Addr) bool {
	for _, p := range x.pods[addr] {
		if !p.ipv4Only {
			return false
		}
	}
	return true
}

// defaultNdots is the option that the kubelet writes into the resolv.conf of pods.
const defaultNdots = 5

// ndotsOf returns the option ndots of p's resolver.
func ndotsOf(p *kubernetes.NodePod) int {
	if p.HasNdots {
		return int(p.Ndots)
	}
	return defaultNdots
}

// podTraits returns the traits of the pods with the same key. A nil attribution knows none.
func (x *attribution) podTraits(key func(clients.Pod) clients.Pod) map[clients.Pod]podTraits {
	all := make(map[clients.Pod]podTraits)
	if x == nil {
		return all
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, views := range x.pods {
		for _, p := range views {
			k, t := key(p.Pod), p.podTraits
			if others, ok := all[k]; ok {
				t = podTraits{max(t.ndots, others.ndots), t.ipv4Only && others.ipv4Only}
			}
			all[k] = t
		}
	}
	return all
}

// counted returns the table, nil if queries are not counted.
func (x *attribution) counted() *clients.Table {
	if x == nil || x.off {
		return nil
	}
	return x.table
}

// owners returns the table, which may be nil, to look up whose an address is.
func (x *attribution) owners() *clients.Table {
	if x == nil {
		return nil
	}
	return x.table
}

// resolvConf has the search domains of the node. A pod of the agent reads it from the node with dnsPolicy
// Default.
const resolvConf = "/etc/resolv.conf"

// nodeSearch returns the search domains of the node, none if they can't be read.
func nodeSearch() []wire.Name {
	list, err := config.SearchDomains(resolvConf)
	if err != nil {
		return nil
	}
	return list
}
