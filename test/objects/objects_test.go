package objects

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestObjects compares all answers with what the cases say.
func TestObjects(t *testing.T) {
	releases := peer.Releases()
	for _, release := range releases[soak.Choose(len(releases)-1, 0):] {
		t.Run(release, func(t *testing.T) {
			api := apiserver.StartRelease(t, release)
			cases := readCases(t)
			w := newWriter(t, api)
			t.Run("without ServiceImports", func(t *testing.T) { testWithoutImports(t, api, w) })
			t.Run("several API servers", func(t *testing.T) { testServers(t, api, w) })
			for _, c := range cases {
				for _, o := range c.objects {
					if err := w.write(t.Context(), o); err != nil {
						t.Fatalf("%s: %v", c.name, err)
					}
				}
			}
			compare(t, api.Kubeconfig(apiserver.Admin), cases)
		})
	}
}

// compare asks CoreDNS and the agents, which read the API server of that kubeconfig file.
func compare(t *testing.T, kubeconfig string, cases []*testCase) {
	t.Helper()
	servers := map[string]*testServer{
		"CoreDNS": startServer(t, "coredns", "", kubeconfig, cases),
		"node":    startServer(t, "nodens", "", kubeconfig, cases),
		"cluster": startServer(t, "nodens", "scope cluster\nendpoints all\n", kubeconfig, cases),
	}
	for _, s := range servers {
		s.await(t)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var wg sync.WaitGroup
			for name, s := range servers {
				for _, q := range c.queries {
					wg.Go(func() { checkAnswer(t, name, s.addrs[i].String(), &q) })
				}
			}
			wg.Wait()
		})
	}
}

// settleTime is the time in which an answer may become the one that is wanted: objects come into view one after the
// other. It ends only tests that fail.
const settleTime = 10 * time.Second

// checkAnswer asks until the answer is the one that q wants of that server.
func checkAnswer(t *testing.T, server, addr string, q *query) {
	t.Helper()
	want := q.answer
	if server == "CoreDNS" {
		want = q.coredns
	}
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	err := peer.Await(ctx, "the answer", func(context.Context) error {
		got, err := q.ask(addr)
		if err == nil && got != want {
			err = fmt.Errorf("%s", got)
		}
		return err
	})
	if err != nil {
		t.Errorf("line %d: %s: %s %s\nwant %s\n%v", q.line, server, q.name, dns.Type(q.qtype), want, err)
	}
}

// answerText is an answer as a case writes it.
func answerText(rcode string, data []string) string {
	slices.Sort(data)
	return strings.TrimSpace(rcode + " " + strings.Join(data, ", "))
}

// testServer is a process with a server block for each case.
type testServer struct {
	process *peer.Process
	addrs   []netip.AddrPort
	ready   string
}

// startServer starts the program, with these options of each kubernetes directive.
func startServer(t *testing.T, program, options, kubeconfig string, cases []*testCase) *testServer {
	t.Helper()
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 30, "192.0.2.1") }))
	broken := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) }))
	ports := peer.Ports(t, len(cases)+1)
	s := &testServer{ready: fmt.Sprintf("http://127.0.0.1:%d/ready", ports[len(cases)])}
	var text strings.Builder
	for i, c := range cases {
		s.addrs = append(s.addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ports[i]))
		zones := ""
		if strings.Contains(c.options, "multicluster") {
			zones = " clusterset.local"
		}
		fmt.Fprintf(&text, ".:%d {\nbind 127.0.0.1\nerrors\nready 127.0.0.1:%d\n%skubernetes cluster.local%s in-addr.arpa ip6.arpa {\nkubeconfig %s\n%s%s}\n}\n",
			ports[i], ports[len(cases)], c.block, zones, kubeconfig, c.options, options)
	}
	filled := strings.NewReplacer("UPSTREAM", up.Addr().String(), "BROKEN", broken.Addr().String()).Replace(text.String())
	s.process = peer.StartServer(t, filled, peer.Command{Name: program, Env: []string{"NODE_NAME=n1"}})
	return s
}

// await waits until the server is ready.
func (s *testServer) await(t *testing.T) {
	t.Helper()
	s.process.Must(t, "the server to be ready", peer.Get(nil, s.ready, http.StatusOK))
}
