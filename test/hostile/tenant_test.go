package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
	"github.com/nodens-dns/nodens/test/scrape"
)

// A tenant can write objects in its own namespace and send queries. TestTenants compares what each attack of that kind does
// to others with a control, a run of the same agent, objects and queries without the attack.
func TestTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("twelve agents: skipped under -short")
	}
	control := runTenant(t, nil)
	if control.answered != victimQueries {
		t.Fatalf("%d of %d queries answered without an attack", control.answered, victimQueries)
	}
	for name, attack := range map[string]func(*tenant) error{
		"addresses and ports of a Service": func(n *tenant) error {
			svc := tenantService("lists", "10.96.9.1")
			svc.Spec.ExternalIPs = addrList(30_000)
			for i := range 20_000 {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1)})
			}
			for i := range 3 {
				svc.Labels = map[string]string{"patch": strconv.Itoa(i)}
				n.api.Put(svc.DeepCopy())
			}
			return nil
		},
		"addresses of endpoints": func(n *tenant) error {
			n.api.Put(tenantService("many", corev1.ClusterIPNone))
			for i := range 5 {
				n.api.Put(tenantSlice("many", i, 200, 100))
			}
			return nil
		},
		"long name of an owner": func(n *tenant) error {
			yes := true
			n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace, Annotations: map[string]string{"nodens.dev/client-metrics": "workload"}}})
			n.api.Put(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: "p", Namespace: tenantNamespace, UID: "p",
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "StatefulSet", Name: strings.Repeat("x", 1<<20), UID: "o", Controller: &yes}},
				},
				Spec: corev1.PodSpec{NodeName: tenantNode}, Status: corev1.PodStatus{PodIP: "127.0.0.7", PodIPs: []corev1.PodIP{{IP: "127.0.0.7"}}},
			})
			return n.flood("udp", 20, "web."+victimNamespace+".svc.cluster.local.")
		},
		"faults of objects": func(n *tenant) error {
			n.api.Put(tenantService("faulty", corev1.ClusterIPNone))
			for i := range 50 {
				es := tenantSlice("faulty", 0, 1000, 1)
				es.Labels["patch"] = strconv.Itoa(i)
				for j := range es.Endpoints {
					es.Endpoints[j].Addresses = []string{strings.Repeat("no address ", 100)}
				}
				n.api.Put(es)
			}
			return nil
		},
		"scrapes in a loop": func(n *tenant) error { return n.scrapeLoop(8, 50) },
		"busy connections":  func(n *tenant) error { return n.flood("tcp", 1024, "silent.example.") },
		"long answers over TCP": func(n *tenant) error {
			n.api.Put(tenantService("long", corev1.ClusterIPNone))
			for i := range 3 {
				n.api.Put(tenantSlice("long", i, 1000, 1))
			}
			return n.flood("tcp", 64, "long."+tenantNamespace+".svc.cluster.local.")
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := runTenant(t, attack)
			t.Logf("control %+v, attacked %+v", control, got)
			if got.answered != victimQueries {
				t.Errorf("others got %d of %d answers", got.answered, victimQueries)
			}
			if limit := control.rss*3/2 + 16<<20; got.rss > limit {
				t.Errorf("%d MiB resident, want %d or less", got.rss>>20, limit>>20)
			}
			if limit := 3 * control.metrics; got.metrics > limit {
				t.Errorf("%d bytes of metrics, want %d or less", got.metrics, limit)
			}
			if limit := control.log + 8<<10; got.log > limit {
				t.Errorf("%d bytes of log, want %d or less", got.log, limit)
			}
		})
	}
}

const (
	tenantNode, tenantNamespace, victimNamespace = "n1", "tenant", "shop"
	// victimQueries are the queries of others beside an attack, half of them over TCP.
	victimQueries = 400
)

// tenantCorefile has a resolver that never answers.
const tenantCorefile = `.:%d {
    bind 127.0.0.1
    kubernetes cluster.local in-addr.arpa {
        endpoint %s
        scope cluster
    }
    cache
    forward . %s
    prometheus 127.0.0.1:%d
}
`

// tenant is an agent, its API server, and the tenant's traffic.
type tenant struct {
	api      *fakeapi.Server
	addr     string
	metrics  string // URL
	stop     chan struct{}
	underway sync.WaitGroup
}

// outcome is what others notice.
type outcome struct {
	answered     int
	rss          uint64 // bytes
	metrics, log int    // bytes
}

// runTenant attacks an agent, asks as others do meanwhile, and creates a Service that others wait for. attack may be nil. It
// returns when its traffic runs.
func runTenant(t *testing.T, attack func(*tenant) error) outcome {
	t.Helper()
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	check.NoError(t, err)
	defer silent.Close()
	ports, dir := peer.Ports(t, 2), t.TempDir()
	n := &tenant{
		api: fakeapi.Start(t), addr: fmt.Sprintf("127.0.0.1:%d", ports[0]), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", ports[1]),
		stop: make(chan struct{}),
	}
	for _, ns := range []string{victimNamespace, tenantNamespace} {
		n.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	n.api.Put(victimService("web", "10.96.7.1"))
	text := fmt.Sprintf(tenantCorefile, ports[0], n.api.URL, silent.LocalAddr(), ports[1])
	p := peer.StartServer(t, text, peer.Command{Name: "nodens", Dir: dir, Env: []string{"NODE_NAME=" + tenantNode}})
	p.Must(t, "the agent's answers", peer.Answers(netip.MustParseAddrPort(n.addr)))
	if attack != nil {
		check.NoError(t, attack(n))
	}
	defer n.underway.Wait()
	defer close(n.stop)
	var out outcome
	out.answered = n.askAsOthers()
	n.api.Put(victimService("late", "10.96.7.2"))
	p.Must(t, "the new Service of others", func(context.Context) error { return n.ask("udp", "late."+victimNamespace+".svc.cluster.local.") })
	out.measure(t, n, p, dir)
	return out
}

// measure reads what the agent holds, says and shows.
func (o *outcome) measure(t *testing.T, n *tenant, p *peer.Process, dir string) {
	t.Helper()
	var text string
	p.Must(t, "the metrics", func(ctx context.Context) (err error) { // the attacker's connections may leave no room for another one
		text, err = scrape.Text(ctx, http.DefaultClient, n.metrics)
		return err
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	check.NoError(t, err)
	logs, err := filepath.Glob(filepath.Join(dir, "nodens-*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %v: %v", logs, err)
	}
	info, err := os.Stat(logs[0])
	check.NoError(t, err)
	o.rss, _ = memory(string(status))
	o.metrics, o.log = len(text), int(info.Size())
}

// askAsOthers sends the queries of others, and returns how many were answered.
func (n *tenant) askAsOthers() (answered int) {
	for i := range victimQueries {
		if n.ask([]string{"udp", "tcp"}[i%2], "web."+victimNamespace+".svc.cluster.local.") == nil {
			answered++
		}
	}
	return answered
}

// ask sends one query for an address from 127.0.0.1, and waits for the answer.
func (n *tenant) ask(network, name string) error {
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	client := dns.Client{Net: network, Timeout: 5 * time.Second}
	reply, _, err := client.Exchange(q, n.addr)
	if err == nil && (reply.Rcode != dns.RcodeSuccess || len(reply.Answer) == 0) {
		err = fmt.Errorf("%s: %s, %d answers", name, dns.RcodeToString[reply.Rcode], len(reply.Answer))
	}
	return err
}

// flood opens connections from addresses of the tenant, eight at most, and asks for name on each, again when there is a reply.
func (n *tenant) flood(network string, conns int, name string) error {
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	for i := range conns {
		from := net.ParseIP(fmt.Sprintf("127.0.0.%d", 7+i%8))
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: 5 * time.Second}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: from}
		}
		c, err := d.Dial(network, n.addr)
		if err != nil {
			return fmt.Errorf("connection %d of the flood: %w", i, err)
		}
		conn := &dns.Conn{Conn: c}
		n.underway.Go(func() { <-n.stop; c.Close() })
		n.underway.Go(func() {
			for conn.WriteMsg(q) == nil {
				if _, err := conn.ReadMsg(); err != nil && !errors.Is(err, dns.ErrBuf) {
					return
				}
				select {
				case <-n.stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	return nil
}

// scrapeLoop requests the metrics in a loop on that many connections, that many times each.
func (n *tenant) scrapeLoop(conns, times int) error {
	for range conns {
		n.underway.Go(func() {
			for range times {
				resp, err := http.Get(n.metrics)
				if err != nil {
					return
				}
				resp.Body.Close()
			}
		})
	}
	return nil
}

func tenantService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tenantNamespace},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}},
	}
}

func victimService(name, ip string) *corev1.Service {
	s := tenantService(name, ip)
	s.Namespace = victimNamespace
	return s
}

// tenantSlice returns a slice of a headless Service with that many endpoints of that many addresses.
func tenantSlice(service string, n, endpoints, each int) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", service, n), Namespace: tenantNamespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: service, corev1.IsHeadlessService: ""},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	all := addrList(endpoints * each)
	for i := range endpoints {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: all[i*each : (i+1)*each]})
	}
	return es
}

// addrList returns n addresses.
func addrList(n int) []string {
	list, a := make([]string, n), netip.MustParseAddr("11.0.0.0")
	for i := range list {
		a = a.Next()
		list[i] = a.String()
	}
	return list
}
