package attribution

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	// numNamespaces and numWorkloads, which each namespace has, are few enough for each to have series of its own.
	numNamespaces, numWorkloads = 5, 4
	// templateHash is the pod-template-hash of all Deployments.
	templateHash = "5d4f8b7c9"
)

func namespaces() (list []string) {
	for i := range numNamespaces {
		list = append(list, fmt.Sprintf("ns-%d", i))
	}
	return list
}

// pod is a pod of the node.
type pod struct {
	namespace, name, workload string
	addrs                     []netip.Addr
	ns                        *os.File // nil: not connected
	link                      string   // the node's end of its interface
	// least and most bound what must count for the pod. They differ by the queries that it sent while the
	// agent could not be sure whose they were.
	least, most counts
	got         counts // what the agent says
	// questions are what it asks.
	questions []question
}

// newPod returns the i-th pod of the run.
func newPod(i int, addrs []netip.Addr) *pod {
	ns, workload := fmt.Sprintf("ns-%d", i%numNamespaces), fmt.Sprintf("web-%d", i/numNamespaces%numWorkloads)
	p := &pod{namespace: ns, name: fmt.Sprintf("%s-%s-%05d", workload, templateHash, i), workload: workload, addrs: addrs, link: fmt.Sprint(podPrefix, i)}
	p.questions = append(questions[:len(questions):len(questions)], question{name: p.ownName()})
	return p
}

// key is the pod's key in [rows].
func (p *pod) key() string { return p.namespace + "/" + p.name }

// ownName is a name that only the pod asks for.
func (p *pod) ownName() string { return p.name + "." + testbed.Zone + "." }

// shown are the states in which the API server shows a pod.
type shown uint8

const (
	pending shown = iota // without addresses
	running
	terminating
)

// object returns the pod as the API server has it.
func (p *pod) object(as shown) *corev1.Pod {
	isController := true
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.namespace, Name: p.name, UID: types.UID("uid-" + p.name), Labels: map[string]string{"pod-template-hash": templateHash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: p.workload + "-" + templateHash, Controller: &isController}},
		},
		Spec: corev1.PodSpec{NodeName: nodeName},
	}
	if as == pending {
		return o
	}
	for _, a := range p.addrs {
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	o.Status.PodIP, o.Status.Phase = p.addrs[0].String(), corev1.PodRunning
	if as == terminating {
		now := metav1.NewTime(time.Unix(1_700_000_000, 0))
		o.DeletionTimestamp = &now
	}
	return o
}

func (n *node) show(p *pod, as shown) { n.api.Put(p.object(as)) }

func (n *node) remove(p *pod) { n.api.Remove(p.object(terminating)) }

// start connects the pod.
func (n *node) start(p *pod) {
	n.t.Helper()
	ns, err := n.connect(p.link, p.addrs)
	n.must(err)
	p.ns = ns
	n.t.Cleanup(func() { ns.Close() })
}

// stop ends the pod's namespace. The kernel removes its interface some time later.
func (n *node) stop(p *pod) {
	n.t.Helper()
	n.must(p.ns.Close())
	p.ns = nil
	delete(n.interfaces, p.link)
}

// ask sends queries from each address of the pod. certain says that they must be counted for it.
func (p *pod) ask(random *rand.Rand, queries int, certain bool) (sent counts, err error) {
	for _, a := range p.addrs {
		s, err := openSession(p.ns, a, random, p.questions)
		if err != nil {
			return sent, err
		}
		c, err := s.ask(queries)
		s.close()
		if err != nil {
			return sent, fmt.Errorf("pod %s at %s: %w", p.name, a, err)
		}
		sent = sent.plus(c)
	}
	p.most = p.most.plus(sent)
	if certain {
		p.least = p.least.plus(sent)
	}
	return sent, nil
}

// askAsHost shows a pod in the node's network, which has the node's address, and sends queries from there.
func (n *node) askAsHost(queries int) counts {
	n.t.Helper()
	addr := podNet4.Addr().Next()
	p := &pod{namespace: "ns-0", name: "proxy", workload: "proxy", addrs: []netip.Addr{addr}}
	o := p.object(running)
	o.Spec.HostNetwork = true
	n.api.Put(o)
	ns, err := os.Open("/run/netns/" + n.Node)
	n.must(err)
	defer ns.Close()
	s, err := openSession(ns, addr, rand.New(rand.NewPCG(0, 0)), questions)
	n.must(err)
	defer s.close()
	sent, err := s.ask(queries)
	n.must(err)
	return sent
}

// marker is an address that belongs to a new pod after each sync.
type marker struct {
	*pod
	generation int
}

func (n *node) newMarker() *marker {
	addr := podNet4.Addr().Next().Next()
	m := &marker{pod: &pod{namespace: "markers", addrs: []netip.Addr{addr}, link: podPrefix + "marker", questions: questions}}
	n.start(m.pod)
	return m
}

// sync waits until the agent has seen all changes of pods so far: it shows a new pod and waits until a
// query counts for it. The agent sees the changes in their order.
func (n *node) sync(m *marker) {
	n.t.Helper()
	if m.generation > 0 {
		n.remove(m.pod)
	}
	m.generation++
	m.name = fmt.Sprintf("marker-%d", m.generation)
	m.workload = m.name
	n.show(m.pod, running)
	random := rand.New(rand.NewPCG(uint64(m.generation), 0))
	n.agent.Must(n.t, "a query to count for "+m.name, func(context.Context) error {
		if _, err := m.ask(random, 1, false); err != nil {
			return err
		}
		for _, row := range n.clients("pod").Clients {
			if row.Pod == m.name {
				return nil
			}
		}
		return errors.New("it counts for another")
	})
}

// rows are the rows of a report by pod and, of addresses of no known pod, by address; and the node's.
type rows struct {
	pods    map[string]report.ClientCounts // by namespace/name
	unknown map[netip.Addr]report.ClientCounts
	host    report.ClientCounts
}

func (n *node) rows() rows {
	n.t.Helper()
	r := rows{pods: make(map[string]report.ClientCounts), unknown: make(map[netip.Addr]report.ClientCounts)}
	for _, c := range n.clients("pod").Clients {
		switch c.Kind {
		case "pod":
			r.pods[c.Namespace+"/"+c.Pod] = c.Total
		case "unknown":
			addr, err := netip.ParseAddr(c.Addresses[0])
			n.must(err)
			r.unknown[addr] = c.Total
		case "host":
			r.host = c.Total
		default:
			n.t.Errorf("a row for %s with %d queries", c.Kind, c.Total.Queries)
		}
	}
	return r
}
