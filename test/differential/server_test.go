package differential

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// loopback is where everything listens.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// rareGC is an environment variable with which servers collect garbage less often: their heaps are small, and collecting
// takes a quarter of the CPU time of a comparison.
const rareGC = "GOGC=400"

// TestMain has the test process collect garbage less often, too.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// corefile is a Corefile with placeholders: the ports that differ from server
// to server, and what is the same for all of them.
type corefile struct {
	name string
	text string
	// caches says that answers are held, so that TTLs may have gone down.
	caches bool
}

// The Corefiles. The add-on's is the one that kubeadm writes for CoreDNS,
// without loop, which would find the upstream of a test run at random; the
// one of NodeLocal DNSCache is the shape of its published manifest.
var corefiles = []corefile{
	{name: "uncached", text: strings.ReplaceAll(addonText, "    cache 30\n", "")},
	{name: "addon", text: addonText, caches: true},
	{name: "nodelocal", text: nodelocalText, caches: true},
	{name: "alone", text: aloneText},
}

// aloneText has nobody behind the cluster's zones, two of them, with reverse zones by
// CIDR and other names for endpoints.
const aloneText = `.:PORT {
    bind 127.0.0.1
    errors
    health 127.0.0.1:HEALTH
    ready 127.0.0.1:READY
    kubernetes cluster.local second.test 10.96.0.0/12 10.244.0.0/16 {
        kubeconfig KUBECONFIG
        pods insecure
        endpoint_pod_names
    }
    prometheus 127.0.0.1:METRICS
}
`

const addonText = `.:PORT {
    bind 127.0.0.1
    errors
    health 127.0.0.1:HEALTH
    ready 127.0.0.1:READY
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig KUBECONFIG
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus 127.0.0.1:METRICS
    forward . UPSTREAM {
        max_concurrent 1000
    }
    cache 30
    reload
    loadbalance
}
`

const nodelocalText = `cluster.local:PORT {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    bind 127.0.0.1
    forward . CLUSTERDNS {
        force_tcp
    }
    prometheus 127.0.0.1:METRICS
    health 127.0.0.1:HEALTH
    ready 127.0.0.1:READY
}
in-addr.arpa:PORT {
    errors
    cache 30
    reload
    bind 127.0.0.1
    forward . CLUSTERDNS {
        force_tcp
    }
    prometheus 127.0.0.1:METRICS
}
ip6.arpa:PORT {
    errors
    cache 30
    reload
    bind 127.0.0.1
    forward . CLUSTERDNS {
        force_tcp
    }
    prometheus 127.0.0.1:METRICS
}
.:PORT {
    errors
    cache 30
    reload
    bind 127.0.0.1
    forward . UPSTREAM
    prometheus 127.0.0.1:METRICS
}
`

// site is what all servers of a run share.
type site struct {
	objectWriter
	table    []*knownDifference
	api      *apiserver.Server
	upstream netip.AddrPort
	// clusterDNS is the CoreDNS that node-local servers forward to.
	clusterDNS netip.AddrPort
	// binaries are the paths of the programs by name.
	binaries map[string]string
	// fixedWorld is the fixed world, others are its names and the odd ones.
	fixedWorld *world
	fixedNames []string
	// marks counts the marks that were written.
	marks atomic.Int64
}

// newSite starts what the servers need.
func newSite(t *testing.T) *site {
	t.Helper()
	s := newPlainSite(t)
	s.table = knownDifferences()
	s.api = apiserver.Start(t)
	client, err := s.api.Client()
	check.NoError(t, err)
	s.objectWriter = objectWriter{client}
	check.NoError(t, s.createCRD(t.Context()))
	return s
}

// newPlainSite is a site without a cluster.
func newPlainSite(t *testing.T) *site {
	t.Helper()
	s := &site{upstream: startUpstream(t), binaries: map[string]string{}}
	for _, name := range []string{"coredns", agentProgram()} {
		s.binaries[name] = peer.Build(t, name)
	}
	return s
}

// run starts a comparison.
func (s *site) run(t *testing.T, caches bool) *run {
	return &run{
		t: t, table: s.table, caches: caches, started: time.Now(),
		zones:     []string{zone, "in-addr.arpa.", "ip6.arpa."},
		different: map[string]*differenceGroup{},
	}
}

// server is a process that serves.
type server struct {
	process *peer.Process
	program string
	addr    netip.AddrPort
	ready   string // URL
}

// serve starts the program with the Corefile and waits until it is ready: see start.
func (s *site) serve(t *testing.T, program, text string, user apiserver.User, more ...string) netip.AddrPort {
	t.Helper()
	started := s.start(t, program, text, user, more...)
	started.await(t)
	return started.addr
}

// start starts the program with the Corefile, which reads the API server as the user, and
// stops it when the test ends.
func (s *site) start(t *testing.T, program, text string, user apiserver.User, more ...string) *server {
	t.Helper()
	ports := peer.Ports(t, 4)
	if s.api != nil {
		text = strings.ReplaceAll(text, "KUBECONFIG", s.api.Kubeconfig(user))
	}
	text = strings.NewReplacer(
		"PORT", fmt.Sprint(ports[0]),
		"HEALTH", fmt.Sprint(ports[1]),
		"READY", fmt.Sprint(ports[2]),
		"METRICS", fmt.Sprint(ports[3]),
		"UPSTREAM", s.upstream.String(),
		"CLUSTERDNS", s.clusterDNS.String(),
	).Replace(text)
	if program != "nodens" {
		more = nil
	}
	p := peer.StartServer(t, text, peer.Command{Name: program, Path: s.binaries[program], Args: more, Env: []string{"NODE_NAME=" + node, rareGC}})
	return &server{p, program, netip.AddrPortFrom(loopback, ports[0]), fmt.Sprintf("http://127.0.0.1:%d/ready", ports[2])}
}

// await waits until the server is ready.
func (s *server) await(t *testing.T) {
	t.Helper()
	s.process.Must(t, s.program+" to be ready", peer.Get(nil, s.ready, http.StatusOK))
	s.process.Must(t, s.program+" to answer", peer.Answers(s.addr))
}

// rcode holds when the server answers the name with the code.
func rcode(server netip.AddrPort, name string, code int) peer.Probe {
	return func(context.Context) error {
		v, _, err := ask(server, query{name: name, qtype: dns.TypeA}, dns.Id())
		if err != nil {
			return err
		}
		if v.Rcode != dns.RcodeToString[code] {
			return fmt.Errorf("%s is answered with %s %s", name, v.Outcome, v.Rcode)
		}
		return nil
	}
}
