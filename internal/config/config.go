// Package config turns a Corefile into one typed, validated [Config].
//
// A Corefile is a list of server blocks; each names zones and holds directives.
// The lexer of the Caddyfile format finds the blocks and tokens, the placeholders
// of NodeLocal DNSCache's base Corefile are filled in before it, and what this
// package adds is meaning: each directive is one file, which holds its type and
// the method that reads its tokens, and one line in [Block], the table of all
// directives in the order in which a query meets them. Nothing outside the file
// itself is read or touched but the files the Corefile imports, so a Config can be
// made, looked at and thrown away.
package config

import (
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Config is what a Corefile says. It is not changed once it is made.
type Config struct {
	// Path is the file it was read from, Hash the hex SHA-512 of its expanded
	// text: coredns_reload_version_info's value.
	Path string
	Hash string
	// Blocks are the server blocks, in the file's order.
	Blocks []*Block
}

// Block is one server block, and at the same time the table of directives: each
// field with a `directive` tag is the directive of that name, nil where the block
// does not have it.
type Block struct {
	// Zones are the zones of the block's keys, without duplicates. CIDR keys are
	// expanded to their reverse zones.
	Zones []wire.Name
	// Port is the port of the block's keys; 53, or -dns.port, where they name none.
	Port uint16
	// Line is the line of the file the block starts at.
	Line int

	Bind        *Bind        `directive:"bind"`
	Bufsize     *Bufsize     `directive:"bufsize"`
	Reload      *Reload      `directive:"reload"`
	Health      *Health      `directive:"health"`
	Ready       *Ready       `directive:"ready"`
	Prometheus  *Prometheus  `directive:"prometheus"`
	Errors      *Errors      `directive:"errors"`
	Log         *Log         `directive:"log"`
	Loadbalance *Loadbalance `directive:"loadbalance"`
	Hosts       *Hosts       `directive:"hosts"`
	Kubernetes  *Kubernetes  `directive:"kubernetes"`
	Loop        *Loop        `directive:"loop"`
	Cache       *Cache       `directive:"cache"`
	Forward     *Forward     `directive:"forward"`
}

// Bind is `bind ADDRESS|INTERFACE…`: where the block listens. Without it the block
// listens on every address of -localip, or on all addresses if there is none.
type Bind struct {
	Addrs []netip.Addr
}

// Bufsize is `bufsize [SIZE]`: the most a client's EDNS payload size counts for,
// 512 to 4096 bytes.
type Bufsize struct {
	Size uint16
}

// Reload is `reload [INTERVAL] [JITTER]`: how often the Corefile is looked at for
// changes. Interval 0 is "off".
type Reload struct {
	Interval, Jitter time.Duration
}

// Health is `health [ADDRESS] { lameduck DURATION }`.
type Health struct {
	Addr     string // host:port; ":8080" by default
	Lameduck time.Duration
}

// Ready is `ready [ADDRESS]`; ":8181" by default.
type Ready struct {
	Addr string
}

// Prometheus is `prometheus [ADDRESS]`; "localhost:9153" by default.
type Prometheus struct {
	Addr string
}

// Errors is `errors`.
type Errors struct{}

// Log is `log [NAMES…] [FORMAT] { class … }`.
type Log struct {
	// Names are the zones logged; empty means all.
	Names []wire.Name
	// Classes are "success", "denial", "error", "all"; empty means all.
	Classes []string
}

// Loadbalance is `loadbalance [round_robin]`: addresses are put in random order.
type Loadbalance struct{}

// Hosts is `hosts [FILE [ZONES…]] { INLINE…; ttl N; no_reverse; reload D; fallthrough [ZONES…] }`.
type Hosts struct {
	File  string // "/etc/hosts" by default
	Zones []wire.Name
	// Inline are the lines in hosts(5) form given in the block.
	Inline      []string
	TTL         uint32        // seconds, 3600 by default
	Reload      time.Duration // 5s by default, 0 is never
	NoReverse   bool
	Fallthrough *Fallthrough
}

// Fallthrough is `fallthrough [ZONES…]`: names in Zones that a directive would
// answer with NXDOMAIN go on to the next one. nil is none; empty Zones are all.
type Fallthrough struct {
	Zones []wire.Name
}

// Kubernetes is the `kubernetes [ZONES…] { … }` directive.
type Kubernetes struct {
	Zones []wire.Name // the block's zones where none are given
	// Endpoint, TLS and Kubeconfig say where the API server is; all empty is the
	// pod's own service account. Manifests replaces it by files or folders.
	Endpoint           string
	TLS                *TLS
	Kubeconfig         string
	Context            string
	Manifests          []string
	Namespaces         []string // empty is all
	Labels             string
	TTL                uint32 // seconds, 5 by default
	Pods               PodMode
	EndpointPodNames   bool
	NoEndpoints        bool
	IgnoreEmptyService bool
	StartupTimeout     time.Duration // 5s by default
	QPS                float32       // apiserver_qps; 0 is client-go's own
	Burst              int           // apiserver_burst; 0 is client-go's own
	Fallthrough        *Fallthrough
}

// TLS names PEM files.
type TLS struct {
	Cert, Key, CA string
}

// PodMode is the `pods` option.
type PodMode uint8

// The pod modes. Verified is not in this version.
const (
	PodsDisabled PodMode = iota
	PodsInsecure
)

// Loop is `loop`: at start, find out whether the upstreams lead back here.
type Loop struct{}

// Cache is `cache [TTL] [ZONES…] { success CAP [TTL] [MINTTL]; denial CAP [TTL] [MINTTL]; servfail D }`.
type Cache struct {
	Zones    []wire.Name   // the block's zones where none are given
	Success  CacheLimits   // 9984 entries, 3600s, 5s
	Denial   CacheLimits   // 9984 entries, 1800s, 5s
	Servfail time.Duration // 5s; 0 keeps none
}

// CacheLimits bounds one kind of entry.
type CacheLimits struct {
	Entries        int
	MaxTTL, MinTTL time.Duration
}

// Policy is how `forward` chooses among its upstreams.
type Policy uint8

// The policies; Random is what is used where none is given.
const (
	PolicyRandom Policy = iota
	PolicyRoundRobin
	PolicySequential
)

// Forward is `forward FROM TO… { … }`.
type Forward struct {
	From   wire.Name
	Except []wire.Name
	// To are the upstreams as IP:port; resolv.conf files are read when the Config
	// is made. Files are those files, so that a reload can look at them again.
	To                   []netip.AddrPort
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
	FailfastAllUnhealthy bool
}
