package transports

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// forwardWorkload is the row of queries that are forwarded over TLS.
const forwardWorkload = "misses over TLS"

// forwardWindow is how many of these queries are under way.
const forwardWindow = 256

// maxForwardCost limits the CPU time of a query that is forwarded over TLS relative to CoreDNS's.
const maxForwardCost = 0.7

// upstreamName is the upstream's in its certificate.
const upstreamName = "upstream.example"

// forwardCorefile is each server's.
const forwardCorefile = `.:PORT {
    bind 127.0.0.1
    cache 3600
    forward . tls://UPSTREAM {
        tls CA
        tls_servername ` + upstreamName + `
    }
}
`

// tlsUpstream answers over TLS (RFC 7858) what the loop answers over UDP, and as late, in whatever order.
type tlsUpstream struct {
	net.Listener
	loop    *load.Loop
	running sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]bool // nil after close
}

// startTLSUpstream starts one; the caller closes it.
func (r *run) startTLSUpstream() (*tlsUpstream, error) {
	cert, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		return nil, err
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
	if err != nil {
		return nil, err
	}
	u := &tlsUpstream{Listener: l, loop: r.Loop, conns: make(map[net.Conn]bool)}
	u.running.Go(u.accept)
	return u, nil
}

func (u *tlsUpstream) accept() {
	for {
		conn, err := u.Accept()
		if err != nil {
			return
		}
		u.mu.Lock()
		open := u.conns != nil
		if open {
			u.conns[conn] = true
			u.running.Go(func() { u.serve(conn) })
		}
		u.mu.Unlock()
		if !open {
			_ = conn.Close()
		}
	}
}

// serve answers the queries of a connection until it ends.
func (u *tlsUpstream) serve(conn net.Conn) {
	defer conn.Close()
	var writing sync.Mutex
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		msg := u.loop.Answer(query)
		frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
		time.AfterFunc(load.Delay, func() {
			writing.Lock()
			defer writing.Unlock()
			_, _ = conn.Write(frame) // a client that is gone needs no answer
		})
	}
}

// close ends all connections.
func (u *tlsUpstream) close() {
	_ = u.Close()
	u.mu.Lock()
	for conn := range u.conns {
		_ = conn.Close()
	}
	u.conns = nil
	u.mu.Unlock()
	u.running.Wait()
}

// measureForward measures queries with new names, which each server forwards over TLS.
func (r *run) measureForward(ctx context.Context) error {
	if !r.Only.MatchesName(forwardWorkload) {
		return nil
	}
	upstream, err := r.startTLSUpstream()
	if err != nil {
		return err
	}
	defer upstream.close()
	var running []target
	defer func() {
		for _, s := range running {
			s.Stop()
		}
	}()
	for _, s := range r.Report.Servers {
		started, err := r.startForwarder(ctx, s, upstream.Addr().String())
		if err != nil {
			return fmt.Errorf("starting %s: %w", s.Name, err)
		}
		running = append(running, started)
	}
	for n := range r.Plan.Rounds {
		for _, to := range running {
			sample, err := r.sampleForward(ctx, to)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", to.Name, forwardWorkload, err)
			}
			r.add(harness.Cell{Server: to.Name, Workload: forwardWorkload}, n, sample)
		}
		slices.Reverse(running)
	}
	return nil
}

// startForwarder starts a server that forwards to the upstream.
func (r *run) startForwarder(ctx context.Context, s harness.Server, upstream string) (target, error) {
	port, err := peer.Port()
	if err != nil {
		return target{}, err
	}
	dir, err := os.MkdirTemp(r.Dir, "forwarder-")
	if err != nil {
		return target{}, err
	}
	to := target{Server: s, at: harness.LoopbackAddr(harness.Port(port))}
	text := strings.NewReplacer("PORT", fmt.Sprint(port), "UPSTREAM", upstream, "CA", r.issuer).Replace(forwardCorefile)
	if to.Process, err = r.spawn(s, dir, text); err != nil {
		return target{}, err
	}
	if err := to.Await(ctx, "an answer of the upstream", func(context.Context) error { return askOverUDP(to.at) }); err != nil {
		to.Stop()
		return target{}, err
	}
	return to, nil
}

// askOverUDP asks for a name that is there.
func askOverUDP(at netip.AddrPort) error {
	m, err := dns.Exchange(new(dns.Msg).SetQuestion("n0.bench.example.", dns.TypeA), at.String())
	if err == nil && (m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1) {
		err = fmt.Errorf("%w: %v", errReply, m)
	}
	return err
}

var errLost = errors.New("a hundredth of the queries or more got no reply")

// sampleForward measures one server.
func (r *run) sampleForward(ctx context.Context, to target) (sample harness.Sample, err error) {
	before, err := machine.CPUClock(to.PID())
	if err != nil {
		return sample, err
	}
	results, err := r.Loop.Run(ctx, load.LoopJob{
		Server: to.at, Length: r.Plan.Length,
		Streams: []load.Stream{r.NewNamesStream(load.Stream{Window: forwardWindow}, "00000000."+load.Late)},
	})
	if err != nil {
		return sample, err
	}
	after, err := machine.CPUClock(to.PID())
	if err != nil {
		return sample, err
	}
	got := results[0]
	r.Fresh += uint32(got.Sent) //nolint:gosec // some hundred thousand
	if got.Answered == 0 || !r.Plan.Short && got.Lost >= max(1, got.Sent/100) {
		return sample, fmt.Errorf("%w: %d of %d", errLost, got.Lost, got.Sent)
	}
	sample.CPU, sample.Completed, sample.Elapsed = after-before, got.Answered, got.Elapsed
	stat, err := machine.ReadProcStat(to.PID())
	sample.RSS = stat.RSS
	return sample, err
}
