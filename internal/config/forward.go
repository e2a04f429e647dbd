package config

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Policy is how `forward` chooses among its upstreams.
type Policy uint8

// The policies. Fastest is the default.
const (
	PolicyFastest Policy = iota
	PolicyRandom
	PolicyRoundRobin
	PolicySequential
)

// Forward is `forward FROM TO… { … }`. A block may have several: the first whose
// From contains the qname, and whose Except doesn't, applies to a query. The block's [GRPC], which
// has the same settings, is the last of them.
type Forward struct {
	From   wire.Name
	Except []wire.Name
	// To are the upstreams, including those of resolv.conf files. Files are these files, so
	// that a reload can read them again.
	To                   []Target
	Files                []string
	ForceTCP, PreferUDP  bool
	Policy               Policy
	MaxFails             int           // 2; 0: never down
	Expire               time.Duration // 10s: idle connections are closed
	ReadTimeout          time.Duration // 2s
	HealthInterval       time.Duration // 500ms
	HealthNoRec          bool
	HealthDomain         wire.Name // the root
	MaxConcurrent        int       // 0: no limit but the server's own
	MaxRate              MaxRate   // zero: no limit
	FailfastAllUnhealthy bool
	// TLS has the certificates for upstreams over TLS, HTTPS or QUIC; nil: no client certificate,
	// and the system's roots.
	TLS *TLSClient
	// ServerName is the name in the certificates of targets without a server name; "" is
	// their Host or their address.
	ServerName string
	// MaxAge is how long a connection is used; 0: no limit.
	MaxAge time.Duration
	// MaxIdle is the maximum number of idle connections for each upstream; 0: no limit.
	MaxIdle int
	// DoHMethod is how upstreams over HTTPS are asked: "GET", or "POST" and "".
	DoHMethod string
	// SourceAddress is the address queries go out from; not valid: the system's choice.
	SourceAddress netip.Addr
	// MaxConnectAttempts is the maximum number of failed attempts for a query; 0: two for
	// each upstream, -1: no limit but the deadline.
	MaxConnectAttempts int
	// Failover are the rcodes for which the next upstream is asked.
	Failover []wire.Rcode
	// NextOn are the rcodes for which the block's next forward is asked. NextOnNodata does
	// the same for NODATA.
	NextOn       []wire.Rcode
	NextOnNodata bool
	// Resolver are the servers that resolve names of upstreams; nil: the servers of the system's
	// resolv.conf.
	Resolver []netip.AddrPort
	// GRPC says that this is the block's directive `grpc`.
	GRPC bool
	// Next is the next forward of the same block, nil for the last.
	Next *Forward
}

// UsesTLS reports whether the upstream to is asked over TLS. Over gRPC, `tls`, `tls_servername` or a
// server name says so, as in CoreDNS.
func (f *Forward) UsesTLS(to Target) bool {
	return to.Transport != PlainDNS && (to.Transport != DNSOverGRPC || f.TLS != nil || f.ServerName != "" || to.ServerName != "")
}

// MaxRate is `max_rate N [BURST]` or `max_rate auto`: how many queries each upstream address gets.
type MaxRate struct {
	// PerSecond is the number of queries per second, and Burst how many more there may be within
	// any second. 0: no limit.
	PerSecond, Burst int
	// Auto says that the agent looks for the limit itself.
	Auto bool
}

// TLSClient is `tls [CERT KEY] [CA]`: PEM files. "" is no client certificate, or the system's
// roots.
type TLSClient struct {
	Cert, Key, CA string
}

const (
	// maxUpstreams is CoreDNS's limit.
	maxUpstreams = 15
	// maxForwards bounds the forwards of a block, which are searched for each query. Zones
	// are found faster.
	maxForwards = 100
	// mostQueriesPerSecond is more than any upstream answers.
	mostQueriesPerSecond = 10_000_000
	// MaxRateBurstPart is the part of `max_rate` that is the default of its burst: what leaves in 50 ms.
	MaxRateBurstPart = 20
	maxRateUsage     = "max_rate QUERIES_PER_SECOND [BURST] | max_rate auto"

	forwardUsage = "forward FROM TO… (TO: an IP address or a name, with or without a port, tls://, https:// or quic:// before it, a resolv.conf file, or k8s:NAMESPACE/NAME)"
)

// defaultForward is `forward .` without options.
func defaultForward() Forward {
	return Forward{
		From:           wire.Root,
		MaxFails:       2,
		Expire:         10 * time.Second,
		ReadTimeout:    2 * time.Second,
		HealthInterval: 500 * time.Millisecond,
		HealthDomain:   wire.Root,
	}
}

func (f *Forward) parse(p *parser, s statement) {
	*f = defaultForward()
	f.read(p, s, forwardUsage, f.options(p))
}

// Name returns the directive's name.
func (f *Forward) Name() string {
	if f.GRPC {
		return "grpc"
	}
	return "forward"
}

// read reads s, whose options are in table.
func (f *Forward) read(p *parser, s statement, usage string, table options) {
	if p.count(s, usage) {
		f.from(p, s.args()[0])
		f.upstreams(p, s.args()[1:])
	}
	p.body(s, table...)
	if f.MaxAge > 0 && f.MaxAge < f.Expire {
		at, _ := s.last("max_age")
		p.errorf(at.word(), "max_age %s is less than expire %s; make it at least that", f.MaxAge, f.Expire)
	}
	f.checkNames(p, s)
}

// options returns forward's options.
func (f *Forward) options(p *parser) options {
	return options{
		flag("force_tcp", &f.ForceTCP),
		flag("prefer_udp", &f.PreferUDP),
		opt("policy fastest|random|round_robin|sequential", toChoice(p, &f.Policy, "policy", map[string]Policy{
			"fastest": PolicyFastest, "random": PolicyRandom, "round_robin": PolicyRoundRobin, "sequential": PolicySequential,
		})),
		opt("except ZONES…", p.toZones(&f.Except)),
		flag("failfast_all_unhealthy_upstreams", &f.FailfastAllUnhealthy),
		opt(healthUsage, func(args []token) { f.health(p, args) }),

		opt("failover RCODE…", func(args []token) { f.Failover = append(f.Failover, failures(p, args)...) }),
		opt("next RCODE…", func(args []token) { f.NextOn = append(f.NextOn, rcodes(p, args)...) }),
		flag("next_on_nodata", &f.NextOnNodata),

		opt(maxRateUsage, func(args []token) { f.MaxRate.parse(p, args) }),
		opt("expire DURATION", p.toDuration(&f.Expire, 0, longest)),
		opt("max_age DURATION", p.toDuration(&f.MaxAge, 0, longest)),
		opt("read_timeout DURATION", p.toDuration(&f.ReadTimeout, time.Nanosecond, longest)),
		opt("max_fails NUMBER", toNumber(p, &f.MaxFails, 0, math.MaxInt32)),
		opt("max_concurrent NUMBER", toNumber(p, &f.MaxConcurrent, 0, math.MaxInt32)),
		opt("max_idle_conns NUMBER", toNumber(p, &f.MaxIdle, 0, math.MaxInt32)),
		opt("max_connect_attempts NUMBER", func(args []token) {
			n, _ := p.number(args[0], 0, math.MaxInt32)
			if f.MaxConnectAttempts = int(n); n == 0 {
				f.MaxConnectAttempts = -1
			}
		}),

		opt(tlsUsage, func(args []token) { f.TLS = tlsClient(p, p.paths(args)) }),
		opt("tls_servername NAME", func(args []token) {
			if f.ServerName = args[0].text; !hostname(f.ServerName) {
				p.errorf(args[0], "%q is not a host name", f.ServerName)
			}
		}),
		opt("doh_method POST|GET", toChoice(p, &f.DoHMethod, "method", map[string]string{"POST": "POST", "GET": "GET"})),
		opt("source_address IP", func(args []token) {
			addr, err := netip.ParseAddr(args[0].text)
			if err != nil {
				p.errorf(args[0], "%q is not an IP address", args[0].text)
			}
			f.SourceAddress = addr.Unmap()
		}),
		opt("resolver IP…", func(args []token) { f.Resolver = resolvers(p, args) }),
	}
}

func (m *MaxRate) parse(p *parser, args []token) {
	*m = MaxRate{}
	if args[0].text == "auto" {
		m.Auto = true
		if len(args) > 1 {
			p.errorf(args[1], "%q is one argument too many: max_rate auto chooses the burst itself; write: %s", args[1].text, maxRateUsage)
		}
		return
	}
	if _, err := strconv.ParseInt(args[0].text, 10, 64); err != nil {
		p.errorf(args[0], "%q is neither a number of queries per second nor auto; write: %s", args[0].text, maxRateUsage)
		return
	}
	n, ok := p.number(args[0], 1, mostQueriesPerSecond)
	if !ok {
		return
	}
	m.PerSecond, m.Burst = int(n), max(1, int(n)/MaxRateBurstPart)
	if len(args) > 1 {
		n, _ = p.number(args[1], 1, mostQueriesPerSecond)
		m.Burst = int(n)
	}
}

const healthUsage = "health_check DURATION [no_rec] [domain NAME]"

// health reads the health_check option.
func (f *Forward) health(p *parser, args []token) {
	f.HealthInterval, _ = p.duration(args[0], 0, longest)
	for i := 1; i < len(args); i++ {
		switch w := args[i]; {
		case w.text == "no_rec":
			f.HealthNoRec = true
		case w.text == "domain" && i+1 < len(args):
			i++
			name, err := wire.ParseName(args[i].text)
			if err != nil {
				p.errorf(args[i], "%v", err)
			}
			f.HealthDomain = name
		case w.text == "domain":
			p.errorf(w, "a name is missing after %q; write: %s", w.text, healthUsage)
		default:
			p.unknown(w, "option", []string{"domain", "no_rec"})
		}
	}
}

// from reads FROM, which is one zone.
func (f *Forward) from(p *parser, w token) {
	zones := p.zones([]token{w})
	if len(zones) > 1 {
		p.errorf(w, "%q is %d reverse zones; write a forward for each, or a CIDR that ends at a label", w.text, len(zones))
	}
	if len(zones) > 0 {
		f.From = zones[0]
	}
}

func (f *Forward) next() **Forward { return &f.Next }

// join appends another forward to the chain.
func (f *Forward) join(p *parser, s statement, more directive) {
	f.suspectCovered(p, s.name(), more.(*Forward), "write this one first")
	extend(p, s, f, more.(*Forward), maxForwards, "forwards; write a server block for each zone")
}

// suspectCovered reports added, to be joined to the chain that starts with f, if it gets no query.
func (f *Forward) suspectCovered(p *parser, at token, added *Forward, remedy string) {
	for prev := range chain(f) {
		if added.From.Under(prev.From) && len(prev.Except)+len(prev.NextOn) == 0 && !prev.NextOnNodata {
			p.suspect(at, "it gets no query: a forward before it takes all names in %s; %s", prev.From, remedy)
			return
		}
	}
}

// add appends an upstream once.
func (f *Forward) add(to Target) {
	if !slices.Contains(f.To, to) {
		f.To = append(f.To, to)
	}
}

const tlsUsage = "tls [CERT KEY] [CA]"

// maxResolvers bounds the servers that resolve names of upstreams. Each one that does not
// answer costs seconds.
const maxResolvers = 15

// resolvers reads addresses with or without a port.
func resolvers(p *parser, args []token) []netip.AddrPort {
	var list []netip.AddrPort
	for _, w := range args {
		at, err := address(w.text, 53)
		switch {
		case err != nil:
			p.errorf(w, "%v", err)
		case !at.IsValid():
			p.errorf(w, "%q is not an IP address; write IP or IP:PORT", w.text)
		case !slices.Contains(list, at):
			list = append(list, at)
		}
	}
	if len(list) > maxResolvers {
		p.errorf(args[0], "there are %d resolvers; allowed: 1 to %d", len(list), maxResolvers)
	}
	return list
}

// tlsClient reads the files that args name, so that errors are found at the start.
func tlsClient(p *parser, args []token) *TLSClient {
	c := &TLSClient{}
	switch len(args) {
	case 1:
		c.CA = args[0].text
	case 2:
		c.Cert, c.Key = args[0].text, args[1].text
	case 3:
		c.Cert, c.Key, c.CA = args[0].text, args[1].text, args[2].text
	}
	if p.anyOffNode(args) {
		return c
	}
	texts, ok := tlsFiles(p, args)
	if !ok {
		return c
	}
	if len(args) >= 2 {
		if _, err := tls.X509KeyPair(texts[0], texts[1]); err != nil {
			p.errorf(args[0], "%q and %q are not a certificate and its key in PEM: %v", args[0].text, args[1].text, err)
		}
	}
	if n := len(args); n%2 == 1 && !x509.NewCertPool().AppendCertsFromPEM(texts[n-1]) {
		p.errorf(args[n-1], "%q holds no certificate in PEM; name the file of the authority that signs the upstreams' certificates", args[n-1].text)
	}
	return c
}

// tlsFiles returns the content of the files that args name.
func tlsFiles(p *parser, args []token) (texts [][]byte, ok bool) {
	for _, w := range args {
		text, err := ReadFile(w.text)
		if err != nil {
			p.errorf(w, "can't read %q: %v; write: %s", w.text, err, tlsUsage)
			return nil, false
		}
		p.recordFile(w.text, text)
		texts = append(texts, text)
	}
	return texts, true
}

// rcodes reads names of rcodes, in any case.
func rcodes(p *parser, args []token) []wire.Rcode {
	const last = 23 // BADCOOKIE (IANA, DNS RCODEs); higher codes are for private use
	table := make(map[string]wire.Rcode)
	for c := range wire.Rcode(last + 1) {
		table[c.String()] = c
	}
	var list []wire.Rcode
	for _, w := range args {
		w.text = strings.ToUpper(w.text)
		if c, ok := choice(p, w, "rcode", table); ok && !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	return list
}

// failures reads rcodes other than NOERROR.
func failures(p *parser, args []token) []wire.Rcode {
	for _, w := range args {
		if strings.EqualFold(w.text, wire.NoError.String()) {
			p.errorf(w, "NOERROR is not a failure; use next_on_nodata for empty answers")
		}
	}
	return rcodes(p, args)
}

// checkNames checks the options against the upstreams when both are known.
func (f *Forward) checkNames(p *parser, s statement) {
	f.checkQUIC(p, s)
	for _, to := range f.To {
		if to.ServerName != "" && f.ServerName != "" {
			at, _ := s.last("tls_servername")
			p.errorf(at.word(), "the upstream %s already has the server name %s; remove one of the two", to, to.ServerName)
		}
		addr := to.Addr.Addr()
		if f.SourceAddress.IsValid() && addr.IsValid() && addr.Is4() != f.SourceAddress.Is4() {
			at, _ := s.last("source_address")
			p.errorf(at.word(), "the upstream %s and %s have different address families; write a forward for each family", to, f.SourceAddress)
		}
	}
}

// checkQUIC refuses the options that choose between UDP and TCP if an upstream has neither.
func (f *Forward) checkQUIC(p *parser, s statement) {
	i := slices.IndexFunc(f.To, func(to Target) bool { return to.Transport == DNSOverQUIC })
	if i < 0 {
		return
	}
	for _, o := range []struct {
		name string
		set  bool
	}{{"force_tcp", f.ForceTCP}, {"prefer_udp", f.PreferUDP}} {
		if o.set {
			p.errorf(s.name(), "the upstream %s is asked over QUIC, which %s can't change; write tls:// for TLS over TCP, remove %[2]s, or give the upstream a forward of its own", f.To[i], o.name)
		}
	}
}

// transport returns the transport of TO without a scheme.
func (f *Forward) transport() Transport {
	if f.GRPC {
		return DNSOverGRPC
	}
	return PlainDNS
}
