package main

import (
	"cmp"
	"embed"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/worst"
)

// port is a port of 127.0.0.1.
type port uint16

func (p port) String() string { return strconv.Itoa(int(p)) }

// server is a row of the report: a program with a configuration.
type server struct {
	name    string
	program string
	// commit is the one whose agent it is, where that is not this tree's.
	commit string
	// conf is the name of its configuration file in conf/; empty is none.
	conf string
	// saturationOnly rows differ from those before them in what they count about queries
	// only, so they are asked at saturation only.
	saturationOnly bool
	// scope is an option of the kubernetes directive, and env what is added to the
	// process's environment.
	scope string
	env   []string
	// flags are added to the program's arguments.
	flags []string
}

// upstreamHost is the name in the certificate of upstreams over TLS, beside 127.0.0.1.
const upstreamHost = "upstream.test"

// coreDNS is the row that nodens is compared with.
const coreDNS = "CoreDNS"

// binary is the key of its binary.
func (s server) binary() string { return s.program + s.commit }

// configFiles are the configuration files, with placeholders. What they have in common:
// one thread, one upstream, no validation, no log, and a cache that holds more
// than is asked for; an answer's TTL of an hour is longer than a run, so nothing
// expires in it.
//
//go:embed conf
var configFiles embed.FS

// configText returns the text of a configuration file; the names are the table's, and
// a test reads all of them.
func configText(name string) string {
	switch name {
	case "":
		return ""
	case "worst":
		return worst.Corefile()
	}
	text, err := configFiles.ReadFile("conf/" + name)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// kubernetesDirective is the part of a Corefile that cluster names take, and keeping the one
// that makes the cache as large as that of the other servers. The shards that
// CoreDNS has are filled unevenly, so it gets twice as much as is put in.
const (
	kubernetesDirective = `    kubernetes cluster.local {
        kubeconfig @KUBECONFIG@
        ttl 30
    }
`
	cacheOptions = ` {
        success 200000
        denial 200000
    }`
)

// settings are the values of the placeholders.
type settings struct {
	listen               string // an IPv4 address; empty is 127.0.0.1
	port, metrics, ready port
	dir, conf            string
	upstream             netip.AddrPort
	kubeconfig           string // empty without a cluster
	scope                string // an option of the kubernetes directive
	// largeCache asks for a cache of far more entries than a Corefile without a number
	// gives.
	largeCache bool
	// length and rcode are those of the answers of the one set of questions.
	length, rcode int
	// upstreams are the upstreams in an outage, over TLS where ca is the file of their
	// certificate; stale is CoreDNS's option to serve what has expired, or empty.
	upstreams []netip.AddrPort
	ca, stale string
	// files is the folder of the files that package worst writes.
	files string
}

// fill returns the text with the values in place of the placeholders.
func (s settings) fill(text string) string {
	cluster, cache := "", ""
	text = s.fillOutage(text)
	if s.kubeconfig != "" {
		cluster = strings.ReplaceAll(kubernetesDirective, "@KUBECONFIG@", s.kubeconfig)
	}
	if s.largeCache {
		cache = cacheOptions
	}
	return strings.NewReplacer(
		"@LISTEN@", cmp.Or(s.listen, "127.0.0.1"),
		"@PORT@", s.port.String(),
		"@METRICS@", s.metrics.String(),
		"@READY@", s.ready.String(),
		"@KUBECONFIG@", s.kubeconfig,
		"@SCOPE@", s.scope,
		"@CONF@", s.conf,
		"@DIR@", s.dir,
		"@FILES@", s.files,
		"@UPSTREAM@", s.upstream.String(),
		"@HOST@", s.upstream.Addr().String(),
		"@UPPORT@", strconv.Itoa(int(s.upstream.Port())),
		"@CLUSTER@", cluster,
		"@CACHE@", cache,
		"@LENGTH@", strconv.Itoa(s.length),
		"@RCODE@", strconv.Itoa(s.rcode),
	).Replace(text)
}

// fillOutage fills the placeholders of an outage's configuration in: unbound's, or a Corefile.
func (s settings) fillOutage(text string) string {
	if strings.Contains(text, "forward-zone:") {
		return s.fillOutageUnbound(text)
	}
	var to []string
	stale, secure := s.stale, ""
	for _, u := range s.upstreams {
		if s.ca != "" {
			to = append(to, "tls://"+u.String())
		} else {
			to = append(to, u.String())
		}
	}
	if s.ca != "" {
		secure = "tls " + s.ca + "\n        tls_servername " + upstreamHost
	}
	return strings.NewReplacer("@TO@", strings.Join(to, " "), "@STALE@", "        "+stale, "@TLS@", "        "+secure).Replace(text)
}

func (s settings) fillOutageUnbound(text string) string {
	var to []string
	stale, secure, name := "", "", ""
	if s.ca != "" {
		name = "#" + upstreamHost
		secure = "    tls-cert-bundle: " + s.ca
		to = append(to, "    forward-tls-upstream: yes")
	}
	for _, u := range s.upstreams {
		to = append(to, fmt.Sprintf("    forward-addr: %s@%d%s", u.Addr(), u.Port(), name))
	}
	if s.stale != "" {
		stale = "    serve-expired: yes\n    serve-expired-ttl: 3600\n    serve-expired-client-timeout: 1800"
	}
	return strings.NewReplacer("@TO@", strings.Join(to, "\n"), "@STALE@", stale, "@TLS@", secure).Replace(text)
}
