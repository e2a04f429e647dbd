package pagetest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/app"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/pagetest"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// objects are two pods of the node n1 at loopback addresses, and a Service.
const objects = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, uid: u1}, spec: {nodeName: n1}, status: {phase: Running, podIPs: [{ip: 127.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: checkout-1, namespace: shop, uid: u2}, spec: {nodeName: n1}, status: {phase: Running, podIPs: [{ip: 127.0.0.3}]}}
`

const (
	webPod      = "127.0.0.2"
	checkoutPod = "127.0.0.3"
)

// node is where agents run one after the other.
type node struct {
	t         *testing.T
	dns, page uint16
	corefile  string
	dir       string // for hand-overs
}

func newNode(t *testing.T) *node {
	p := peer.Ports(t, 2)
	file := filepath.Join(t.TempDir(), "objects.yaml")
	agenttest.WriteFile(t, file, objects)
	return &node{
		t: t, dns: p[0], page: p[1], dir: filepath.Join(t.TempDir(), "handover"),
		corefile: fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n manifests %s\n }\n}\n", p[0], file),
	}
}

// start runs an agent until the test ends, and waits until it serves the page.
func (n *node) start(version string) *agenttest.Agent {
	n.t.Helper()
	a := agenttest.Start(n.t, n.corefile, func(ctx context.Context, conf string, log io.Writer) error {
		o := options.Default()
		o.Build.Version, o.Conf, o.KubeDNSDir, o.MetricsAddr, o.NodeName = version, conf, "", "", "n1"
		o.SetupInterface, o.SetupIptables, o.HandoverDir, o.HandoverCompare = false, false, n.dir, 0
		o.Page = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), n.page)
		return app.Serve(ctx, o, log)
	})
	a.AwaitLog("the page is served")
	return a
}

func (n *node) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", n.page, path) }

// ask asks for a name a number of times, from the address of a pod.
func (n *node) ask(pod, name string, times int) {
	n.t.Helper()
	c := dns.Client{Timeout: agenttest.Timeout, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(pod)}}}
	conn, err := c.Dial(fmt.Sprintf("127.0.0.1:%d", n.dns))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	for range times {
		if _, _, err := c.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), conn); err != nil {
			n.t.Fatal(err)
		}
	}
}

// firstRow is the first cell of the first row of a table.
func firstRow(id string) string {
	return fmt.Sprintf("(document.querySelector('#%s-rows th') || {}).textContent", id)
}

// isLive says that the page has been updated.
const isLive = "document.getElementById('live').dataset.state === 'live'"

// finish fails the test if the console has errors, or if the tab asked another server.
func finish(t *testing.T, tab *pagetest.Tab, base string) {
	t.Helper()
	for _, text := range tab.Errors() {
		t.Errorf("console: %s", text)
	}
	for _, url := range tab.Requests() {
		if !strings.HasPrefix(url, base) && url != "about:blank" {
			t.Errorf("the page requested %s", url)
		}
	}
}

// TestBrowser: a browser opens, sorts and searches the page, and sees a pod's flood at once.
func TestBrowser(t *testing.T) {
	n := newNode(t)
	n.start("one")
	n.ask(webPod, "web.shop.svc.cluster.local.", 20)
	n.ask(checkoutPod, "nothing.shop.svc.cluster.local.", 5)
	tab := pagetest.Start(t).NewTab()
	tab.Open(n.url("/"))
	tab.Await("updates", isLive)
	if title := tab.Eval("document.title"); title != "n1: nodens" {
		t.Errorf("the title is %q", title)
	}
	tab.Await("the pod with the most queries", firstRow("clients")+" === 'shop/web-1'")

	tab.Click("#clients thead a[href*='sort-clients=nxdomain']")
	if got := tab.Eval(firstRow("clients")) + " " + tab.Eval("document.querySelector('#clients th[aria-sort=descending]').textContent"); got != "shop/checkout-1 NXDOMAIN" {
		t.Errorf("sorted by NXDOMAIN: %s", got)
	}
	tab.Eval("document.getElementById('q').focus()")
	tab.Type("web")
	tab.Submit()
	if got := tab.Eval("[...document.querySelectorAll('#clients-rows th')].map(x => x.textContent).join()"); got != "shop/web-1" {
		t.Errorf("the search shows %s", got)
	}
	if got := tab.Eval("document.querySelector('#clients th[aria-sort=descending]').textContent"); got != "NXDOMAIN" {
		t.Errorf("after a search sorted by %s", got)
	}

	tab.Open(n.url("/"))
	tab.Await("updates", isLive)
	n.ask(checkoutPod, "flood.example.org.svc.cluster.local.", 400)
	before := updates(t, tab)
	tab.Await("the flood", firstRow("clients")+" === 'shop/checkout-1'")
	// One update may have been on its way before the flood ended.
	if after := updates(t, tab); after > before+2 {
		t.Errorf("the flood was seen after %d updates", after-before)
	}
	tab.Await("the parent of the names", firstRow("waste")+" === '*.example.org.svc.cluster.local.'")
	finish(t, tab, n.url("/"))
}

// updates returns the number of updates that the tab has received.
func updates(t *testing.T, tab *pagetest.Tab) int {
	t.Helper()
	n, err := strconv.Atoi(tab.Eval("document.getElementById('live').dataset.updates"))
	check.NoError(t, err)
	return n
}

// TestExplain: the form explains how a query of a pod would be answered.
func TestExplain(t *testing.T) {
	n := newNode(t)
	n.start("one")
	tab := pagetest.Start(t).NewTab()
	tab.Open(n.url("/explain"))
	tab.Eval("document.getElementById('name').focus()")
	tab.Type("web")
	tab.Eval("document.getElementById('from').focus()")
	tab.Type("shop/web-1")
	tab.Submit()
	if text := tab.Eval("document.getElementById('main').textContent"); !strings.Contains(text, "web.shop.svc.cluster.local.") || !strings.Contains(text, "kubernetes") || !strings.Contains(text, "10.96.0.1") {
		t.Errorf("the explanation is %s", text)
	}
	tab.Open(n.url("/explain?name=a.test&type=NOTHING"))
	if text := tab.Eval("document.querySelector('[role=alert]').textContent"); !strings.Contains(text, "NOTHING") {
		t.Errorf("the error is %q", text)
	}
	finish(t, tab, n.url("/"))
}

// TestWithoutScript: sorting and searching need no script.
func TestWithoutScript(t *testing.T) {
	n := newNode(t)
	n.start("one")
	n.ask(webPod, "web.shop.svc.cluster.local.", 3)
	n.ask(checkoutPod, "nothing.shop.svc.cluster.local.", 2)
	tab := pagetest.Start(t).NewTab()
	tab.WithoutScript()
	tab.Open(n.url("/"))
	if got := tab.Eval("document.getElementById('live').textContent"); got != "Reload the page to update it." {
		t.Errorf("the page says %q", got)
	}
	tab.Click("#clients thead a[href*='sort-clients=nxdomain']")
	if got := tab.Eval(firstRow("clients")); got != "shop/checkout-1" {
		t.Errorf("sorted by NXDOMAIN, the first row is %s", got)
	}
	tab.Eval("document.getElementById('q').focus()")
	tab.Type("web-1")
	tab.Submit()
	if got := tab.Eval(firstRow("clients")); got != "shop/web-1" {
		t.Errorf("the search shows %s", got)
	}
	finish(t, tab, n.url("/"))
}

// TestUpgradeInBrowser: after a hand-over an open page shows the next agent.
func TestUpgradeInBrowser(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1") // an agent that has handed over waits
	n := newNode(t)
	n.start("one")
	tab := pagetest.Start(t).NewTab()
	tab.Open(n.url("/?by=workload"))
	tab.Await("updates", isLive)
	if _, err := os.Stat(n.dir); err != nil {
		t.Fatal(err)
	}
	n.start("two")
	tab.Await("the page of the next agent", "document.documentElement.dataset.version === 'two' && "+isLive)
	if got := tab.Eval("location.search"); got != "?by=workload" {
		t.Errorf("the choice of rows is %q after the upgrade", got)
	}
}
