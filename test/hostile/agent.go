package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/scrape"
)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Names that the agent answers out of its hosts table and its cluster of files.
const (
	handWrittenNames = "by.hand."
	clusterIP        = "web.shop.svc.cluster.local."
	headless         = "db.shop.svc.cluster.local."
	port             = "_sql._tcp.db.shop.svc.cluster.local."
	aliasInside      = "mirror.shop.svc.cluster.local."
	aliasOutside     = "out.shop.svc.cluster.local."
	aliasBroken      = "broken.shop.svc.cluster.local."
	reverse          = "1.7.96.10.in-addr.arpa."
)

// corefile has every step of the path. The caches are small so that they are full
// when the warm-up is over: what grows after it is not the cache.
const corefile = `.:@PORT@ {
    bind 127.0.0.1
    errors
    hosts {
        192.0.2.9 by.hand
        2001:db8::9 by.hand
        fallthrough
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        manifests @MANIFEST@
        pods insecure
        ttl 30
    }
    cache 3600 {
        success 1000
        denial 1000
    }
    loadbalance
    forward . @UPSTREAM@
    prometheus 127.0.0.1:@METRICS@
}
`

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.7.1, clusterIPs: [10.96.7.1, "fd00::7:1"], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, clusterIPs: [None], ports: [{name: sql, port: 5432, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ""}}
addressType: IPv4
endpoints:
  - {addresses: [10.244.1.10], hostname: db-0, conditions: {ready: true}}
  - {addresses: [10.244.2.10], hostname: db-1, conditions: {ready: true}}
ports: [{name: sql, port: 5432, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: mirror, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: out.good.test}
---
apiVersion: v1
kind: Service
metadata: {name: broken, namespace: shop}
spec: {type: ExternalName, externalName: out.bad.test}
`

// agent is the agent under test.
type agent struct {
	*peer.Process
	addr    netip.AddrPort
	metrics string // URL
	client  http.Client
}

// startAgent builds and starts the agent with its files in dir, and waits until it
// answers. The caller calls Stop.
func startAgent(ctx context.Context, dir string, to netip.AddrPort) (*agent, error) {
	path, err := peer.Binary(ctx, "nodens", dir)
	if err != nil {
		return nil, err
	}
	var ports [2]uint16
	for i := range ports {
		if ports[i], err = peer.Port(); err != nil {
			return nil, err
		}
	}
	a := &agent{addr: netip.AddrPortFrom(loopback, ports[0]), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", ports[1])}
	// A connection that is kept would be one of the agent's open files.
	a.client.Transport = &http.Transport{DisableKeepAlives: true}
	conf, objects := filepath.Join(dir, "Corefile"), filepath.Join(dir, "shop.yaml")
	text := strings.NewReplacer("@PORT@", strconv.Itoa(int(ports[0])), "@METRICS@", strconv.Itoa(int(ports[1])),
		"@UPSTREAM@", to.String(), "@MANIFEST@", objects).Replace(corefile)
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o644), os.WriteFile(objects, []byte(manifest), 0o644)); err != nil {
		return nil, err
	}
	a.Process, err = peer.Spawn(peer.Command{Name: "nodens", Path: path, Dir: dir, Args: peer.ServerArgs("nodens", conf)})
	if err != nil {
		return nil, err
	}
	if err := a.Await(ctx, "the agent's answers", peer.Answers(a.addr)); err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

// agentState is what the agent holds and has counted.
type agentState struct {
	rss, peak  uint64 // bytes; peak is the most there ever was
	files      int
	goroutines int
	// drops is the number of packets that found the buffers of the agent's UDP
	// sockets full; queued is the number of bytes still in them.
	drops, queued uint64
	// counted sums up metrics over their labels.
	counted map[string]float64
	udp     float64 // coredns_dns_requests_total of UDP
}

// readState reads the state. It is one look at each part: what moves, moves in between.
func (a *agent) readState(ctx context.Context) (agentState, error) {
	s := agentState{counted: map[string]float64{}}
	if err := a.scrape(ctx, &s); err != nil {
		return s, fmt.Errorf("reading the agent's metrics: %w", err)
	}
	s.goroutines = int(s.counted["go_goroutines"])
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.PID()))
	if err != nil {
		return s, err
	}
	s.files = len(files)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		return s, err
	}
	if s.rss, s.peak = memory(string(status)); s.rss == 0 || s.peak == 0 {
		return s, fmt.Errorf("no memory in the agent's status:\n%s", status)
	}
	s.drops, s.queued, err = sockets(a.addr)
	return s, err
}

// memory reads the resident bytes and the most there were (proc(5), status).
func memory(status string) (rss, peak uint64) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case key == "VmRSS":
			rss = n << 10
		case key == "VmHWM":
			peak = n << 10
		}
	}
	return rss, peak
}

// scrape sums up the metrics.
func (a *agent) scrape(ctx context.Context, s *agentState) error {
	text, err := scrape.Text(ctx, &a.client, a.metrics)
	if err != nil {
		return err
	}
	m, err := scrape.Parse(text)
	if err != nil {
		return err
	}
	for series, v := range m {
		name, _, _ := strings.Cut(series, "{")
		s.counted[name] += v
	}
	s.udp = m.Sum("coredns_dns_requests_total", `proto="udp"`)
	return nil
}

// sockets gives the drops and the queued bytes of the UDP sockets on addr (proc(5),
// net/udp).
func sockets(addr netip.AddrPort) (drops, queued uint64, err error) {
	for range socketTries {
		found, err := readSockets(addr)
		if err != nil {
			return 0, 0, err
		}
		for _, s := range found {
			drops += s.drops
			queued += s.queued
		}
		if len(found) > 0 {
			return drops, queued, nil
		}
	}
	return 0, 0, fmt.Errorf("no UDP socket on %s", addr)
}

// socketTries is how often /proc/net/udp is read until it has a socket. The kernel writes the file in several
// parts, and leaves sockets out if other ones are closed in between.
const socketTries = 10

// udpSocket is what /proc/net/udp has about a socket.
type udpSocket struct{ drops, queued uint64 }

// readSockets returns the UDP sockets at addr by their inodes.
func readSockets(addr netip.AddrPort) (map[string]udpSocket, error) {
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		return nil, err
	}
	ip := addr.Addr().As4()
	want := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], addr.Port())
	found := make(map[string]udpSocket)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 13 || f[1] != want {
			continue
		}
		drops, bad := strconv.ParseUint(f[12], 10, 64)
		_, waiting, _ := strings.Cut(f[4], ":")
		queued, err := strconv.ParseUint(waiting, 16, 64)
		if err = errors.Join(bad, err); err != nil {
			return nil, fmt.Errorf("reading /proc/net/udp: %w", err)
		}
		found[f[9]] = udpSocket{drops, queued}
	}
	return found, nil
}

// maxExtraGoroutines is how many goroutines the agent keeps for the next queries that wait
// (idleCrew in its package server).
const maxExtraGoroutines = 256

// awaitSettled waits until the agent holds no more files and goroutines than before, but
// for the spare ones: its idle connections to the upstream close after ten seconds,
// and those of clients too.
func (a *agent) awaitSettled(ctx context.Context, before agentState) (agentState, error) {
	var s agentState
	err := a.Await(ctx, "the agent to let go of what it held", func(ctx context.Context) error {
		var err error
		if s, err = a.readState(ctx); err != nil {
			return err
		}
		if s.files > before.files || s.goroutines > before.goroutines+maxExtraGoroutines || s.queued > 0 {
			return fmt.Errorf("%d files and %d goroutines, before it was %d and %d; %d bytes unread",
				s.files, s.goroutines, before.files, before.goroutines, s.queued)
		}
		return nil
	})
	return s, err
}

// ask asks over UDP or TCP and waits for the answer. It is for single questions; the
// connection is closed after it.
func (a *agent) ask(ctx context.Context, network string, q *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: replyTimeout, UDPSize: dns.MaxMsgSize}
	m, _, err := c.ExchangeContext(ctx, q, a.addr.String())
	if m != nil && errors.Is(err, dns.ErrSecret) {
		err = nil // the upstream's broken reply had a TSIG record; that can be read
	}
	return m, err
}

// replyTimeout is how long an answer may take before the question counts as unanswered:
// twice what the agent gives its upstreams.
const replyTimeout = 10 * time.Second

// discardAll reads r until the other side closes it.
func discardAll(r net.Conn) { _, _ = io.Copy(io.Discard, r) }
