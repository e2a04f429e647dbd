// Package transports measures the section about encrypted transports: the CPU time of a hit over TLS,
// HTTPS, gRPC, QUIC and HTTP/3, beside CoreDNS's same transport, and the memory of an agent with the
// manifest's memory limit that has as many connections as it accepts.
package transports

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
)

// servers are the rows.
var servers = []harness.Server{{Name: "nodens", Program: "nodens"}, {Name: harness.CoreDNS, Program: "coredns"}}

// names is how many names are asked for.
const names = 100

// shape is how the clients ask.
type shape struct {
	name string
	// clients is how many there are. Each waits for a reply before it asks again.
	clients int
	// rate is how many queries all of them ask a second; 0 is as many as they can.
	rate int
}

var shapes = []shape{{"16 in flight", 16, 0}, {"1,000 qps", 4, 1000}}

// workload is a transport under a shape.
type workload struct {
	transport
	shape
}

func (w workload) name() string { return w.scheme + ", " + w.shape.name }

// workloads are all combinations.
func workloads() (all []workload) {
	for _, t := range list {
		for _, s := range shapes {
			all = append(all, workload{t, s})
		}
	}
	return all
}

// run measures.
type run struct {
	*harness.Run
	out                 *Report
	cert, key, upstream string
	issuer              string // the file of the certificate that has signed the servers'
	roots               *tls.Config
	origin              *origin // of the clients that are measured
}

// Measure measures all transports. It stops everything that it started before it returns.
func Measure(ctx context.Context, p harness.Plan) (*Report, error) {
	b, err := harness.New(p, p.WithBefore(servers))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.OwnClient = true
	r := &run{Run: b, out: &Report{Report: b.Report}, origin: &origin{addr: netip.MustParseAddr("127.0.0.1")}}
	return r.out, b.Steps(ctx, b.Build, b.SettleBesideServers, r.prepare, r.measure, r.measureForward, r.hold)
}

// prepare makes the certificate of all servers.
func (r *run) prepare(context.Context) error {
	issuer, err := ca.New()
	if err != nil {
		return err
	}
	c, err := issuer.Server("127.0.0.1", upstreamName)
	if err != nil {
		return err
	}
	r.issuer = filepath.Join(r.Dir, "ca.pem")
	if err := os.WriteFile(r.issuer, issuer.PEM(), 0o644); err != nil {
		return err
	}
	r.cert, r.key, r.upstream = filepath.Join(r.Dir, "cert.pem"), filepath.Join(r.Dir, "key.pem"), r.Loop.Addr().String()
	r.roots = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: issuer.Pool()}
	return ca.WriteFiles(c, r.cert, r.key)
}

// measure goes through all transports; the order of servers changes from round to round.
func (r *run) measure(ctx context.Context) error {
	for _, t := range list {
		if !r.Only.MatchesName(t.scheme) {
			continue
		}
		if err := r.measureTransport(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.scheme, err)
		}
	}
	return nil
}

// measureTransport starts each server with one transport and measures it in all shapes.
func (r *run) measureTransport(ctx context.Context, t transport) error {
	var running []target
	defer func() {
		for _, s := range running {
			s.Stop()
		}
	}()
	for _, s := range r.Report.Servers {
		started, err := r.start(ctx, s, t)
		if err != nil {
			return fmt.Errorf("starting %s: %w", s.Name, err)
		}
		running = append(running, started)
	}
	for n := range r.Plan.Rounds {
		for _, s := range shapes {
			for _, to := range running {
				sample, err := r.sample(ctx, to, s)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", to.Name, s.name, err)
				}
				r.add(harness.Cell{Server: to.Name, Workload: workload{t, s}.name()}, n, sample)
			}
		}
		slices.Reverse(running)
	}
	return nil
}

// target is a server that has all names in its cache.
type target struct {
	harness.Server
	*peer.Process
	transport
	at netip.AddrPort
}

// start starts a server with one transport, and fills its cache.
func (r *run) start(ctx context.Context, s harness.Server, t transport) (target, error) {
	port, err := peer.Port()
	if err != nil {
		return target{}, err
	}
	dir, err := os.MkdirTemp(r.Dir, "server-")
	if err != nil {
		return target{}, err
	}
	text := strings.NewReplacer("SCHEME", t.scheme, "PORT", fmt.Sprint(port), "CERT", r.cert, "KEY", r.key, "UPSTREAM", r.upstream).Replace(corefile)
	proc, err := r.spawn(s, dir, text)
	if err != nil {
		return target{}, err
	}
	to := target{s, proc, t, harness.LoopbackAddr(harness.Port(port))}
	if err := proc.Await(ctx, "an answer over "+t.scheme, func(ctx context.Context) error { return r.fill(ctx, to) }); err != nil {
		proc.Stop()
		return target{}, err
	}
	return to, nil
}

// spawn starts a server with the Corefile in dir, on the server's cores.
func (r *run) spawn(s harness.Server, dir, corefile string) (*peer.Process, error) {
	conf := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(conf, []byte(corefile), 0o644); err != nil {
		return nil, err
	}
	args := []string{"-c", r.ServerCores.List(), r.BinaryOf(s)}
	for _, a := range harness.Programs[s.Program].Args {
		args = append(args, strings.ReplaceAll(a, "@CONF@", conf))
	}
	return peer.Spawn(peer.Command{Name: s.Program, Path: "taskset", Args: args, Dir: dir})
}

// fill asks the server for all names.
func (r *run) fill(ctx context.Context, to target) error {
	clients, err := r.connect(ctx, to, 1)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	for i := range names {
		if err := check(ctx, clients[0], i); err != nil {
			return err
		}
	}
	return nil
}

// connect opens n connections. A query over each completes its handshake.
func (r *run) connect(ctx context.Context, to target, n int) (clients []client, err error) {
	for i := range n {
		c, err := to.dial(ctx, r.origin, to.at, r.roots)
		if err == nil {
			clients = append(clients, c)
			err = check(ctx, c, i)
		}
		if err != nil {
			closeAll(clients)
			return nil, err
		}
	}
	return clients, nil
}

func closeAll(clients []client) {
	for _, c := range clients {
		c.close()
	}
}

var errReply = errors.New("not the address that the upstream has")

// check asks for a name.
func check(ctx context.Context, c client, i int) error {
	m := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.bench.example.", i%names), dns.TypeA)
	m.Id = 0
	query, err := m.Pack()
	if err != nil {
		return err
	}
	reply, err := c.ask(ctx, query)
	if err != nil {
		return err
	}
	if h := harness.ParseHeader(reply); h.Rcode != dns.RcodeSuccess || h.Answers != 1 {
		return fmt.Errorf("%w: rcode %d, %d answers", errReply, h.Rcode, h.Answers)
	}
	return nil
}

// sample measures a server under a shape. Its connections are new, because servers close those that are idle
// while other servers are started and measured.
func (r *run) sample(ctx context.Context, to target, s shape) (sample harness.Sample, err error) {
	clients, err := r.connect(ctx, to, s.clients)
	if err != nil {
		return sample, err
	}
	defer closeAll(clients)
	before, err := machine.CPUClock(to.PID())
	if err != nil {
		return sample, err
	}
	began := time.Now()
	var completed atomic.Uint64
	var running sync.WaitGroup
	failed := make([]error, s.clients)
	for i, c := range clients {
		running.Go(func() {
			failed[i] = s.ask(ctx, c, i, began.Add(r.Plan.Length), func() { completed.Add(1) })
		})
	}
	running.Wait()
	if err := errors.Join(failed...); err != nil {
		return sample, err
	}
	sample.Elapsed = time.Since(began)
	after, err := machine.CPUClock(to.PID())
	if err != nil {
		return sample, err
	}
	sample.CPU, sample.Completed = after-before, completed.Load()
	stat, err := machine.ReadProcStat(to.PID())
	sample.RSS = stat.RSS
	return sample, err
}

// ask asks as client i of the shape's until the end, and calls done for each reply.
func (s shape) ask(ctx context.Context, c client, i int, end time.Time, done func()) error {
	began := time.Now()
	for n := i; ; n += s.clients {
		if s.rate > 0 {
			due := began.Add(time.Duration(n) * time.Second / time.Duration(s.rate))
			if err := harness.Sleep(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		if !time.Now().Before(end) {
			return nil
		}
		if err := check(ctx, c, n); err != nil {
			return err
		}
		done()
	}
}

func (r *run) add(at harness.Cell, round int, s harness.Sample) {
	r.Add(at, round, s, fmt.Sprintf("%.1f µs of CPU per query, %.0f queries/s", s.CPUPerQuery(), s.PerSecond()))
}

// corefile is each server's.
const corefile = `SCHEME://.:PORT {
    bind 127.0.0.1
    tls CERT KEY
    cache 3600
    forward . UPSTREAM
}
`
