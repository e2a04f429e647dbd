package harness

import (
	"cmp"
	"embed"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/worst"
)

// Port is a port of 127.0.0.1.
type Port uint16

func (p Port) String() string { return strconv.Itoa(int(p)) }

// Server is a row of the report: a program with a configuration.
type Server struct {
	Name    string
	Program string
	// commit is the one whose agent it is, where that is not this tree's.
	commit string
	// Conf is the name of its configuration file in conf/; empty is none.
	Conf string
	// SaturationOnly rows are asked over UDP at saturation only: they differ from rows before them
	// in what they count about queries, or what else they do is like that of other rows.
	SaturationOnly bool
	// Scope is an option of the kubernetes directive, and env what is added to the
	// process's environment.
	Scope string
	Env   []string
	// Flags are added to the program's arguments.
	Flags []string
}

// UpstreamHost is the name in the certificate of upstreams over TLS, beside 127.0.0.1.
const UpstreamHost = "upstream.test"

// CoreDNS is the row that nodens is compared with.
const CoreDNS = "CoreDNS"

// binary is the key of its binary.
func (s Server) binary() string { return s.Program + s.commit }

// configFiles are the configuration files, with placeholders. What they have in common:
// one thread, one upstream, no validation, no log, and a cache that holds more
// than is asked for; an answer's TTL of an hour is longer than a run, so nothing
// expires in it.
//
//go:embed conf
var configFiles embed.FS

// ConfigText returns the text of a configuration file; the names are the table's, and
// a test reads all of them.
func ConfigText(name string) string {
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

// KubernetesDirective is the part of a Corefile that cluster names take, and keeping the one
// that makes the cache as large as that of the other servers. The shards that
// CoreDNS has are filled unevenly, so it gets twice as much as is put in.
const (
	KubernetesDirective = `    kubernetes cluster.local {
        kubeconfig @KUBECONFIG@
        ttl 30
    }
`
	cacheOptions = ` {
        success 200000
        denial 200000
    }`
)

// Settings are the values of the placeholders.
type Settings struct {
	Listen                      string // an IPv4 address; empty is 127.0.0.1
	Port, Metrics, Ready, Pprof Port
	Dir, Conf                   string
	Upstream                    netip.AddrPort
	Kubeconfig                  string // empty without a cluster
	Scope                       string // an option of the kubernetes directive
	// LargeCache asks for a cache of far more entries than a Corefile without a number
	// gives.
	LargeCache bool
	// Length and rcode are those of the answers of the one set of questions.
	Length, rcode int
	// Upstreams are the upstreams in an outage, over TLS where ca is the file of their
	// certificate; stale is CoreDNS's option to serve what has expired, or empty.
	Upstreams []netip.AddrPort
	CA, Stale string
	// Budget is an option of the forward directive, or empty.
	Budget string
	// Files is the folder of the files that package worst writes.
	Files string
}

// Fill returns the text with the values in place of the placeholders.
func (s Settings) Fill(text string) string {
	cluster, cache := "", ""
	text = s.fillOutage(text)
	if s.Kubeconfig != "" {
		cluster = strings.ReplaceAll(KubernetesDirective, "@KUBECONFIG@", s.Kubeconfig)
	}
	if s.LargeCache {
		cache = cacheOptions
	}
	return strings.NewReplacer(
		"@LISTEN@", cmp.Or(s.Listen, "127.0.0.1"),
		"@PORT@", s.Port.String(),
		"@METRICS@", s.Metrics.String(),
		"@READY@", s.Ready.String(),
		"@PPROF@", s.Pprof.String(),
		"@KUBECONFIG@", s.Kubeconfig,
		"@SCOPE@", s.Scope,
		"@BUDGET@", s.Budget,
		"@CONF@", s.Conf,
		"@DIR@", s.Dir,
		"@FILES@", s.Files,
		"@UPSTREAM@", s.Upstream.String(),
		"@HOST@", s.Upstream.Addr().String(),
		"@UPPORT@", strconv.Itoa(int(s.Upstream.Port())),
		"@CLUSTER@", cluster,
		"@CACHE@", cache,
		"@LENGTH@", strconv.Itoa(s.Length),
		"@RCODE@", strconv.Itoa(s.rcode),
	).Replace(text)
}

// fillOutage fills the placeholders of an outage's configuration in: unbound's, or a Corefile.
func (s Settings) fillOutage(text string) string {
	if strings.Contains(text, "forward-zone:") {
		return s.fillOutageUnbound(text)
	}
	var to []string
	stale, secure := s.Stale, ""
	for _, u := range s.Upstreams {
		if s.CA != "" {
			to = append(to, "tls://"+u.String())
		} else {
			to = append(to, u.String())
		}
	}
	if s.CA != "" {
		secure = "tls " + s.CA + "\n        tls_servername " + UpstreamHost
	}
	return strings.NewReplacer("@TO@", strings.Join(to, " "), "@STALE@", "        "+stale, "@TLS@", "        "+secure).Replace(text)
}

func (s Settings) fillOutageUnbound(text string) string {
	var to []string
	stale, secure, name := "", "", ""
	if s.CA != "" {
		name = "#" + UpstreamHost
		secure = "    tls-cert-bundle: " + s.CA
		to = append(to, "    forward-tls-upstream: yes")
	}
	for _, u := range s.Upstreams {
		to = append(to, fmt.Sprintf("    forward-addr: %s@%d%s", u.Addr(), u.Port(), name))
	}
	if s.Stale != "" {
		stale = "    serve-expired: yes\n    serve-expired-ttl: 3600\n    serve-expired-client-timeout: 1800"
	}
	return strings.NewReplacer("@TO@", strings.Join(to, "\n"), "@STALE@", stale, "@TLS@", secure).Replace(text)
}
