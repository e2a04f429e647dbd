package resolver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/hosts"
	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/server/template"
	"github.com/nodens-dns/nodens/server/transfer"
	"github.com/nodens-dns/nodens/server/zonefile"
	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/soak"
)

// tenants are clients by their address: pods of three namespaces, and one that is no pod.
var tenants = map[string]string{"10.244.0.1": "a", "10.244.0.2": "b", "10.244.0.3": "c", "192.0.2.7": ""}

// tenantCluster is a cluster with the pods of tenants.
type tenantCluster struct{ *kubernetes.Zone }

func (tenantCluster) ClientNamespace(client netip.Addr) ([]byte, bool) {
	ns := tenants[client.String()]
	return append([]byte{byte(len(ns))}, ns...), ns != ""
}

// tenantDesk answers tenants as a Corefile says, from the objects in a file.
type tenantDesk struct {
	*counterDesk
	all      *transfer.Transfers
	epochs   *epoch.Table
	policies *zonefile.Policies // of the last block that has some
}

func newTenantDesk(t testing.TB, corefile, manifests string) *tenantDesk {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(config.Source{Text: []byte(strings.ReplaceAll(corefile, "OBJECTS", file))})
	if err != nil {
		t.Fatalf("%v in\n%s", err, corefile)
	}
	d := &tenantDesk{all: transfer.NewTransfers(nil), epochs: epoch.New(make([]atomic.Uint64, epoch.Words(12)), 1, 12)}
	views := make(map[string]*kubernetes.View)
	var zones []*resolver.Zone
	for _, b := range c.Blocks {
		for _, name := range b.Zones {
			z := &resolver.Zone{Name: name, AgentOnly: b.NeedsAgent()}
			d.install(t, z, b, func(cfg *config.Kubernetes) *kubernetes.View {
				key := fmt.Sprint(cfg.Labels, cfg.NoEndpoints)
				if views[key] == nil {
					if views[key], err = kubernetes.Open(cfg, kubernetes.Options{Epochs: d.epochs, ServerAddrs: []netip.Addr{netip.MustParseAddr(agentAddr)}}); err != nil {
						t.Fatal(err)
					}
				}
				return views[key]
			})
			zones = append(zones, z)
		}
	}
	d.counterDesk = newDesk(t, zones...)
	d.x.Sources = new(resolver.ReplySources)
	d.rt.Owners = clients.New(clients.Options{})
	for addr, ns := range tenants {
		if ns != "" {
			d.rt.Owners.SetPod(netip.MustParseAddr(addr), clients.Pod{Namespace: ns, Name: "pod", UID: addr})
		}
	}
	return d
}

// agentAddr is the address of the agent, which has endpoints.
const agentAddr = "10.244.9.9"

// install sets b's directives in z.
func (d *tenantDesk) install(t testing.TB, z *resolver.Zone, b *config.Block, view func(*config.Kubernetes) *kubernetes.View) {
	if b.View != nil {
		z.View = resolver.NewView(b.View, netip.MustParseAddrPort("192.0.2.53:53"))
	}
	if b.Metadata != nil {
		z.Metadata = b.Metadata.Zones
	}
	if b.ACL != nil {
		z.ACL = resolver.NewACL(b.ACL)
	}
	if b.RPZ != nil {
		p, err := zonefile.NewPolicies(b.RPZ, zonefile.NewPrimaries(), zonefile.Options{}, d.epochs.BumpAll)
		if err != nil {
			t.Fatal(err)
		}
		z.RPZ, d.policies = p, p
	}
	if b.Template != nil {
		z.Template = template.New(b.Template)
	}
	if b.Transfer != nil {
		z.Transfer = transfer.New(b.Transfer, d.all)
	}
	if b.Hosts != nil {
		h, err := hosts.New(b.Hosts, hosts.Options{})
		if err != nil {
			t.Fatal(err)
		}
		z.Hosts = h
	}
	if b.Kubernetes == nil {
		return
	}
	v := view(b.Kubernetes)
	z.Cluster = tenantCluster{kubernetes.NewZone(v, b.Kubernetes)}
	if b.K8sExternal != nil {
		z.External = kubernetes.NewExternal(v, b.K8sExternal, b.Kubernetes)
	}
	if b.Autopath != nil {
		z.Autopath = resolver.NewAutopath(b.Autopath, z.Cluster)
	}
}

// answer returns the reply of client's query over TCP, with all records of a transfer; nil is none.
func (d *tenantDesk) answer(client, name string, qtype uint16) *dns.Msg {
	d.t.Helper()
	d.from(client+":53", resolver.TCP)
	m := question(name, qtype)
	m.SetEdns0(1232, false)
	if qtype != dns.TypeAXFR {
		d.x.Streams = false
		return d.ask(m)
	}
	packet, err := m.Pack()
	if err != nil {
		d.t.Fatal(err)
	}
	d.x.Query.Packet, d.x.Streams = packet, true
	d.x.Permit(context.Background())
	defer d.x.Forbid()
	msg, _ := serve(d.rt, &d.x, d.out)
	var whole *dns.Msg
	for transfers := d.x.Transfers(); msg != nil; msg = d.x.NextMessage() {
		part := new(dns.Msg)
		if err := part.Unpack(msg); err != nil {
			d.t.Fatal(err)
		}
		if whole == nil {
			whole = part
		} else {
			whole.Answer = append(whole.Answer, part.Answer...)
		}
		if !transfers {
			return whole
		}
	}
	if d.x.Transfers() { // a query that is dropped has no reply
		d.x.EndTransfer(true)
	}
	return whole
}

// detourObjects are two namespaces, of which a may not know b.
const detourObjects = `
{kind: Service, apiVersion: v1, metadata: {name: web, namespace: a}, spec: {clusterIP: 10.96.1.1}}
---
{kind: Service, apiVersion: v1, metadata: {name: db, namespace: b}, spec: {clusterIP: 10.96.2.1, externalIPs: [203.0.113.2], ports: [{name: sql, port: 5432, protocol: TCP}]}}
---
{kind: Service, apiVersion: v1, metadata: {name: dns, namespace: b}, spec: {clusterIP: 10.96.2.2, selector: {app: agent}, ports: [{name: dns, port: 53, protocol: UDP}]}}
---
{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: dns-1, namespace: b, labels: {kubernetes.io/service-name: dns}}, addressType: IPv4, endpoints: [{addresses: [` + agentAddr + `]}], ports: [{name: dns, port: 53, protocol: UDP}]}
---
{kind: Service, apiVersion: v1, metadata: {name: peers, namespace: b}, spec: {clusterIP: None, ports: [{name: gossip, port: 7000, protocol: TCP}]}}
---
{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: peers-1, namespace: b, labels: {kubernetes.io/service-name: peers, service.kubernetes.io/headless: ""}}, addressType: IPv4, endpoints: [{addresses: [10.244.2.1], hostname: n1}], ports: [{name: gossip, port: 7000, protocol: TCP}]}
---
{kind: Service, apiVersion: v1, metadata: {name: alias, namespace: a}, spec: {type: ExternalName, externalName: db.b.svc.cluster.local}}
---
{kind: Service, apiVersion: v1, metadata: {name: chain, namespace: a}, spec: {type: ExternalName, externalName: alias.a.svc.cluster.local}}
`

// TestDetours: whichever directive keeps the names of a namespace from a client, no detour leads to one.
func TestDetours(t *testing.T) {
	const (
		open = `. {
			kubernetes cluster.local in-addr.arpa {
				manifests OBJECTS
			}
			k8s_external ext.test 113.0.203.in-addr.arpa
			autopath @kubernetes
			transfer cluster.local ext.test {
				to *
			}
		`
		pods = "metadata\nview pods {\nexpr metadata('kubernetes/client-namespace') == 'a'\n}\n"
		ofB  = "b.svc.cluster.local b.ext.test"
	)
	for name, corefile := range map[string]string{
		"acl":                           open + "acl " + ofB + " {\nblock net 10.244.0.1\n}\n}\n",
		"acl of another block":          open + "}\n" + ofB + " {\nacl {\nblock net 10.244.0.1\n}\nkubernetes cluster.local {\nmanifests OBJECTS\n}\nk8s_external ext.test\n}\n",
		"acl that filters":              open + "acl " + ofB + " {\nfilter net 10.244.0.1\n}\n}\n",
		"a template in the view":        open + pods + "template ANY ANY " + ofB + " {\nrcode NXDOMAIN\n}\n}\n" + open + "}\n",
		"a template in another block":   open + "}\n" + ofB + " {\n" + pods + "kubernetes cluster.local {\nmanifests OBJECTS\n}\ntemplate ANY ANY {\nrcode NXDOMAIN\n}\n}\n",
		"only others' blocks":           strings.Replace(open, ". {", "cluster.local ext.test {", 1) + strings.Replace(pods, "==", "!=", 1) + "}\n" + strings.Replace(open, ". {", "a.svc.cluster.local in-addr.arpa {", 1) + "}\n",
		"namespaces of the view's zone": strings.Replace(strings.Replace(open, ". {", "cluster.local ext.test {", 1), "OBJECTS", "OBJECTS\nnamespaces a", 1) + pods + "}\n" + open + "}\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := newTenantDesk(t, corefile, detourObjects)
			for _, q := range []struct {
				name  string
				qtype uint16
				told  string // to a client that may know it
			}{
				{"1.2.96.10.in-addr.arpa.", dns.TypePTR, "db.b.svc.cluster.local."},
				{"1.2.244.10.in-addr.arpa.", dns.TypePTR, "n1.peers.b.svc.cluster.local."},
				{"1.2.96.10.in-addr.arpa.", dns.TypeANY, "db.b.svc.cluster.local."},
				{"2.113.0.203.in-addr.arpa.", dns.TypePTR, "db.b.ext.test."},
				{"alias.a.svc.cluster.local.", dns.TypeA, "db.b.svc.cluster.local."},
				{"alias.a.svc.cluster.local.", dns.TypeCNAME, "db.b.svc.cluster.local."},
				{"alias.a.svc.cluster.local.", dns.TypeANY, "db.b.svc.cluster.local."},
				{"chain.a.svc.cluster.local.", dns.TypeA, "db.b.svc.cluster.local."},
				{"cluster.local.", dns.TypeNS, "dns.b.svc.cluster.local."},
				{"cluster.local.", dns.TypeANY, ""},
				{"db.b.a.svc.cluster.local.", dns.TypeA, ""},
				{"db.b.svc.a.svc.cluster.local.", dns.TypeA, ""},
				{"cluster.local.", dns.TypeAXFR, "db.b.svc.cluster.local."},
				{"ext.test.", dns.TypeAXFR, "db.b.ext.test."},
			} {
				if text := fmt.Sprint(d.answer("10.244.0.1", q.name, q.qtype)); strings.Contains(withoutQuestion(text, q.name), "b.svc.cluster.local.") || strings.Contains(text, "b.ext.test.") {
					t.Errorf("%s %s tells\n%s", q.name, dns.TypeToString[q.qtype], text)
				}
				if name == "namespaces of the view's zone" || name == "only others' blocks" {
					continue // where not all zones are served for others
				}
				if text := fmt.Sprint(d.answer("10.244.0.2", q.name, q.qtype)); !strings.Contains(text, q.told) {
					t.Errorf("%s %s does not tell another client %s\n%s", q.name, dns.TypeToString[q.qtype], q.told, text)
				}
			}
		})
	}
}

// withoutQuestion returns a message's text without its question.
func withoutQuestion(text, name string) string { return strings.ReplaceAll(text, ";"+name, "") }

// randomCluster is a cluster of three namespaces.
type randomCluster struct {
	*rand.Rand
	text    strings.Builder
	names   []string          // of all objects
	reverse []string          // of all addresses
	aliases map[string]string // the name that leads to another one
}

func newRandomCluster(r *rand.Rand) *randomCluster {
	c := &randomCluster{Rand: r, aliases: make(map[string]string)}
	c.names = []string{"cluster.local.", "ns.dns.cluster.local.", "dns-version.cluster.local.", "ext.test.", "ns1.dns.ext.test.", "www.example.org.", "no.such.svc.cluster.local."}
	for n, ns := range []string{"a", "b", "c"} {
		c.names = append(c.names, ns+".svc.cluster.local.", ns+".pod.cluster.local.", ns+".ext.test.", fmt.Sprintf("10-244-0-%d.%s.pod.cluster.local.", n+1, ns))
		for i, kind := range []string{"clusterIP", "clusterIP", "headless", "headless", "externalName", "externalName"} {
			c.service(fmt.Sprintf("s%d", i), ns, kind, 10*n+i)
		}
	}
	c.service("server", "c", "agent", 40)
	return c
}

// object adds an object to the text.
func (c *randomCluster) object(format string, args ...any) {
	fmt.Fprintf(&c.text, "---\n"+format+"\n", args...)
}

// service adds a Service, with what belongs to it.
func (c *randomCluster) service(name, ns, kind string, n int) {
	own := name + "." + ns + ".svc.cluster.local."
	c.names = append(c.names, own, "_p._tcp."+own, "_tcp."+own, name+"."+ns+".ext.test.")
	var spec, status string
	switch kind {
	case "externalName":
		target := []string{
			"www.example.org.", fmt.Sprintf("s%d.%s.svc.cluster.local.", c.IntN(6), []string{"a", "b", "c"}[c.IntN(3)]),
			fmt.Sprintf("s%d.%s.ext.test.", c.IntN(2), []string{"a", "b", "c"}[c.IntN(3)]),
		}[c.IntN(3)]
		c.aliases[own] = target
		spec = "type: ExternalName, externalName: " + strings.TrimSuffix(target, ".")
	case "headless":
		spec = "clusterIP: None"
		c.slice(name, ns, n)
	default:
		spec = fmt.Sprintf("clusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%[1]d, 'fd00::%[1]d']", n+1)
		if kind == "agent" {
			spec += ", selector: {app: agent}"
			c.slice(name, ns, n)
		}
		c.reverse = append(c.reverse, reverseOf(fmt.Sprintf("10.96.0.%d", n+1)), reverseOf(fmt.Sprintf("fd00::%d", n+1)))
		switch c.IntN(3) {
		case 0:
			spec += fmt.Sprintf(", externalIPs: [203.0.113.%d, 203.0.113.100]", n+1)
			c.reverse = append(c.reverse, reverseOf(fmt.Sprintf("203.0.113.%d", n+1)))
		case 1:
			status = ", status: {loadBalancer: {ingress: [{hostname: www.example.org}]}}"
			spec += ", type: LoadBalancer"
			c.aliases[name+"."+ns+".ext.test."] = "www.example.org."
		}
	}
	c.object("{kind: Service, apiVersion: v1, metadata: {name: %s, namespace: %s}, spec: {%s, ports: [{name: p, port: 80, protocol: TCP}]}%s}", name, ns, spec, status)
}

// slice adds the endpoints of a Service: some by a host name, one at an address that several Services share.
func (c *randomCluster) slice(name, ns string, n int) {
	own := name + "." + ns + ".svc.cluster.local."
	list := fmt.Sprintf("{addresses: [10.244.7.%d], hostname: h1}, {addresses: [10.244.7.200], hostname: h2}, {addresses: [10.244.8.%[1]d]}, {addresses: [10.244.9.%[1]d], conditions: {ready: false}}", n+1)
	if name == "server" {
		list = fmt.Sprintf("{addresses: [%s]}", agentAddr)
	}
	c.names = append(c.names, "h1."+own, "h2."+own, fmt.Sprintf("10-244-8-%d.%s", n+1, own))
	c.reverse = append(c.reverse, reverseOf(fmt.Sprintf("10.244.7.%d", n+1)), reverseOf(fmt.Sprintf("10.244.8.%d", n+1)))
	c.object("{kind: EndpointSlice, apiVersion: discovery.k8s.io/v1, metadata: {name: %s-1, namespace: %s, labels: {kubernetes.io/service-name: %[1]s, service.kubernetes.io/headless: ''}}, addressType: IPv4, endpoints: [%[3]s], ports: [{name: p, port: 80, protocol: TCP}]}", name, ns, list)
}

func reverseOf(addr string) string {
	name, err := dns.ReverseAddr(addr)
	if err != nil {
		panic(err)
	}
	return name
}

// wholeCluster are the directives of a block that has all names of a cluster.
const wholeCluster = "kubernetes cluster.local in-addr.arpa ip6.arpa {\nmanifests OBJECTS\npods insecure\nOPTIONS\n}\nautopath @kubernetes\n"

// externalAndTransfer are directives because of which a block's answers are not copied.
const externalAndTransfer = "k8s_external ext.test 113.0.203.in-addr.arpa\ntransfer cluster.local ext.test {\nto *\n}\nhosts {\n203.0.113.250 www.example.org\nfallthrough\n}\n"

// denied returns some names, as zones of an acl or a template.
func (c *randomCluster) denied() string {
	var list []string
	for range 1 + c.IntN(3) {
		list = append(list, c.names[c.IntN(len(c.names))], c.ns()+".svc.cluster.local")
	}
	return strings.Join(list[c.IntN(2):], " ")
}

func (c *randomCluster) ns() string { return []string{"a", "b", "c"}[c.IntN(3)] }

// acls returns random access lists.
func (c *randomCluster) acls() string {
	var b strings.Builder
	for range 1 + c.IntN(3) {
		fmt.Fprintf(&b, "acl %s {\n", c.denied())
		for range 1 + c.IntN(2) {
			b.WriteString([]string{"allow", "block", "block", "filter", "drop"}[c.IntN(5)])
			if c.IntN(3) == 0 {
				b.WriteString(" type " + []string{"A", "AAAA", "A AAAA", "SRV PTR", "ANY"}[c.IntN(5)])
			}
			fmt.Fprintf(&b, " net 10.244.0.%d/%d\n", 1+c.IntN(3), []int{32, 32, 31, 0}[c.IntN(4)])
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// view returns a random view of tenants, or of some names.
func (c *randomCluster) view(name string) string {
	return fmt.Sprintf("metadata\nview %s {\nexpr %s\n}\n", name, []string{
		fmt.Sprintf("metadata('kubernetes/client-namespace') == '%s'", c.ns()),
		fmt.Sprintf("metadata('kubernetes/client-namespace') != '%s'", c.ns()),
		fmt.Sprintf("incidr(client_ip(), '10.244.0.%d/31')", c.IntN(4)),
		fmt.Sprintf("metadata('kubernetes/client-namespace') == '%s' || !(name() endsWith '.%s.svc.cluster.local.')", c.ns(), c.ns()),
	}[c.IntN(4)])
}

// corefile returns a random configuration of blocks with these directives.
func (c *randomCluster) corefile(whole string) string {
	deny := func() string {
		return "template ANY ANY " + c.denied() + " {\nrcode " + []string{"NXDOMAIN", "REFUSED"}[c.IntN(2)] + "\n}\n"
	}
	kinds := []int{1, 5}[c.IntN(2)] // 1: without views
	var b strings.Builder
	block := func(key string, parts ...string) { fmt.Fprintf(&b, "%s {\n%s}\n", key, strings.Join(parts, "")) }
	for i := range 1 + c.IntN(2) { // of some names
		key := []string{c.ns() + ".svc.cluster.local " + c.ns() + ".ext.test", c.names[7+c.IntN(len(c.names)-7)]}[c.IntN(2)]
		if i > 0 {
			key = []string{"svc.cluster.local", "cluster.local", "ext.test", "in-addr.arpa"}[c.IntN(4)]
		}
		switch view := c.view(fmt.Sprint("v", i)); c.IntN(kinds) {
		case 0:
			block(key, whole, c.acls())
		case 1:
			block(key, view, whole)
		case 2:
			block(key, view, whole, deny())
		case 3:
			block(key, view, strings.Replace(whole, "OPTIONS", "namespaces "+c.ns(), 1), c.acls())
		case 4:
			block(key, view, strings.Replace(whole, "OPTIONS", "namespaces "+c.ns(), 1))
		}
	}
	switch view := c.view("last"); c.IntN(kinds) { // of all names
	case 1:
		block(".", view, whole, deny())
		block(".", whole)
	case 2:
		block(".", view, whole)
	case 3:
		block(".", view, strings.Replace(whole, "OPTIONS", "namespaces "+c.ns(), 1))
		block(".", whole, c.acls())
	default:
		block(".", whole, c.acls())
	}
	return strings.ReplaceAll(b.String(), "OPTIONS", "")
}

// isolation compares what tenants are told with what they may ask.
type isolation struct {
	t       *testing.T
	c       *randomCluster
	d, open *tenantDesk // open is for reference: everybody may ask everything
	text    string      // the Corefile
	partial bool        // a block has less of the cluster than open, which an alias may lead to
	verdict map[tenantQuestion]bool
	// mayAsk says whether a client may ask for a name; nil: the replies say it.
	mayAsk func(client, name string) bool
	// sameGroup says whether another client is in a group as far as policies are concerned; nil: there are none.
	sameGroup func(other netip.Addr, g *resolver.ClientGroup) bool

	triples, denials, told, kept int
	withheld                     map[string]int // names that an answer of open tells, and that are kept from a client, by how
}

type tenantQuestion struct {
	client, name string
	qtype        uint16
}

// refused reports whether the policies keep a name from a client, by the reply to its question.
func (w *isolation) refused(q tenantQuestion) bool {
	if r, ok := w.verdict[q]; ok {
		return r
	}
	m := w.d.answer(q.client, q.name, q.qtype)
	r := w.refuses(m, q)
	w.verdict[q] = r
	return r
}

// refuses reports whether m, nil for none, refuses to answer q.
func (w *isolation) refuses(m *dns.Msg, q tenantQuestion) bool {
	switch {
	case m == nil || m.Rcode == dns.RcodeRefused:
		return true
	case m.Rcode != dns.RcodeSuccess: // SERVFAIL is at the end of a search path, where nobody is left to ask
		return w.open.answer(q.client, q.name, q.qtype).Rcode == dns.RcodeSuccess
	}
	for _, o := range m.IsEdns0().Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok && e.InfoCode == dns.ExtendedErrorCodeFiltered {
			return true
		}
	}
	return false
}

// denied reports whether q.client may not ask for q.name. An alias may lead to such a name, for which it is refused
// itself; then another type shows whether it may be asked for.
func (w *isolation) denied(q tenantQuestion) bool {
	if w.mayAsk != nil {
		return !w.mayAsk(q.client, q.name)
	}
	if !w.refused(q) {
		return false
	}
	for name, hops := w.c.aliases[q.name], 0; name != "" && hops < 12; name, hops = w.c.aliases[name], hops+1 {
		if w.refused(tenantQuestion{q.client, name, q.qtype}) {
			return w.refused(tenantQuestion{q.client, q.name, dns.TypeTXT})
		}
	}
	return true
}

// leak is a name that a reply tells.
type leak struct {
	how, name string
	denied    bool
}

// names returns the names in m, the reply to q, besides the question's, and whether the client may not ask for them.
func (w *isolation) names(m *dns.Msg, q tenantQuestion) (list []leak) {
	if m == nil {
		return nil
	}
	add := func(how, name string, all bool, types ...uint16) {
		name = strings.ToLower(name)
		denied := all
		for _, qtype := range types {
			d := w.denied(tenantQuestion{q.client, name, qtype})
			if all {
				denied = denied && d
			} else {
				denied = denied || d
			}
		}
		list = append(list, leak{how, name, denied})
	}
	each := q.qtype == dns.TypeANY || q.qtype == dns.TypeAXFR
	for _, rr := range m.Answer {
		h, as := rr.Header(), q.qtype
		if each {
			as = h.Rrtype
		}
		if h.Rrtype == dns.TypeSOA {
			continue
		}
		if each || !strings.EqualFold(h.Name, q.name) {
			add(dns.TypeToString[q.qtype]+" owner", h.Name, false, as)
		}
		switch rr := rr.(type) {
		case *dns.CNAME:
			add("alias", rr.Target, false, as)
		case *dns.PTR:
			family := dns.TypeA
			if strings.HasSuffix(q.name, "ip6.arpa.") {
				family = dns.TypeAAAA
			}
			add("PTR", rr.Ptr, false, dns.TypePTR, family)
		case *dns.SRV:
			add("SRV", rr.Target, true, dns.TypeA, dns.TypeAAAA)
		case *dns.NS:
			add("NS", rr.Ns, true, dns.TypeA, dns.TypeAAAA)
		}
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			add("additional", rr.Header().Name, false, rr.Header().Rrtype)
		}
	}
	return list
}

// check asks q, and compares.
func (w *isolation) check(q tenantQuestion) {
	w.triples++
	m := w.d.answer(q.client, q.name, q.qtype)
	reusable, again := w.d.x.Reusable()
	group := reusable.Clients
	if w.refuses(m, q) {
		w.denials++
	}
	text := withoutSerials(m)
	for _, l := range w.names(m, q) {
		w.told++
		if l.denied {
			w.t.Errorf("%s: %s %s tells %s (%s), for which it may not ask:\n%s\n%s", q.client, q.name, dns.TypeToString[q.qtype], l.name, l.how, m, w.text)
		}
	}
	ref, kept := w.open.answer(q.client, q.name, q.qtype), false
	for _, l := range w.names(ref, q) {
		if l.denied {
			w.withheld[l.how]++
			kept = true
		}
	}
	if want := withoutSerials(ref); !kept && !w.partial && m != nil && m.Rcode == dns.RcodeSuccess && len(ref.Answer) > 0 && !w.refuses(m, q) && text != want {
		w.t.Errorf("%s: %s %s is %s, want %s\n%s", q.client, q.name, dns.TypeToString[q.qtype], text, want, w.text)
	}
	if !again || q.qtype == dns.TypeAXFR {
		return
	}
	for other := range tenants {
		if w.sameGroup != nil && !w.sameGroup(netip.MustParseAddr(other), &group) {
			continue
		}
		class, _ := w.d.rt.ClassOf(netip.MustParseAddr(other))
		if ns := tenants[other]; group.IsAll() || (group.ACLs == nil || class == group.Class) && (group.Of == nil || ns != "" && string(group.Namespace) == string(byte(len(ns)))+ns) {
			w.kept++
			if got := withoutSerials(w.d.answer(other, q.name, q.qtype)); got != text {
				w.t.Errorf("%s: %s %s is %s, and the kept reply of %s: %s\n%s", other, q.name, dns.TypeToString[q.qtype], got, q.client, text, w.text)
			}
		}
	}
}

// withoutSerials is a reply in short, with its records in order and without the serials of SOA records.
func withoutSerials(m *dns.Msg) string {
	if m == nil {
		return "nothing"
	}
	m = m.Copy()
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 0
			}
		}
		slices.SortFunc(section, func(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) })
	}
	return told(m)
}

// questions returns all questions of a client: every name, also on its search path, and every type.
func (w *isolation) questions(client string) (list []tenantQuestion) {
	names := slices.Concat(w.c.names, w.c.reverse)
	if ns := tenants[client]; ns != "" {
		for _, name := range w.c.names {
			for _, domain := range []string{"svc.cluster.local.", "cluster.local.", "."} {
				if rest, ok := strings.CutSuffix(name, "."+domain); ok && rest != "" || domain == "." {
					list = append(list, tenantQuestion{client, strings.TrimSuffix(rest, ".") + "." + ns + ".svc.cluster.local.", dns.TypeA})
				}
			}
		}
	}
	for _, name := range names {
		for _, qtype := range []uint16{
			dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypeTXT, dns.TypeMX, dns.TypeHTTPS, dns.TypeANY,
		} {
			list = append(list, tenantQuestion{client, name, qtype})
		}
	}
	return append(list, tenantQuestion{client, "cluster.local.", dns.TypeAXFR}, tenantQuestion{client, "ext.test.", dns.TypeAXFR})
}

// TestIsolation: no answer tells a client a name for which it may not ask, whatever is configured and asked.
func TestIsolation(t *testing.T) {
	race.SkipSequential(t)
	r := rand.New(rand.NewPCG(50, 1))
	sum := isolation{withheld: make(map[string]int)}
	for range soak.Choose(3, 40) {
		c := newRandomCluster(r)
		for range soak.Choose(12, 40) {
			whole := wholeCluster + []string{"", externalAndTransfer}[r.IntN(2)]
			open := newTenantDesk(t, ". {\n"+strings.Replace(whole, "OPTIONS", "", 1)+"}\n", c.text.String())
			text := c.corefile(whole)
			w := isolation{t: t, c: c, d: newTenantDesk(t, text, c.text.String()), open: open, text: text, partial: strings.Contains(text, "namespaces "), verdict: make(map[tenantQuestion]bool), withheld: sum.withheld}
			for client := range tenants {
				for _, q := range w.questions(client) {
					w.check(q)
				}
			}
			sum.triples, sum.denials, sum.told, sum.kept = sum.triples+w.triples, sum.denials+w.denials, sum.told+w.told, sum.kept+w.kept
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("%d questions of a client, of which %d were refused; answers told %d names, and %d were replies for others, too; withheld: %v", sum.triples, sum.denials, sum.told, sum.kept, sum.withheld)
	for _, how := range []string{"PTR", "SRV", "NS", "alias", "additional", "A owner", "ANY owner", "AXFR owner"} {
		if sum.withheld[how] == 0 {
			t.Errorf("no name of a %s was ever to be withheld", how)
		}
	}
	if sum.kept == 0 || sum.denials == 0 {
		t.Error("there were no denials, or no replies for several clients")
	}
}
