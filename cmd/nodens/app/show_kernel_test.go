// These tests use agent and kernelPath, which are not exported.

package app

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestExplainKernel: copies in the kernel, why there are none, and what the programs know of the client.
func TestExplainKernel(t *testing.T) {
	p := peer.Ports(t, 2)
	slices.Sort(p) // copies are in the order of their listeners
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	loopback, err := net.InterfaceByName("lo")
	check.NoError(t, err)
	left, idle := 9.5, 3.0
	path := newStage().player("a")
	path.copies = []kernelpath.CopyInfo{
		{Listener: at(p[1]), Type: wire.TypeA, Form: kernelpath.Form{AD: true}, Left: -1, Idle: -1},
		{Listener: at(p[0]), Type: wire.TypeAAAA, Form: kernelpath.Form{RD: true, CD: true, EDNS: true, DO: true}, Rcode: wire.NXDomain, State: kernelpath.ExpiredCopy, Idle: -1, Grouped: true},
		{Listener: at(p[0]), Type: wire.TypeA, Form: kernelpath.Form{RD: true}, Left: 9500 * time.Millisecond, Idle: 3 * time.Second},
	}
	path.known = map[netip.Addr]kernelpath.ClientInfo{
		netip.MustParseAddr("10.244.1.7"): {Interface: loopback.Index, Answering: true, Result: "answered"},
		netip.MustParseAddr("10.244.1.8"): {Interface: 1 << 30, Result: "client_moved"},
	}
	x := &explainer{t: t, socket: filepath.Join(t.TempDir(), "a.sock")}
	corefile := fmt.Sprintf("test:%d {\n bind 127.0.0.1\n whoami\n cache\n}\ntest:%d {\n bind 127.0.0.1\n hosts\n log\n}\n", p[0], p[1])
	x.Agent = startChanged(t, corefile, func(a *agent) { a.kernelPath = path.newKernelPath(t.Output()) },
		func(o *options.Agent) { o.AdminSocket, o.NodeName = x.socket, "n1" })

	first := report.KernelCopy{Listener: at(p[0]).String(), Type: "A", Flags: []string{"RD"}, Rcode: "NOERROR", State: "valid", TTLSeconds: &left, IdleSeconds: &idle}
	other := report.KernelCopy{Listener: at(p[1]).String(), Type: "A", Flags: []string{"AD"}, Rcode: "NOERROR", State: "valid"}
	zero := 0.0
	denial := report.KernelCopy{Listener: at(p[0]).String(), Type: "AAAA", Flags: []string{"RD", "CD", "EDNS", "DO"}, Rcode: "NXDOMAIN", State: "expired", TTLSeconds: &zero, OneNamespace: true}
	server := func(port uint16) string { return fmt.Sprintf("server=127.0.0.1:%d", port) }
	for _, c := range []struct {
		parameters []string
		want       report.ExplainedKernel
		client     *report.KernelClient
	}{
		{
			[]string{"name=a.test", server(p[0]), "from=10.244.1.7"},
			report.ExplainedKernel{Excluded: "only answers of kubernetes, hosts and the cache are copied", Copies: []report.KernelCopy{first}},
			&report.KernelClient{Interface: "lo", Answering: true, Result: "answered"},
		},
		{
			[]string{"name=a.test", "type=AAAA", server(p[0]), "from=10.244.1.8"},
			report.ExplainedKernel{Excluded: "only answers of kubernetes, hosts and the cache are copied", Copies: []report.KernelCopy{denial}},
			&report.KernelClient{Result: "client_moved"},
		},
		{
			[]string{"name=a.test", server(p[1])},
			report.ExplainedKernel{Excluded: "the server block has log", Copies: []report.KernelCopy{other}}, nil,
		},
		{
			[]string{"name=a.test", server(p[0]), "protocol=tcp"},
			report.ExplainedKernel{Excluded: "the query comes over TCP", Copies: []report.KernelCopy{first}}, nil,
		},
	} {
		e := x.explain(c.parameters...)
		check.Equal(t, &c.want, e.Questions[0].Kernel, "%q", c.parameters)
		check.Equal(t, c.client, e.Client.Kernel, "%q, the client", c.parameters)
	}
	cached := shown[report.CacheEntries](t, x.socket, "/cache/entries?name=a.test")
	check.Equal(t, []report.KernelCopy{first, other, denial}, cached.KernelCopies, "all copies")
	cached = shown[report.CacheEntries](t, x.socket, "/cache/entries?name=a.test&type=AAAA")
	if diff := cmp.Diff([]report.KernelCopy{denial}, cached.KernelCopies); diff != "" || cached.MoreKernelCopies != 0 {
		t.Errorf("copies of type AAAA (-want +got):\n%s", diff)
	}
}

// TestExplainWithoutKernel: without the kernel path there is nothing to explain, and no copy.
func TestExplainWithoutKernel(t *testing.T) {
	x := startExplainer(t)
	if e := x.explain("name=by.hand"); e.Client.Kernel != nil || e.Questions[0].Kernel != nil {
		t.Errorf("the kernel path: %+v %+v", e.Client.Kernel, e.Questions[0].Kernel)
	}
	cached := shown[report.CacheEntries](t, x.socket, "/cache/entries?name=by.hand")
	if cached.KernelCopies == nil || len(cached.KernelCopies) > 0 {
		t.Errorf("copies: %v", cached.KernelCopies)
	}
}

// TestExcluded: listeners and transports whose queries never get answers from the kernel.
func TestExcluded(t *testing.T) {
	for text, want := range map[string]string{
		"":         "",
		"tls":      "clients use tls",
		"wildcard": "the agent listens on all addresses",
	} {
		q := &explainQuery{listen: netip.MustParseAddrPort("192.0.2.1:53")}
		switch text {
		case "tls":
			q.listener.Transport = config.DNSOverTLS
		case "wildcard":
			q.listen = netip.MustParseAddrPort("[::]:53")
		}
		if got := q.excluded(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
