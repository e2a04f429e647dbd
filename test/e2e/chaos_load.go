package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The load client's program and image.
const (
	loadProgram  = "podload"
	loadImageRef = "load:e2e"
)

// loadImage writes the image of the load client.
func loadImage(ctx context.Context, s *suite) (file string, err error) {
	root := filepath.Join(s.dir, "podload.d")
	program := filepath.Join(s.dir, loadProgram)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./test/e2e/podload")
	build.Dir = s.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the load client: %w\n%s", err, out)
	}
	if err := cluster.CopyFile(root, loadProgram, program); err != nil {
		return "", err
	}
	return s.writeImage(ctx, cluster.Image{Name: loadImageRef, Root: root, Entrypoint: []string{"/" + loadProgram}, Command: []string{"serve", fmt.Sprint(":", loadPort)}})
}

const (
	// chaosNamespace is that of the pods that ask, and of the Services they ask for:
	// an agent has the endpoints of the namespaces of its node's pods in view.
	chaosNamespace = "chaos"
	// chaosNames is how many Services there are: more than one, so that the sockets of
	// the client ask for each; ten times as many would be as many requests to make them.
	chaosNames = 10
	// loadPort is where the pods take jobs.
	loadPort = 7000
	// markTTL is the TTL, in seconds, that the agents' answers get by their Corefile, above
	// every one of the cluster DNS's, whose Corefile says 30 at most.
	markTTL = 60
)

// The addresses in the answers: of the Services' endpoints, and of all names outside.
var (
	serviceAddr = netip.MustParseAddr("192.0.2.53")
	outsideAddr = netip.MustParseAddr(cluster.Outside4)
)

// chaosTest is the state of the part chaos.
type chaosTest struct {
	*suite
	api   kubernetes.Interface
	nodes []*cluster.Node
	// pods maps nodes to the load clients' addresses.
	pods map[string]netip.Addr
	// servers are the queried addresses.
	servers []netip.Addr
	// corefile is the agents' before the part.
	corefile string
	// marked is true once the agents' answers have the TTL markTTL.
	marked bool
	// detail is an additional result of a fault.
	detail string
	// zoneCount numbers the zones of outsideJob, so that each one is new to all caches.
	zoneCount int
}

// connect sets the suite, the API client and the nodes of s's cluster, and reads the agents' Corefile.
func (h *chaosTest) connect(ctx context.Context, s *suite) error {
	api, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return err
	}
	m, err := api.CoreV1().ConfigMaps(agentNamespace).Get(ctx, agentConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}
	h.suite, h.api, h.nodes, h.corefile = s, api, s.cluster.Nodes(), m.Data["Corefile"]
	return nil
}

// setUp creates the pods and Services and waits until each node's agent answers its pod.
func (h *chaosTest) setUp(ctx context.Context, s *suite) (string, error) {
	err := h.connect(ctx, s)
	if err != nil {
		return "", err
	}
	if h.servers == nil {
		h.servers = []netip.Addr{netip.MustParseAddr(localDNS)}
	}
	if _, err := s.cluster.Kubectl(ctx, chaosObjects().String(), "create", "-f", "-"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "-n", chaosNamespace, "rollout", "status", "daemonset/load", "--timeout=90s"); err != nil {
		return "", err
	}
	if h.pods, err = h.findPods(ctx, "load"); err != nil {
		return "", err
	}
	for _, n := range h.nodes {
		if err := h.waitAnswered(ctx, n, h.serviceJob()); err != nil {
			return "", err
		}
	}
	j, k := h.serviceJob(), h.outsideJob()
	return fmt.Sprintf("%d pods, each %d queries/s for Services and %d/s for external names, and %d TCP connections",
		len(h.pods), j.Rate, k.Rate, j.Streams), nil
}

// findPods returns the addresses of a DaemonSet's load clients by node.
func (h *chaosTest) findPods(ctx context.Context, app string) (map[string]netip.Addr, error) {
	list, err := h.api.CoreV1().Pods(chaosNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	pods := make(map[string]netip.Addr)
	for _, p := range list.Items {
		if pods[p.Spec.NodeName], err = netip.ParseAddr(p.Status.PodIP); err != nil {
			return nil, fmt.Errorf("the address of pod %s: %w", p.Name, err)
		}
	}
	if len(pods) != len(h.nodes) {
		return nil, fmt.Errorf("pods ask on %d of %d nodes", len(pods), len(h.nodes))
	}
	return pods, nil
}

// object is an API object, objectList a List of objects.
type (
	object     map[string]any
	objectList []object
)

// chaosObjects returns the objects of the part. The Services are headless and have no pods, so
// all of them can have the one address that the load client expects.
func chaosObjects() objectList {
	items := objectList{
		object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": chaosNamespace}},
		loadDaemonSet("load"),
	}
	for n := range chaosNames {
		name := fmt.Sprintf("name-%d", n)
		items = append(items, selectorlessService(name, "None"), endpointSlice(name, serviceAddr.String()))
	}
	return items
}

// endpointSlice returns an EndpointSlice of the Service.
func endpointSlice(service, address string) object {
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  object{"name": service, "namespace": chaosNamespace, "labels": object{"kubernetes.io/service-name": service}},
		"ports":     []any{object{"name": "dns", "port": 53}},
		"endpoints": []any{object{"addresses": []any{address}}},
	}
}

// loadDaemonSet returns a DaemonSet of load clients.
func loadDaemonSet(app string) object {
	return object{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": object{"name": app, "namespace": chaosNamespace},
		"spec": object{
			"selector": object{"matchLabels": object{"app": app}},
			"template": object{
				"metadata": object{"labels": object{"app": app}},
				"spec": object{
					"terminationGracePeriodSeconds": 0,
					"automountServiceAccountToken":  false,
					"tolerations":                   []any{object{"operator": "Exists"}},
					"containers": []any{object{
						"name": "load", "image": loadImageRef, "imagePullPolicy": "Never",
						"readinessProbe": object{"tcpSocket": object{"port": loadPort}, "periodSeconds": 1},
					}},
				},
			},
		},
	}
}

// selectorlessService returns a Service without a selector.
func selectorlessService(name, clusterIP string) object {
	return object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": chaosNamespace},
		"spec": object{"clusterIP": clusterIP, "ports": []any{object{"name": "dns", "port": 53}}},
	}
}

// String returns the List as JSON.
func (t objectList) String() string {
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": t})
	if err != nil {
		panic(err) // unreachable: only strings, numbers and lists
	}
	return string(text)
}

// serviceJob queries the Services' names, which the node's agent answers from its view. The rates
// are those of a busy node and leave most of two cores to the cluster.
func (h *chaosTest) serviceJob() load.Job {
	j := load.Job{
		Local: serviceAddr, Cluster: serviceAddr, Names: chaosNames, Zone: chaosNamespace + ".svc." + cluster.Domain + ".",
		Rate: 1000, Sockets: 64, QueriesPerSocket: 64, Streams: 4, StreamRate: 25, OneShots: 25,
	}
	if h.marked {
		j.TTL = markTTL
	}
	return h.commonJob(j)
}

// outsideJob queries external names. One query in ten is for a new name. The answers don't show
// which server sent them.
func (h *chaosTest) outsideJob() load.Job {
	h.zoneCount++
	return h.commonJob(load.Job{
		Local: outsideAddr, Names: chaosNames, FreshEvery: 10, Zone: fmt.Sprintf("chaos-%d.outside.test.", h.zoneCount),
		Rate: 300, Sockets: 32, QueriesPerSocket: 64,
	})
}

// commonJob fills in the common fields. Duration only bounds a hanging fault; Timeout is less than
// the resolvers' five seconds before a retry.
func (h *chaosTest) commonJob(j load.Job) load.Job {
	for _, server := range h.servers {
		j.Servers = append(j.Servers, netip.AddrPortFrom(server, 53))
	}
	j.Duration, j.Timeout = 5*time.Minute, 4*time.Second
	return j
}

// startJob starts the job in the node's load client.
func (h *chaosTest) startJob(ctx context.Context, n *cluster.Node, j load.Job) (*load.Client, error) {
	pod, ok := h.pods[n.Name]
	if !ok {
		return nil, errNoLoadPods
	}
	return h.startJobIn(ctx, pod, j)
}

// startJobIn starts the job in the load client at the address.
func (h *chaosTest) startJobIn(ctx context.Context, pod netip.Addr, j load.Job) (*load.Client, error) {
	to := netip.AddrPortFrom(pod, loadPort).String()
	return load.StartCommand(j, h.cluster.Command(ctx, filepath.Join(h.dir, loadProgram), "dial", to))
}

// loadMargin is the length of the load before and after an event.
const loadMargin = 500 * time.Millisecond

// underLoad runs the event while the load clients of all nodes send queries, and returns the
// losses in the order of the nodes. The event returns the agents it killed, by node.
func (h *chaosTest) underLoad(ctx context.Context, event func(context.Context) (map[string]podKill, error)) (perNode []losses, err error) {
	var clients [][]*load.Client
	for _, n := range h.nodes {
		t := losses{node: n.Name, jobs: []load.Job{h.serviceJob(), h.outsideJob()}}
		var asking []*load.Client
		for _, j := range t.jobs {
			c, err := h.startJob(ctx, n, j)
			if err != nil {
				return nil, errors.Join(err, stopClients(append(clients, asking)))
			}
			asking = append(asking, c)
		}
		perNode, clients = append(perNode, t), append(clients, asking)
	}
	sleep(ctx, loadMargin)
	kills, err := event(ctx)
	sleep(ctx, loadMargin)
	for i, asking := range clients {
		perNode[i].podKill = kills[perNode[i].node]
		for _, c := range asking {
			r, failed := c.Stop()
			err = errors.Join(err, failed)
			perNode[i].reports = append(perNode[i].reports, r)
		}
	}
	return perNode, err
}

// stopClients stops the clients and discards their reports.
func stopClients(clients [][]*load.Client) (err error) {
	for _, asking := range clients {
		for _, c := range asking {
			_, failed := c.Stop()
			err = errors.Join(err, failed)
		}
	}
	return err
}

// sleep lets the load run for d. It must not replace waiting for a condition.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// shortJob returns a short version of the job.
func shortJob(j load.Job) load.Job {
	j.Rate, j.Sockets, j.Streams, j.OneShots, j.Duration = 100, 4, 0, 0, 100*time.Millisecond
	j.Timeout = time.Second
	return j
}

// waitAnswered waits until the node's agent answers all queries of a short run of the job.
func (h *chaosTest) waitAnswered(ctx context.Context, n *cluster.Node, j load.Job) error {
	return peer.Await(ctx, "the agent of "+n.Name+" to answer below "+j.Zone, func(ctx context.Context) error {
		c, err := h.startJob(ctx, n, shortJob(j))
		if err != nil {
			return err
		}
		r, err := c.Wait()
		if err == nil && (r.UDP.Asked == 0 || r.UDP.Local != r.UDP.Asked) {
			err = errors.New(strings.ReplaceAll(reportWithRuns(r), "\n", "; "))
		}
		return err
	})
}

// pollInterval is the time between two polls of the API server.
const pollInterval = 200 * time.Millisecond

// waitAgentsReady waits until every node has one ready agent and no terminating one.
func (h *chaosTest) waitAgentsReady(ctx context.Context) error {
	return peer.Await(ctx, "one ready agent on every node", func(ctx context.Context) error {
		list, err := h.agentPods(ctx)
		if err == nil && len(list) != len(h.nodes) {
			err = fmt.Errorf("there are %d", len(list))
		}
		for _, p := range list {
			if p.DeletionTimestamp != nil || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				err = fmt.Errorf("%s is not ready, or ends", p.Name)
			}
		}
		if err != nil {
			sleep(ctx, pollInterval)
		}
		return err
	})
}

// agentPods returns the agents' pods.
func (h *chaosTest) agentPods(ctx context.Context) ([]corev1.Pod, error) {
	if h.api == nil {
		return nil, errNoLoadPods
	}
	list, err := h.api.CoreV1().Pods(agentNamespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=" + agentDaemonSet})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// The agents' namespace, and the names of their DaemonSet and ConfigMap.
const (
	agentNamespace = "kube-system"
	agentDaemonSet = "node-local-dns"
	agentConfigMap = "nodens"
)
