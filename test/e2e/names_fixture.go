package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

//go:embed testdata/names.yaml
var namesYAML string

const (
	// namesNS has the client pods; elsewhereNS has no pods.
	namesNS, elsewhereNS = "names", "elsewhere"
	// stubDNS is the ClusterIP of a name server that answers every name. It is fixed
	// because pod specs and the ConfigMap kube-dns need it before the Service exists.
	stubDNS = "10.96.53.53"
	// bigSize is the number of addresses of the Service big. 90 of them need 1,500
	// bytes, more than the EDNS sizes of 512 and 1,232 bytes.
	bigSize = 90
	// maxSearchDomains and maxSearch are the limits of a pod's search path, in domains and
	// characters (validation of dnsConfig, since Kubernetes 1.22).
	maxSearchDomains, maxSearchLength = 32, 2048
)

// namesFixture is the pods and Services that the checks of the part names query.
type namesFixture struct {
	client kubernetes.Interface
	nodes  []*cluster.Node
	// coreDNS is an address of the cluster DNS that no agent takes over.
	coreDNS string
	// clusterIP maps NAMESPACE/NAME to ClusterIPs; podIP maps pod names to addresses.
	clusterIP, podIP map[string]string
	// stubStarted receives the result of configuring the stub domain.
	stubStarted chan error
	// marked: the agents' answers have the TTL markTTL.
	marked bool
}

// ordinaryPods returns the pods with default DNS settings on each node, the pods with use-vc, and
// one pod that asks CoreDNS.
func ordinaryPods() []string { return []string{"udp-0", "udp-1", "tcp-0", "tcp-1", "twin"} }

// searchDomains returns the most and longest domains that a pod may have besides its default
// three. Only the last one has names.
func searchDomains() []string {
	const nowhere = ".nx.outside.test"
	const usual, last = "names.svc.cluster.local svc.cluster.local cluster.local", "elsewhere.svc.cluster.local"
	n := maxSearchDomains - 3 - 1
	// The space left for them, with a space before each.
	left := maxSearchLength - len(usual) - 1 - len(last)
	var list []string
	for i := range n {
		size := left/(n-i) - 1
		left -= size + 1
		name := fmt.Sprintf("search-%d.", i)
		list = append(list, name+strings.Repeat("x", size-len(name)-len(nowhere))+nowhere)
	}
	return append(list, last)
}

// bigAddresses returns the addresses of the Service big.
func bigAddresses() []string {
	var list []string
	for i := range bigSize {
		list = append(list, fmt.Sprintf("10.98.0.%d", i+1))
	}
	return list
}

// manifest returns the manifest of the fixture's objects.
func (w *namesFixture) manifest() (string, error) {
	group := func(pod string) string { name, _, _ := strings.Cut(pod, "-"); return name }
	t, err := template.New("names").Funcs(template.FuncMap{"group": group}).Parse(namesYAML)
	if err != nil {
		return "", err
	}
	var nodes []string
	for _, n := range w.nodes {
		nodes = append(nodes, n.Name)
	}
	var out strings.Builder
	err = t.Execute(&out, map[string]any{"Nodes": nodes, "CoreDNS": w.coreDNS, "Stub": stubDNS, "Searches": searchDomains(), "Big": bigAddresses()})
	return out.String(), err
}

// create applies the fixture and waits until its names resolve.
func (w *namesFixture) create(ctx context.Context, s *suite) (seen string, err error) {
	client, err := w.connect(ctx, s)
	if err != nil {
		return "", err
	}
	w.startStubDomain(ctx, s, client)
	return w.createObjects(ctx, s, client)
}

// createObjects applies the manifest and waits until its names resolve.
func (w *namesFixture) createObjects(ctx context.Context, s *suite, client kubernetes.Interface) (seen string, err error) {
	text, err := w.manifest()
	if err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, text, "apply", "--server-side", "-f", "-"); err != nil {
		return "", err
	}
	if err := peer.Await(ctx, "the pods to run", func(ctx context.Context) error { return w.readAddresses(ctx, client) }); err != nil {
		return "", err
	}
	w.client = client
	return fmt.Sprintf("%d pods on %d nodes, %d Services", len(w.podIP), len(w.nodes), len(w.clusterIP)), w.waitVisible(ctx, s)
}

// connect reads the nodes and CoreDNS's address and creates the namespaces.
func (w *namesFixture) connect(ctx context.Context, s *suite) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return nil, err
	}
	if w.nodes = s.cluster.Nodes(); len(w.nodes) < 2 {
		return nil, fmt.Errorf("%d nodes; the names are asked for on two", len(w.nodes))
	}
	upstream, err := client.CoreV1().Services("kube-system").Get(ctx, "kube-dns-upstream", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	w.coreDNS = upstream.Spec.ClusterIP
	return client, createNamespaces(ctx, client)
}

// createNamespaces creates the namespaces and waits for the ServiceAccount that pods need.
func createNamespaces(ctx context.Context, client kubernetes.Interface) error {
	for _, name := range []string{namesNS, elsewhereNS} {
		// The namespace of an earlier part may still be terminating.
		err := peer.Await(ctx, "namespace "+name+" to be created", func(ctx context.Context) error {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	return peer.Await(ctx, "the ServiceAccount default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(namesNS).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// readAddresses reads the addresses. It returns an error while a pod has none or isn't ready.
func (w *namesFixture) readAddresses(ctx context.Context, client kubernetes.Interface) error {
	pods, err := podAddresses(ctx, client)
	if err != nil {
		return err
	}
	if pods["set-0"] == nil || pods["set-1"] == nil {
		return errors.New("the StatefulSet has no two pods yet")
	}
	services, err := serviceAddresses(ctx, client)
	if err != nil {
		return err
	}
	w.podIP, w.clusterIP = firstOf(pods), firstOf(services)
	return checkEndpoints(ctx, client, map[string]int{"cluster": 2, "headless": 2, "set": 2, "querier": 2, "published": 1, "stub": 1})
}

// firstOf returns the first address of each.
func firstOf(all map[string][]string) map[string]string {
	one := make(map[string]string)
	for name, addresses := range all {
		one[name] = addresses[0]
	}
	return one
}

// podAddresses returns the client pods' addresses by name. It returns an error while a pod has
// none or is unexpectedly not ready.
func podAddresses(ctx context.Context, client kubernetes.Interface) (map[string][]string, error) {
	pods, err := client.CoreV1().Pods(namesNS).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := make(map[string][]string)
	for _, p := range pods.Items {
		ready := p.Name == "unready" && p.Status.Phase == corev1.PodRunning
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !ready || len(p.Status.PodIPs) == 0 {
			return nil, fmt.Errorf("pod %s is not ready: %s", p.Name, p.Status.Phase)
		}
		for _, ip := range p.Status.PodIPs {
			all[p.Name] = append(all[p.Name], ip.IP)
		}
	}
	return all, nil
}

// serviceAddresses returns the ClusterIPs of all Services that have one, by NAMESPACE/NAME.
func serviceAddresses(ctx context.Context, client kubernetes.Interface) (map[string][]string, error) {
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := make(map[string][]string)
	for _, s := range services.Items {
		if len(s.Spec.ClusterIPs) > 0 {
			all[s.Namespace+"/"+s.Name] = s.Spec.ClusterIPs
		}
	}
	return all, nil
}

// checkEndpoints returns an error while Services lack ready endpoints. Endpoints appear shortly
// after the pods are ready. CoreDNS must not be asked earlier because it caches answers for 30 s.
func checkEndpoints(ctx context.Context, client kubernetes.Interface, wanted map[string]int) error {
	slices, err := client.DiscoveryV1().EndpointSlices(namesNS).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	count := make(map[string]int)
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				count[s.Labels["kubernetes.io/service-name"]]++
			}
		}
	}
	for service, want := range wanted {
		if count[service] != want {
			return fmt.Errorf("there are %d endpoints of Service %s, not %d", count[service], service, want)
		}
	}
	return nil
}

// waitVisible waits until the DNS servers have seen the objects of the API server.
func (w *namesFixture) waitVisible(ctx context.Context, s *suite) error {
	set := w.podIP["set-0"] + " " + w.podIP["set-1"]
	wants := []string{
		"headless", set, "set", set, "querier", w.podIP["udp-0"] + " " + w.podIP["udp-1"],
		"published", w.podIP["unready"], "cluster", w.clusterIP["names/cluster"],
	}
	return forEach(ordinaryPods()[:2], func(pod string) error {
		for i := 0; i < len(wants); i += 2 {
			f, err := w.watchName(ctx, s, pod, wants[i]+".names.svc.cluster.local", uniqueWords(wants[i+1]))
			if err == nil {
				_, err = f.wait()
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// deleteNamespaces deletes the namespaces without waiting for the pods to end.
func (w *namesFixture) deleteNamespaces(ctx context.Context) error {
	var errs []error
	for _, name := range []string{namesNS, elsewhereNS} {
		errs = append(errs, w.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}
