// Package options has the settings of an agent: what its flags set, their defaults, and the
// values of them that more than one package knows. It builds on every system, so that the
// commands for an operator's workstation can use it without the agent.
package options

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/resolvconf"
	"github.com/nodens-dns/nodens/netsetup"
)

// Agent are the settings of an agent beside its Corefile, one for each flag of the command.
// [Default] has their defaults. The agent does not change them.
type Agent struct {
	Build Build // of the binary, for metrics, logs and other agents
	// Lacks are the directives that the build lacks ([config.Options]). The agent sets it.
	Lacks []string

	// LocalIPs are the addresses of the interface and the rules. Without any, and without HostListen, the agent
	// leaves the node's network alone.
	LocalIPs []netip.Addr
	// HostListen are the addresses for the node's own look-ups, on the same interface; none: the agent does not
	// answer them.
	HostListen []netip.Addr
	// HostRoot is the directory at which the node's /etc and /run are mounted; "" or "/" for the root directory.
	HostRoot string
	// HostResolver says what the agent does to the node's resolv.conf while it serves.
	HostResolver HostResolver
	// Conf is the path of the Corefile, BaseConf the path of its template. The agent reads
	// BaseConf if there is no Conf, or if PreferBaseConf is set.
	Conf, BaseConf string
	PreferBaseConf bool
	KubeDNSDir     string // mount path of the kube-dns ConfigMap
	// UpstreamService names the Service in namespace kube-system whose cluster IP replaces
	// __PILLAR__CLUSTER__DNS__, and whose endpoints answer while no agent listens.
	UpstreamService string
	// TakeoverService names the Service in namespace kube-system whose cluster IP has to be one
	// of LocalIPs; "": there is none to compare.
	TakeoverService string
	PrometheusAddr  string // replaces __PROMETHEUS__ENDPOINT__
	DNSPort         uint16 // of server blocks that name none

	SetupInterface bool   // create the interface and assign LocalIPs to it
	InterfaceName  string // of that interface
	SetupIptables  bool   // install rules for LocalIPs
	Netfilter      netsetup.Netfilter
	// ExternalInterfaces are the interfaces whose traffic the rules keep from the agent:
	// names separated by commas, [netsetup.ExternalAuto], or "none".
	ExternalInterfaces string
	SyncInterval       time.Duration // between two checks of the interface and the rules
	SkipTeardown       bool          // keep the interface and the rules at the end
	HealthPort         uint16        // of the health endpoint, for the rules; 0: none

	// NoEffect are the flags that are given and change nothing, for the log.
	NoEffect []string

	// FormerMetricNames adds the names that metrics had before CoreDNS 1.7.
	FormerMetricNames bool

	MetricsAddr    string // listen address of the metrics; "": only the addresses in the Corefile
	Pidfile        string // "": none
	ReloadBySignal bool   // check for a changed configuration every SyncInterval
	NodeName       string // name of the Node object of this machine; "": unknown
	NodeCondition  bool   // write the state of DNS into the Node object
	DNSPolicies    DNSPolicies
	NodeZone       string // topology zone of this machine; "": the label of its Node object
	Readers        int    // UDP sockets and threads of each address; 0: one for each core
	Polled         bool   // Go's poller waits for packets, not the reader's thread
	CacheSize      int    // bytes that all caches together may take
	AdminSocket    string // path of the admin socket; "": none
	// AdminSocketOptional: the agent serves without the admin socket if it can't listen there.
	AdminSocketOptional bool
	// Page is where the page is served; not valid: there is none. The address is loopback.
	Page        netip.AddrPort
	HandoverDir string // directory for handovers and the saved cache; "": none
	// HandoverCompare is how long the agent compares itself with its predecessor; 0: not at all.
	HandoverCompare time.Duration
	LogFormat       string // LogText, LogJSON or LogCoreDNS
	LogLevel        slog.Level
	KernelPath      KernelPathMode
	KernelPathOrder KernelPathOrder
	Bypass          Bypass
	BypassDoH       []netip.Addr // servers of DNS over HTTPS whose packets Bypass counts, too
	ClientMetrics   ClientMetrics
	// ClientLimit is the limit of each client's queries to all server blocks together; nil: none. Its Except is empty.
	ClientLimit *config.ClientLimit
	// ClientLimitExcept are the clients without a limit, of the agent or of a server block.
	ClientLimitExcept []netip.Prefix

	// Reload makes the agent read its configuration again, whenever a value arrives; nil: only
	// what the configuration says does.
	Reload <-chan os.Signal
	// OnServing is called once, when the start is complete; nil: nothing is.
	OnServing func()
	// CacheClock is the clock of the caches; nil: package clock's. Tests set it.
	CacheClock func() time.Duration
	// StartWaiting is [resolver.Routes.StartWaiting]. Tests set it.
	StartWaiting bool
}

// Build describes the binary.
type Build struct {
	Version   string // as released, or "dev"
	Commit    string // of the source, or "unknown"
	GoVersion string // of the compiler
}

// String returns the line that -version prints.
func (b Build) String() string {
	return fmt.Sprintf("nodens-%s %s/%s, %s, %s", b.Version, runtime.GOOS, runtime.GOARCH, b.GoVersion, b.Commit)
}

// KernelPathMode is the value of --kernel-path.
type KernelPathMode uint8

// The modes.
const (
	KernelPathOff  KernelPathMode = iota
	KernelPathAuto                // if this node's kernel can
	KernelPathOn                  // an error if this node's kernel cannot
)

// KernelPathModes are the names of the modes.
var KernelPathModes = []string{"off", "auto", "on"}

func (m KernelPathMode) String() string { return KernelPathModes[m] }

// KernelPathOrder is the value of --kernel-path-order: the position of the program among others on
// an interface. It has the fields of kernelpath.Order.
type KernelPathOrder struct {
	// First puts it in front of all others.
	First bool
	// Before and After name another program, by its name in the kernel. If that program is
	// not on the interface, and with the zero value, ours goes behind all others.
	Before, After string
}

// HostResolver is the value of --host-resolver.
type HostResolver uint8

// The values.
const (
	HostResolverOff    HostResolver = iota
	HostResolverAuto                // kept pointing to the agent
	HostResolverRemove              // restored as it was without the agent
)

// HostResolverNames are the names of the values.
var HostResolverNames = []string{"off", "auto", "remove"}

func (m HostResolver) String() string { return HostResolverNames[m] }

// Bypass is the value of --bypass.
type Bypass uint8

// The values.
const (
	BypassOff   Bypass = iota
	BypassCount        // packets of pods to other DNS servers are counted
)

// BypassNames are the names of the values.
var BypassNames = []string{"off", "count"}

// MaxBypassDoH bounds BypassDoH. It is kernelpath.MaxDoH.
const MaxBypassDoH = 256

// ClientMetrics is the value of --client-metrics.
type ClientMetrics uint8

// The values.
const (
	ClientMetricsOff       ClientMetrics = iota // queries are not counted by client at all
	ClientMetricsNamespace                      // metrics by namespace
	ClientMetricsWorkload                       // metrics by namespace and workload
)

// ClientMetricsNames are the names of the values.
var ClientMetricsNames = []string{"off", "namespace", "workload"}

func (m ClientMetrics) String() string { return ClientMetricsNames[m] }

// DNSPolicies is the value of --dns-policies.
type DNSPolicies uint8

// The values. The last two say what becomes of clients as long as it is not known which policies bind them.
const (
	DNSPoliciesOff    DNSPolicies = iota // no DNSPolicies are watched
	DNSPoliciesOpen                      // no policy binds them
	DNSPoliciesClosed                    // they get no answers
)

// DNSPoliciesNames are the names of the values.
var DNSPoliciesNames = []string{"off", "open", "closed"}

func (p DNSPolicies) String() string { return DNSPoliciesNames[p] }

// The values of --log-format.
const (
	LogText    = "text"
	LogJSON    = "json"
	LogCoreDNS = "coredns"
)

const (
	// defaultCacheSize holds some 130,000 answers, more than six times the entries of one cache
	// directive with its defaults.
	defaultCacheSize = 32 << 20
	// MaxCacheSize is the highest CacheSize, about a hundred million answers.
	MaxCacheSize = 16 << 30
)

// Default returns the defaults of all flags.
func Default() Agent {
	return Agent{
		Conf:               "/etc/Corefile",
		BaseConf:           "/etc/coredns/Corefile.base",
		KubeDNSDir:         "/etc/kube-dns",
		UpstreamService:    "kube-dns",
		PrometheusAddr:     ":9253",
		DNSPort:            53,
		SetupInterface:     true,
		InterfaceName:      "nodelocaldns",
		SetupIptables:      true,
		Netfilter:          netsetup.NetfilterAuto,
		ExternalInterfaces: netsetup.ExternalAuto,
		SyncInterval:       time.Minute,
		HealthPort:         8080,
		MetricsAddr:        "0.0.0.0:9353",
		CacheSize:          defaultCacheSize,
		HandoverCompare:    time.Minute,
		LogFormat:          LogText,
		ClientMetrics:      ClientMetricsNamespace,
	}
}

// LoadConfig reads the Corefile and the files it names. It changes nothing on the node.
func (o *Agent) LoadConfig() (*config.Config, error) {
	path, err := o.Corefile()
	if err != nil {
		return nil, err
	}
	return config.Load(path, o.ConfigOptions(path))
}

// LoadFirst is LoadConfig for the start, which a broken kube-dns ConfigMap does not keep from serving, as in NodeLocal
// DNSCache. It leaves out the ConfigMap's keys with errors, and returns these errors as ignored.
func (o *Agent) LoadFirst() (cfg *config.Config, ignored, err error) {
	path, err := o.Corefile()
	if err != nil {
		return nil, nil, err
	}
	opts := o.ConfigOptions(path)
	for {
		if cfg, err = config.Load(path, opts); err == nil {
			return cfg, ignored, nil
		}
		var broken []string
		for _, e := range config.ParseErrors(err) {
			if o.KubeDNSDir != "" && filepath.Dir(e.File) == filepath.Clean(o.KubeDNSDir) && !slices.Contains(opts.WithoutKubeDNS, filepath.Base(e.File)) {
				broken = append(broken, filepath.Base(e.File))
			}
		}
		if len(broken) == 0 {
			return nil, ignored, err
		}
		opts.WithoutKubeDNS, ignored = append(opts.WithoutKubeDNS, broken...), errors.Join(ignored, err)
	}
}

// ConfigOptions returns the settings that the meaning of the Corefile at path depends on. Relative
// imports of the template start beside Conf, as in NodeLocal DNSCache, which renders it to there.
func (o *Agent) ConfigOptions(path string) config.Options {
	beside := ""
	if path == o.BaseConf && path != "" {
		beside = o.Conf
	}
	return config.Options{
		HostListen:      o.HostListen,
		HostServers:     o.hostServers(),
		ImportsBeside:   beside,
		Port:            o.DNSPort,
		LocalIPs:        o.LocalIPs,
		UpstreamService: o.UpstreamService,
		KubeDNS:         o.KubeDNSDir,
		PrometheusAddr:  o.PrometheusAddr,
		Interface:       o.interfaceAddrs,
		Lacks:           o.Lacks,
		OffNode:         runtime.GOOS != "linux", // nodes run Linux
	}
}

// Host returns the name resolution of the node.
func (o *Agent) Host() resolvconf.Host {
	return resolvconf.Host{Root: o.HostRoot, Addrs: o.HostListen, Own: o.LocalIPs}
}

// hostServers returns what reads the servers of the node; nil on another system.
func (o *Agent) hostServers() func() ([]netip.Addr, error) {
	if runtime.GOOS != "linux" || len(o.HostListen) == 0 {
		return nil
	}
	return func() ([]netip.Addr, error) {
		s, err := o.Host().Read()
		return s.Servers, err
	}
}

// CheckHost returns an error if a setting about the node's own look-ups does not fit the others.
func (o *Agent) CheckHost() error {
	if o.HostResolver != HostResolverOff && len(o.HostListen) == 0 {
		return errors.New("--host-resolver: there is no address to point the node's look-ups to; give one with --host-listen, such as 169.254.20.11")
	}
	for i, a := range o.HostListen {
		if slices.Contains(o.LocalIPs, a) || slices.Contains(o.HostListen[:i], a) {
			return fmt.Errorf("--host-listen: %v is given twice, here or in --localip; give another address, such as 169.254.20.11", a)
		}
	}
	if o.HostResolver != HostResolverOff && o.DNSPort != 53 {
		return fmt.Errorf("--host-resolver: a resolv.conf names no port, and --dns.port is %d; leave --dns.port out", o.DNSPort)
	}
	return nil
}

// interfaceAddrs returns the addresses of the network interface that `bind` names. The
// agent's own interface may not exist yet, but its addresses are known.
func (o *Agent) interfaceAddrs(name string) ([]netip.Addr, error) {
	if name == o.InterfaceName && o.SetupInterface && len(o.LocalIPs) > 0 {
		return o.LocalIPs, nil
	}
	return config.InterfaceAddrs(name)
}

// Corefile returns the path of the file to read: BaseConf or Conf. NodeLocal DNSCache
// renders the one into the other; here the rendered text stays in memory.
func (o *Agent) Corefile() (string, error) {
	if o.PreferBaseConf {
		return o.BaseConf, nil
	}
	_, confErr := os.Stat(o.Conf)
	if confErr == nil {
		return o.Conf, nil
	}
	if _, err := os.Stat(o.BaseConf); err == nil && errors.Is(confErr, fs.ErrNotExist) {
		return o.BaseConf, nil
	}
	return "", fmt.Errorf("reading the Corefile: %w; name one with --conf or --basecorefile", confErr)
}

// SetsUpRules reports whether the agent installs rules for the addresses that it has.
func (o *Agent) SetsUpRules() bool { return o.SetupIptables && o.Netfilter != netsetup.NetfilterNone }

// SetsUpNetwork reports whether the agent creates an interface or rules. It needs an
// address for either.
func (o *Agent) SetsUpNetwork() bool {
	return len(o.LocalIPs)+len(o.HostListen) > 0 && (o.SetupInterface || o.SetsUpRules())
}

// Network returns the settings of the node's network. Package netsetup logs to log.
func (o *Agent) Network(log *slog.Logger) netsetup.Config {
	return netsetup.Config{
		Addresses:      o.LocalIPs,
		HostAddresses:  o.HostListen,
		DNSPort:        o.DNSPort,
		HealthPort:     o.HealthPort,
		InterfaceName:  o.InterfaceName,
		SetupInterface: o.SetupInterface,
		SetupIptables:  o.SetsUpRules(),
		Netfilter:      o.Netfilter,
		Interval:       o.SyncInterval,
		SkipTeardown:   o.SkipTeardown,
		Logger:         log.With("part", "netsetup"),

		ExternalInterfaces: o.ExternalInterfaces,
	}
}

// CachePath returns the path of the saved cache, "" if the agent saves none.
func (o *Agent) CachePath() string {
	if o.HandoverDir == "" {
		return ""
	}
	return filepath.Join(o.HandoverDir, "cache")
}

// NewLookups returns s and changes as commands print them. Its lists are not nil.
func NewLookups(s *resolvconf.State, changes []resolvconf.Change) *report.Lookups {
	l := &report.Lookups{
		Manager: string(s.Manager), File: s.File, AgentFirst: s.Points,
		Servers: []string{}, Problems: append([]string{}, s.Problems...), Changes: []report.FileChange{},
	}
	for _, a := range s.Servers {
		l.Servers = append(l.Servers, a.String())
	}
	for _, c := range changes {
		l.Changes = append(l.Changes, report.FileChange{Path: c.Path, Removed: c.Remove, Link: c.Link, Text: c.Text})
	}
	return l
}

// NewNetwork returns d as commands print it and the admin socket returns it. Its lists are not nil.
func NewNetwork(d netsetup.Description) report.Network {
	n := report.Network{
		Interface: d.Interface, Addresses: []string{}, ExternalInterfaces: append([]string{}, d.External...),
		OpenInterfaces: append([]string{}, d.NotExternal...), DefaultRoutes: d.DefaultRoutes, Backend: d.Backend, BackendReason: d.Reason,
		Blocked: append([]string{}, d.Blocked...), Rules: []string{},
	}
	for _, a := range d.Addresses {
		n.Addresses = append(n.Addresses, a.String())
	}
	if d.Rules != "" {
		n.Rules = strings.Split(d.Rules, "\n")
	}
	return n
}
