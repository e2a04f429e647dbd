package upstreams

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
)

// Transport is a way to ask a server; its text is for tables.
type Transport string

// The transports.
const (
	UDP   Transport = "UDP"
	TCP   Transport = "TCP"
	TLS   Transport = "TLS"
	HTTPS Transport = "HTTPS"
	QUIC  Transport = "QUIC"
	GRPC  Transport = "gRPC"
)

// schemes are those of forward's targets; gRPC has a directive of its own.
var schemes = map[Transport]string{TLS: "tls://", HTTPS: "https://", QUIC: "quic://"}

// Server is a server that queries are forwarded to: a program with a configuration.
type Server struct {
	// Name is that of the row.
	Name string
	// Package is the Debian package of the program; empty for programs that package peer builds, and
	// for the fake upstream itself, which has no program.
	Program, Package string
	Transports       []Transport
	args             []string
	conf             string // the file in testdata
	file             string // the name that it must have; empty: any
	extra            string // lines of the configuration
	// authority says that the server has a zone in place of an upstream, so no name is slow.
	authority bool
	// Usual says that the row is one of the large table; the others are configurations with limits.
	Usual bool
}

// Servers returns all rows.
func Servers() []Server {
	bind := Server{Name: "BIND", Program: "named", Package: "bind9", conf: "named.conf", args: []string{"-g", "-n", "1", "-c", "@CONF@"}, Transports: []Transport{UDP, TCP, TLS, HTTPS}, Usual: true}
	unbound := Server{Name: "unbound", Program: "unbound", Package: "unbound", conf: "unbound.conf", args: []string{"-d", "-p", "-c", "@CONF@"}, Transports: []Transport{UDP, TCP, TLS, HTTPS}, Usual: true}
	recursor := Server{Name: "recursor", Program: "pdns_recursor", Package: "pdns-recursor", conf: "recursor.conf", file: "recursor.conf", args: []string{"--config-dir=@DIR@"}, Transports: []Transport{UDP, TCP}, Usual: true}
	dnsdist := Server{Name: "dnsdist", Program: "dnsdist", Package: "dnsdist", conf: "dnsdist.conf", args: []string{"--supervised", "--disable-syslog", "-C", "@CONF@"}, Transports: []Transport{UDP, TCP, TLS, HTTPS}, Usual: true}
	// Without its limit of responses per second; the row with Debian's is below.
	nsd := Server{Name: "NSD", Program: "nsd", Package: "nsd", conf: "nsd.conf", args: []string{"-d", "-c", "@CONF@"}, authority: true, extra: "rrl-ratelimit: 0", Transports: []Transport{UDP, TCP, TLS}, Usual: true}
	return []Server{
		bind, unbound,
		{Name: "kresd", Program: "kresd", Package: "knot-resolver", conf: "kresd.conf", args: []string{"-n", "-q", "-c", "@CONF@", "@DIR@"}, Transports: []Transport{UDP, TCP, TLS, HTTPS}, Usual: true},
		recursor,
		{Name: "dnsmasq", Program: "dnsmasq", Package: "dnsmasq-base", conf: "dnsmasq.conf", args: []string{"-k", "-C", "@CONF@", "-u", "root", "-8", "-"}, Transports: []Transport{UDP, TCP}, Usual: true},
		dnsdist, nsd,
		{Name: "Knot", Program: "knotd", Package: "knot", conf: "knotd.conf", args: []string{"-c", "@CONF@"}, authority: true, Transports: []Transport{UDP, TCP}, Usual: true},
		{Name: "CoreDNS", Program: "coredns", conf: "coredns.conf", args: []string{"-conf", "@CONF@"}, Transports: []Transport{UDP, TCP, TLS, HTTPS, QUIC, GRPC}, Usual: true},
		{Name: "stubby", Program: "stubby", Package: "stubby", conf: "stubby.conf", file: "stubby.yml", args: []string{"-C", "@CONF@"}, Transports: []Transport{UDP, TCP}, Usual: true},
		bind.limited("50 responses/s", "rate-limit { responses-per-second 50; window 1; };", UDP),
		nsd.limited("50 responses/s", "rrl-ratelimit: 50", UDP),
		bind.limited("server cookie required", "require-server-cookie yes;", UDP),
		bind.limited("2 connections", "tcp-clients 2;", TCP),
		unbound.limited("2 connections", "incoming-num-tcp: 2", TCP, TLS),
		dnsdist.limited("20 queries per connection", "setMaxTCPQueriesPerConnection(20)", TCP, TLS),
		dnsdist.limited("1 connection per client", "setMaxTCPConnectionsPerClient(1)", TCP, TLS),
		recursor.limited("20 queries per connection", "max-tcp-queries-per-connection=20", TCP),
		nsd.limited("20 queries per connection", "tcp-query-count: 20\n    rrl-ratelimit: 0", TCP, TLS),
		{Name: "a resolver that cuts replies and does not set TC", Transports: []Transport{UDP}},
	}
}

// limited returns s with a limit.
func (s Server) limited(limit, extra string, over ...Transport) Server {
	s.Name, s.extra, s.Transports, s.Usual = s.Name+", "+limit, extra, over, false
	return s
}

//go:embed testdata
var files embed.FS

// ErrAbsent says that a program is not installed.
var ErrAbsent = errors.New("not installed")

// find returns the path of a program of this machine, also where only root's path goes.
func find(ctx context.Context, program, dir string) (string, error) {
	if program == "coredns" || program == "nodens" {
		return peer.Binary(ctx, program, dir)
	}
	for _, at := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(at); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, ErrAbsent)
}

// instance is a server with its files and ports, which can be started again and again.
type instance struct {
	Server
	dir   string
	path  string
	args  []string
	ports map[Transport]uint16 // UDP and TCP have the same
	*peer.Process
}

// prepare writes the files of s into a new folder in dir. fill has the placeholders beside the ports.
func (s Server) prepare(ctx context.Context, dir string, fill ...string) (i *instance, err error) {
	i = &instance{Server: s, ports: map[Transport]uint16{}}
	if i.path, err = find(ctx, s.Program, dir); err != nil {
		return nil, err
	}
	if i.dir, err = os.MkdirTemp(dir, s.Program+"-"); err != nil {
		return nil, err
	}
	conf := filepath.Join(i.dir, s.file)
	if s.file == "" {
		conf = filepath.Join(i.dir, "conf")
	}
	ports, err := i.pickPorts()
	if err != nil {
		return nil, err
	}
	r := strings.NewReplacer(append(append(fill, "@DIR@", i.dir, "@CONF@", conf, "@EXTRA@", s.extra), ports...)...)
	for from, to := range map[string]string{s.conf: conf, "zone": filepath.Join(i.dir, "zone")} {
		text, err := files.ReadFile("testdata/" + from)
		if err == nil {
			err = os.WriteFile(to, []byte(r.Replace(string(text))), 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, a := range s.args {
		i.args = append(i.args, r.Replace(a))
	}
	return i, nil
}

// pickPorts picks the ports of i and returns their placeholders, each with its value.
func (i *instance) pickPorts() (fill []string, err error) {
	for _, t := range []Transport{UDP, TLS, HTTPS, QUIC, GRPC} {
		if i.ports[t], err = peer.Port(); err != nil {
			return nil, err
		}
		fill = append(fill, "@"+strings.ToUpper(string(t))+"@", fmt.Sprint(i.ports[t]))
	}
	i.ports[TCP] = i.ports[UDP]
	return append(fill, "@DNS@", fmt.Sprint(i.ports[TCP])), nil
}

// start starts the server, and waits until it answers and all ports listen.
func (i *instance) start(ctx context.Context) (err error) {
	if i.Process, err = peer.Spawn(peer.Command{Name: i.Program, Path: i.path, Args: i.args, Dir: i.dir}); err != nil {
		return err
	}
	return i.Await(ctx, "an answer of "+i.Name, i.ready)
}

// ready returns nil once the server answers.
func (i *instance) ready(ctx context.Context) error {
	for _, t := range i.Transports {
		if t == UDP || t == QUIC {
			continue
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", i.addr(t))
		if err != nil {
			return err
		}
		_ = c.Close()
	}
	return answers(ctx, i.addr(UDP))
}

// addr returns the address for a transport.
func (i *instance) addr(t Transport) string { return fmt.Sprintf("127.0.0.1:%d", i.ports[t]) }

var errNoAddress = errors.New("no address")

// answers returns nil if the server at addr has the address of a name.
func answers(ctx context.Context, addr string) error {
	c := dns.Client{Timeout: time.Second}
	m, _, err := c.ExchangeContext(ctx, new(dns.Msg).SetQuestion(newName("ready"), dns.TypeA), addr)
	if err == nil && len(m.Answer) == 0 {
		err = fmt.Errorf("%w: %s", errNoAddress, dns.RcodeToString[m.Rcode])
	}
	return err
}
