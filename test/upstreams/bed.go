package upstreams

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/scrape"
)

// The forwarders' names.
const (
	Nodens  = "nodens"
	CoreDNS = "CoreDNS"
)

// slowTime is the time until the answer of a slow name, heldTime that of a name which outlives the
// server that is asked for it.
const (
	slowTime = 300 * time.Millisecond
	heldTime = 500 * time.Millisecond
)

// Bed is a running server and the forwarders before it.
type Bed struct {
	Server
	dir        string
	upstream   *fakedns.Server
	server     *instance // nil if the fake upstream is asked itself
	forwarders []*forwarder
	// ended and back are when the server ended and answered again in a restart, since the begin of the situation.
	ended, back time.Duration
}

// forwarder is a program that forwards to the server over each transport, on a port for each.
type forwarder struct {
	name    string
	ports   map[Transport]uint16
	metrics uint16
	*peer.Process
}

// serverName is the server's in its certificate.
const serverName = "upstream.example"

// Start starts a bed in dir, which the caller removes after [Bed.Close].
func Start(ctx context.Context, s Server, dir string) (b *Bed, err error) {
	b = &Bed{Server: s, dir: dir}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.upstream, err = fakedns.Open(reply, fakedns.Options{}); err != nil {
		return b, err
	}
	root, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := writeCertificates(root, cert, key); err != nil {
		return b, err
	}
	if s.Program != "" {
		if b.server, err = s.prepare(ctx, dir, "@CERT@", cert, "@KEY@", key, "@UPPORT@", fmt.Sprint(b.upstream.Addr().Port())); err != nil {
			return b, err
		}
		if err := b.server.start(ctx); err != nil {
			return b, err
		}
	}
	for _, name := range []string{Nodens, CoreDNS} {
		f, err := b.startForwarder(ctx, name, root)
		if err != nil {
			return b, err
		}
		b.forwarders = append(b.forwarders, f)
	}
	return b, nil
}

// writeCertificates makes the certificate of a server and that of its issuer.
func writeCertificates(root, cert, key string) error {
	issuer, err := ca.New()
	if err != nil {
		return err
	}
	c, err := issuer.Server("127.0.0.1", serverName)
	if err != nil {
		return err
	}
	if err := os.WriteFile(root, issuer.PEM(), 0o644); err != nil {
		return err
	}
	return ca.WriteFiles(c, cert, key)
}

// Close stops everything that Start has started.
func (b *Bed) Close() {
	for _, f := range b.forwarders {
		f.Stop()
	}
	if b.server != nil && b.server.Process != nil {
		b.server.Kill()
	}
	if b.upstream != nil {
		b.upstream.Close()
	}
}

// target returns the address that forwarders use for a transport.
func (b *Bed) target(t Transport) string {
	if b.server == nil {
		return b.upstream.Addr().String()
	}
	return b.server.addr(t)
}

// startForwarder starts a program. It sends no query to the server, so that the first ones are a situation's.
func (b *Bed) startForwarder(ctx context.Context, name, root string) (*forwarder, error) {
	f := &forwarder{name: name, ports: map[Transport]uint16{}}
	var err error
	if f.metrics, err = peer.Port(); err != nil {
		return nil, err
	}
	var text strings.Builder
	for _, t := range b.Transports {
		if f.ports[t], err = peer.Port(); err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, ".:%d {\n    bind 127.0.0.1\n    prometheus 127.0.0.1:%d\n%s}\n", f.ports[t], f.metrics, b.forwardBlock(t, root))
	}
	conf := filepath.Join(b.dir, name+".Corefile")
	if err := os.WriteFile(conf, []byte(text.String()), 0o644); err != nil {
		return nil, err
	}
	c, err := b.command(ctx, name, conf)
	if err != nil {
		return nil, err
	}
	if f.Process, err = peer.Spawn(c); err != nil {
		return nil, err
	}
	for _, port := range f.ports {
		if err := f.Await(ctx, "any answer of "+name, anyAnswer(port)); err != nil {
			f.Stop()
			return nil, err
		}
	}
	return f, nil
}

// command returns the command that runs a program with the Corefile conf. The variable AGENT
// may name the binary of nodens.
func (b *Bed) command(ctx context.Context, name, conf string) (c peer.Command, err error) {
	program := "coredns"
	if name == Nodens {
		program = "nodens"
	}
	path := os.Getenv("AGENT")
	if path == "" || name != Nodens {
		if path, err = find(ctx, program, b.dir); err != nil {
			return c, err
		}
	}
	return peer.Command{Name: name, Path: path, Args: peer.ServerArgs(program, conf), Dir: b.dir}, nil
}

// forwardBlock returns the directive that forwards over t.
func (b *Bed) forwardBlock(t Transport, root string) string {
	to := b.target(t)
	var options string
	switch t {
	case UDP:
		return "    forward . " + to + "\n"
	case TCP:
		options = "        force_tcp\n"
	default:
		options = "        tls " + root + "\n        tls_servername " + serverName + "\n"
	}
	if t == GRPC {
		return fmt.Sprintf("    grpc . %s {\n%s    }\n", to, options)
	}
	return fmt.Sprintf("    forward . %s%s {\n%s    }\n", schemes[t], to, options)
}

// anyAnswer is the condition that a forwarder replies to a query that it forwards nowhere.
func anyAnswer(port uint16) peer.Probe {
	q := new(dns.Msg).SetQuestion(".", dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassHESIOD
	return func(ctx context.Context) error {
		c := dns.Client{Timeout: time.Second}
		_, _, err := c.ExchangeContext(ctx, q, fmt.Sprintf("127.0.0.1:%d", port))
		return err
	}
}

func (f *forwarder) addr(t Transport) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), f.ports[t])
}

var connMisses = regexp.MustCompile(`(?m)^coredns_proxy_conn_cache_misses_total\{(.*)\} ([0-9.e+]+)$`)

// connections returns how many connections f has opened to the server over each transport; none are
// counted for UDP, and CoreDNS does not count those of its grpc plugin.
func (b *Bed) connections(f *forwarder) (map[Transport]int, error) {
	text, err := scrape.Text(context.Background(), http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/metrics", f.metrics))
	if err != nil {
		return nil, err
	}
	n := map[Transport]int{}
	for _, m := range connMisses.FindAllStringSubmatch(text, -1) {
		for _, t := range b.Transports {
			udp := strings.Contains(m[1], `proto="udp"`)
			if t == UDP || udp || !strings.Contains(m[1], `to="`+b.target(t)+`"`) {
				continue
			}
			v, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return nil, err
			}
			n[t] += int(v)
		}
	}
	return n, nil
}

// named counts names.
var named atomic.Uint64

// newName returns a name that was never asked for. What it begins with decides about the reply.
func newName(kind string) string { return fmt.Sprintf("%s-%d.bench.example.", kind, named.Add(1)) }

// delays are the times until the replies to kinds of names.
var delays = map[string]time.Duration{"slow": slowTime, "held": heldTime}

// ttls are those of kinds of names; others have a minute.
var ttls = map[string]uint32{"ttl0": 0, "ttl31": 1<<31 - 1, "ttl32": 1<<32 - 1}

// reply is the fake upstream.
func reply(q *fakedns.Query) {
	kind, _, _ := strings.Cut(q.Question[0].Name, "-")
	kind = strings.ToLower(kind)
	ttl, ok := ttls[kind]
	if !ok {
		ttl = 60
	}
	m := fakedns.Address(q.Msg, ttl, "192.0.2.1")
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
	}
	if kind == "cut" && q.Transport == fakedns.UDP {
		if b, err := m.Pack(); err == nil {
			q.Send(b[:len(b)-20])
		}
		return
	}
	q.ReplyAfter(delays[kind], m)
}
