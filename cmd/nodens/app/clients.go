package app

import (
	"net/netip"
	"sync"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
)

// attribution tells the table of clients whose the addresses are. It is safe for concurrent use. A nil
// attribution, and one without a table, do nothing.
type attribution struct {
	table *clients.Table
	path  *fastPath
	// off says that the table does not count queries, and only knows whose the addresses are.
	off bool

	mu sync.Mutex
	// pods are the pods that have an address, by view. Views of one cluster agree.
	pods map[netip.Addr]map[int]clients.Pod
	last int // number of the last view
}

func newAttribution(table *clients.Table, path *fastPath) *attribution {
	return &attribution{table: table, path: path, pods: make(map[netip.Addr]map[int]clients.Pod)}
}

// observer returns what a new view calls for the pods of the node; nil for nothing.
func (x *attribution) observer() func(netip.Addr, kubernetes.NodePod) {
	if x == nil || x.table == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last++
	view := x.last
	return func(addr netip.Addr, p kubernetes.NodePod) { x.setPod(view, addr, p) }
}

// setPod records that by the view the address belongs to p, or to no pod if p is zero.
func (x *attribution) setPod(view int, addr netip.Addr, p kubernetes.NodePod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p == (kubernetes.NodePod{}) {
		if delete(x.pods[addr], view); len(x.pods[addr]) == 0 {
			delete(x.pods, addr)
		}
	} else {
		if x.pods[addr] == nil {
			x.pods[addr] = make(map[int]clients.Pod)
		}
		x.pods[addr][view] = clients.Pod{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			Workload: clients.Workload{Kind: p.WorkloadKind, Name: p.WorkloadName},
		}
	}
	x.path.reportClient(addr) // what the kernel has answered so far is the present owner's
	x.table.SetPod(addr, x.podAt(addr))
}

// podAt returns the pod that has the address by all views that know one; the zero Pod if they don't
// agree.
func (x *attribution) podAt(addr netip.Addr) (pod clients.Pod) {
	for _, p := range x.pods[addr] {
		if pod != (clients.Pod{}) && pod != p {
			return clients.Pod{}
		}
		pod = p
	}
	return pod
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
