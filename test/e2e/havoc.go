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
	"github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/peer"
)

// The program that asks, in its image, and the image's name.
const (
	loadProgram = "load"
	loadName    = "load:e2e"
)

// loadImage writes the image of the pods that ask.
func loadImage(ctx context.Context, s *suite) (file string, err error) {
	root := filepath.Join(s.dir, "load.d")
	program := filepath.Join(s.dir, loadProgram)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./test/e2e/load")
	build.Dir = s.root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the load client: %w\n%s", err, out)
	}
	if err := cluster.CopyFile(root, "load", program); err != nil {
		return "", err
	}
	return s.image(ctx, cluster.Image{Name: loadName, Root: root, Entrypoint: []string{"/load"}, Command: []string{"serve", fmt.Sprint(":", loadPort)}})
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
	fromService = netip.MustParseAddr("192.0.2.53")
	fromOutside = netip.MustParseAddr(cluster.Outside4)
)

// havoc is the part: what befalls a cluster whose pods go on asking.
type havoc struct {
	*suite
	api   kubernetes.Interface
	nodes []*cluster.Node
	// pods are the addresses of those that ask, by node.
	pods map[string]netip.Addr
	// corefile is the agents' before the part.
	corefile string
	// marked says that the agents' answers have the TTL markTTL by now.
	marked bool
	// note is what else a mishap has shown.
	note string
	// zones counts those below which nobody has asked for anything yet.
	zones int
}

// begin makes the pods and Services, and waits until every pod asks its node's agent.
func (h *havoc) begin(ctx context.Context, s *suite) (string, error) {
	api, err := kubernetes.NewForConfig(s.cluster.Config())
	if err != nil {
		return "", err
	}
	old, err := api.CoreV1().ConfigMaps(agentSpace).Get(ctx, agentSet, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	h.suite, h.api, h.nodes, h.corefile = s, api, s.cluster.Nodes(), old.Data["Corefile"]
	if _, err := s.cluster.Kubectl(ctx, chaosThings().String(), "create", "-f", "-"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "-n", chaosNamespace, "rollout", "status", "daemonset/load", "--timeout=90s"); err != nil {
		return "", err
	}
	if err := h.find(ctx); err != nil {
		return "", err
	}
	for _, n := range h.nodes {
		if err := h.answered(ctx, n, h.services()); err != nil {
			return "", err
		}
	}
	j, k := h.services(), h.outside()
	return fmt.Sprintf("%d pods, each %d questions a second for Services and %d for names outside, and %d TCP connections",
		len(h.pods), j.Rate, k.Rate, j.Streams), nil
}

// find notes the addresses of the pods that ask.
func (h *havoc) find(ctx context.Context) error {
	list, err := h.api.CoreV1().Pods(chaosNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=load"})
	if err != nil {
		return err
	}
	h.pods = make(map[string]netip.Addr)
	for _, p := range list.Items {
		if h.pods[p.Spec.NodeName], err = netip.ParseAddr(p.Status.PodIP); err != nil {
			return fmt.Errorf("the address of pod %s: %w", p.Name, err)
		}
	}
	if len(h.pods) != len(h.nodes) {
		return fmt.Errorf("pods ask on %d of %d nodes", len(h.pods), len(h.nodes))
	}
	return nil
}

// thing is an object of the API, and things are a List of them.
type (
	thing  map[string]any
	things []thing
)

// chaosThings are the objects of the part. The Services are headless and have no pods, so
// that all have the same address, by which answers are judged.
func chaosThings() things {
	items := things{
		thing{"apiVersion": "v1", "kind": "Namespace", "metadata": thing{"name": chaosNamespace}},
		thing{
			"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": thing{"name": "load", "namespace": chaosNamespace},
			"spec": thing{
				"selector": thing{"matchLabels": thing{"app": "load"}},
				"template": thing{
					"metadata": thing{"labels": thing{"app": "load"}},
					"spec": thing{
						"terminationGracePeriodSeconds": 0,
						"automountServiceAccountToken":  false,
						"tolerations":                   []any{thing{"operator": "Exists"}},
						"containers": []any{thing{
							"name": "load", "image": loadName, "imagePullPolicy": "Never",
							"readinessProbe": thing{"tcpSocket": thing{"port": loadPort}, "periodSeconds": 1},
						}},
					},
				},
			},
		},
	}
	for n := range chaosNames {
		name := fmt.Sprintf("name-%d", n)
		items = append(items, bare(name, "None"), thing{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"metadata":  thing{"name": name, "namespace": chaosNamespace, "labels": thing{"kubernetes.io/service-name": name}},
			"ports":     []any{thing{"name": "dns", "port": 53}},
			"endpoints": []any{thing{"addresses": []any{fromService.String()}}},
		})
	}
	return items
}

// bare is a Service without pods.
func bare(name, clusterIP string) thing {
	return thing{
		"apiVersion": "v1", "kind": "Service", "metadata": thing{"name": name, "namespace": chaosNamespace},
		"spec": thing{"clusterIP": clusterIP, "ports": []any{thing{"name": "dns", "port": 53}}},
	}
}

// String is the List as text.
func (t things) String() string {
	text, err := json.Marshal(thing{"apiVersion": "v1", "kind": "List", "items": t})
	if err != nil {
		panic(err) // strings and numbers have a form in JSON
	}
	return string(text)
}

// services asks for the Services' names: what a node's agent answers out of its view.
// Rates are those of a node that is busy, and leave most of two cores to a cluster that
// is being broken; with half of them a loss of a hundredth of a second shows as five.
func (h *havoc) services() load.Job {
	j := load.Job{
		Local: fromService, Cluster: fromService, Names: chaosNames, Zone: chaosNamespace + ".svc." + cluster.Domain + ".",
		Rate: 1000, Sockets: 64, QueriesPerSocket: 64, Streams: 4, StreamRate: 25, OneShots: 25,
	}
	if h.marked {
		j.TTL = markTTL
	}
	return h.usual(j)
}

// outside asks for names outside of the cluster, one in ten of which has not been asked
// for before. Nothing tells who has answered.
func (h *havoc) outside() load.Job {
	h.zones++
	return h.usual(load.Job{
		Local: fromOutside, Names: chaosNames, FreshEvery: 10, Zone: fmt.Sprintf("chaos-%d.outside.test.", h.zones),
		Rate: 300, Sockets: 32, QueriesPerSocket: 64,
	})
}

// usual fills in what both have in common. The length is that of a part that hangs, and
// an answer has to come before resolvers in pods ask again.
func (h *havoc) usual(j load.Job) load.Job {
	j.Servers = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(localDNS), 53)}
	j.Duration, j.Timeout = 5*time.Minute, 4*time.Second
	return j
}

// ask starts the job in the node's pod.
func (h *havoc) ask(ctx context.Context, n *cluster.Node, j load.Job) (*load.Client, error) {
	pod, ok := h.pods[n.Name]
	if !ok {
		return nil, errNotBegun
	}
	to := netip.AddrPortFrom(pod, loadPort).String()
	return load.StartCommand(j, h.cluster.Command(ctx, filepath.Join(h.dir, loadProgram), "dial", to))
}

// calm is how long is asked before an event and after it: some hundred questions of each
// kind. Twice that would cost ten seconds over all events.
const calm = 500 * time.Millisecond

// under has the event happen while the pods of all nodes ask, and gives what became of
// their questions, in the order of the nodes. The event returns when all is as before,
// and what agents it has killed, by node.
func (h *havoc) under(ctx context.Context, event func(context.Context) (map[string]death, error)) (tolls []toll, err error) {
	var clients [][]*load.Client
	for _, n := range h.nodes {
		t := toll{node: n.Name, jobs: []load.Job{h.services(), h.outside()}}
		var asking []*load.Client
		for _, j := range t.jobs {
			c, err := h.ask(ctx, n, j)
			if err != nil {
				return nil, errors.Join(err, hush(append(clients, asking)))
			}
			asking = append(asking, c)
		}
		tolls, clients = append(tolls, t), append(clients, asking)
	}
	linger(ctx, calm)
	deaths, err := event(ctx)
	linger(ctx, calm)
	for i, asking := range clients {
		tolls[i].death = deaths[tolls[i].node]
		for _, c := range asking {
			r, failed := c.Stop()
			err = errors.Join(err, failed)
			tolls[i].reports = append(tolls[i].reports, r)
		}
	}
	return tolls, err
}

// hush stops the clients.
func hush(clients [][]*load.Client) (err error) {
	for _, asking := range clients {
		for _, c := range asking {
			_, failed := c.Stop()
			err = errors.Join(err, failed)
		}
	}
	return err
}

// linger is a length of the load, not a wait for something.
func linger(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// glance is a job that is over at once.
func glance(j load.Job) load.Job {
	j.Rate, j.Sockets, j.Streams, j.OneShots, j.Duration = 100, 4, 0, 0, 100*time.Millisecond
	j.Timeout = time.Second
	return j
}

// answered waits until the node's agent answers the job's questions, all of them.
func (h *havoc) answered(ctx context.Context, n *cluster.Node, j load.Job) error {
	return peer.Await(ctx, "the agent of "+n.Name+" to answer below "+j.Zone, func(ctx context.Context) error {
		c, err := h.ask(ctx, n, glance(j))
		if err != nil {
			return err
		}
		r, err := c.Wait()
		if err == nil && (r.UDP.Asked == 0 || r.UDP.Local != r.UDP.Asked) {
			err = errors.New(strings.ReplaceAll(unusual(r), "\n", "; "))
		}
		return err
	})
}

// lookAgain is the time between two requests to the API server for the same: a few within
// the second that a kubelet takes to notice anything.
const lookAgain = 200 * time.Millisecond

// settled waits until every node has one agent, which is ready, and none that ends.
func (h *havoc) settled(ctx context.Context) error {
	return peer.Await(ctx, "one ready agent on every node", func(ctx context.Context) error {
		list, err := h.agents(ctx)
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
			linger(ctx, lookAgain)
		}
		return err
	})
}

// agents are the pods of the agents.
func (h *havoc) agents(ctx context.Context) ([]corev1.Pod, error) {
	if h.api == nil {
		return nil, errNotBegun
	}
	list, err := h.api.CoreV1().Pods(agentSpace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=" + agentSet})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// The agents' namespace, and the name of their DaemonSet and ConfigMap.
const (
	agentSpace = "kube-system"
	agentSet   = "node-local-dns"
)
