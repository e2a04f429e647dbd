package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/netsetup"
)

// agentFlags are the flags of the agent, which most commands take as well.
type agentFlags struct {
	options.Agent
	version bool
	wait    uint8           // 1 for Polled
	level   string          // of LogLevel
	given   map[string]bool // the flags that are set, by name
}

// parseFlags reads the arguments of an agent's container. Its errors name the flag at fault.
func parseFlags(args []string) (*agentFlags, error) {
	f := newAgentFlags()
	flags, err := f.parse(args)
	if err != nil {
		return nil, err
	}
	f.complete(flags)
	return f, nil
}

// parse reads args, which are flags only. It does not complete f.
func (f *agentFlags) parse(args []string) (*pflag.FlagSet, error) {
	flags := pflag.NewFlagSet("nodens", pflag.ContinueOnError)
	flags.Usage = func() {}
	f.register(flags)
	if err := flags.Parse(cli.NormalizeFlags(flags, args)); err != nil {
		return nil, cli.FlagError(flags, err)
	}
	if flags.NArg() > 0 {
		return nil, cli.UnexpectedArgument(flags.Arg(0))
	}
	return flags, nil
}

func newAgentFlags() *agentFlags {
	f := &agentFlags{Agent: options.Default(), level: "info", given: make(map[string]bool)}
	f.Build, f.Lacks = buildInfo(), lackedDirectives()
	return f
}

// complete sets what follows from parsed flags and the environment.
func (f *agentFlags) complete(flags *pflag.FlagSet) {
	flags.Visit(func(set *pflag.Flag) { f.given[set.Name] = true })
	f.PreferBaseConf, f.Polled = f.given["basecorefile"], f.wait == 1
	_ = f.LogLevel.UnmarshalText([]byte(f.level)) // which it knows
	for _, name := range noEffectFlags {
		if f.given[name] {
			f.NoEffect = append(f.NoEffect, "--"+name)
		}
	}
	if !f.given["admin-socket"] && f.HandoverDir != "" {
		f.AdminSocket, f.AdminSocketOptional = filepath.Join(f.HandoverDir, report.DefaultSocketName), true
	}
	f.NodeName, f.NodeZone = nodeName(f.NodeName), cmp.Or(f.NodeZone, os.Getenv("NODE_ZONE"))
}

// register adds the agent's flags to flags, by group.
func (f *agentFlags) register(flags *pflag.FlagSet) {
	for _, g := range []struct {
		title string
		add   func(*pflag.FlagSet)
	}{
		{"Configuration", f.addConfiguration},
		{"Node network", f.addNetwork},
		{"DNS service", f.addService},
		{"Upgrade and cache", f.addCache},
		{"Kernel path", f.addKernelPath},
		{"Logging and metrics", f.addLogging},
	} {
		group := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		group.SortFlags = false
		g.add(group)
		group.VisitAll(func(added *pflag.Flag) { cli.SetGroup(added, g.title) })
		flags.AddFlagSet(group)
	}
}

// agentRun is the work of a command that takes the agent's flags.
type agentRun func(ctx context.Context, f *agentFlags, stdout, stderr io.Writer) error

// runE returns the RunE of a command whose flags are f.
func (f *agentFlags) runE(run agentRun) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		f.complete(cmd.Flags())
		return run(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
}

// registerOnly adds the agent's flags for another command. Its help shows the named ones;
// the others are accepted and ignored, so that the arguments of a DaemonSet can be given.
func (f *agentFlags) registerOnly(flags *pflag.FlagSet, names ...string) {
	f.register(flags)
	cli.ShowOnly(flags, names...)
}

func (f *agentFlags) addConfiguration(flags *pflag.FlagSet) {
	flags.StringVar(&f.Conf, "conf", f.Conf, "`file` of the Corefile")
	flags.StringVar(&f.BaseConf, "basecorefile", f.BaseConf, "`file` of the Corefile template, read instead of --conf if it is given, or if there is no --conf")
	flags.StringVar(&f.KubeDNSDir, "kubednscm", f.KubeDNSDir, "`directory` where the kube-dns ConfigMap is mounted (stubDomains, upstreamNameservers)")
	flags.StringVar(&f.UpstreamService, "upstreamsvc", f.UpstreamService, "`service` whose address replaces __PILLAR__CLUSTER__DNS__, and whose endpoints answer while no agent listens")
	flags.BoolVar(&f.ReloadBySignal, "reloadwithsignal", f.ReloadBySignal, "check for a changed configuration every --syncinterval, even without a reload directive; SIGUSR1 and SIGHUP always reload")
	flags.StringVar(&f.NodeName, "node-name", f.NodeName, "`name` of the Node object of this machine; without it $NODE_NAME, else the host name")
	flags.BoolVar(&f.NodeCondition, "node-condition", false, "write the condition nodens.dev/DNSReady and Events about this machine's Node object, and remove its taint nodens.dev/not-ready; needs the rights of daemonset/components/node-condition")
	cli.Choice(flags, &f.DNSPolicies, "dns-policies", "let DNSPolicies of the cluster say what pods may ask for; as long as it is not known which policies bind a client: open, none does; closed, it gets no answers; needs the rights of daemonset/components/dns-policy", options.DNSPoliciesNames...)
	flags.StringVar(&f.NodeZone, "node-zone", f.NodeZone, "topology `zone` of this machine; without it $NODE_ZONE, else the label of its Node object")
	flags.Bool("quiet", false, "accepted without an effect, for NodeLocal DNSCache's arguments: the agent logs little at its start")
	flags.Bool("plugins", false, "accepted without an effect: nodens check says which directives a Corefile has")
	flags.Bool("setupebtables", false, "accepted without an effect, for NodeLocal DNSCache's arguments: there are no ebtables rules")
	flags.String("corefile", "", "accepted without an effect, as in NodeLocal DNSCache, where the `file` of --conf counts")
	flags.StringVar(&f.Pidfile, "pidfile", f.Pidfile, "regular `file` to write the process ID to")
}

// noEffectFlags are flags of NodeLocal DNSCache that are accepted and change nothing.
var noEffectFlags = []string{"quiet", "plugins", "setupebtables", "corefile"}

func (f *agentFlags) addNetwork(flags *pflag.FlagSet) {
	cli.Func(flags, "localip", "", "comma-separated `addresses` to answer on, such as 169.254.20.10", func(s string) (err error) {
		f.LocalIPs, err = parseAddrs(s, "169.254.20.10")
		return err
	})
	f.addHost(flags)
	flags.BoolVar(&f.SetupInterface, "setupinterface", f.SetupInterface, "create the interface and assign the --localip addresses to it")
	flags.StringVar(&f.InterfaceName, "interfacename", f.InterfaceName, "`name` of that interface")
	flags.BoolVar(&f.SetupIptables, "setupiptables", f.SetupIptables, "install rules for the --localip addresses; false means --netfilter=none")
	cli.Enum(flags, &f.Netfilter, "netfilter", "backend of the rules; auto is the one of the node's kube-proxy",
		string(netsetup.NetfilterAuto), string(netsetup.NetfilterIptables), string(netsetup.NetfilterNftables), string(netsetup.NetfilterNone))
	flags.StringVar(&f.ExternalInterfaces, "external-interfaces", f.ExternalInterfaces, "`interfaces` that lead to hosts outside of the node, whose traffic the rules keep from the agent: auto, the interfaces of the default routes; none; or names separated by commas")
	cli.Func(flags, "syncinterval", "60", "interval between two checks of the interface and the rules, in `seconds` or as a duration; NodeLocal DNSCache's 60ns is a minute", f.setSyncInterval)
	flags.BoolVar(&f.SkipTeardown, "skipteardown", f.SkipTeardown, "keep the interface and the rules at exit: queries go to the cluster DNS until the next start; nodens cleanup removes them")
	cli.Func(flags, "health-port", "8080", "`port` of the health endpoint, for the rules; 0 for none", portFlag(&f.HealthPort, 0))
	flags.StringVar(&f.TakeoverService, "takeover-service", f.TakeoverService, "`service` whose ClusterIP the agent takes over: the start fails if the ClusterIP is not in --localip; empty for no comparison")
}

func (f *agentFlags) addService(flags *pflag.FlagSet) {
	cli.Func(flags, "dns.port", "53", "`port` of server blocks that name none", portFlag(&f.DNSPort, 1))
	cli.Func(flags, "p", "53", "`port`, as --dns.port: CoreDNS's short name", portFlag(&f.DNSPort, 1))
	cli.Func(flags, "readers", "0", "`number` of UDP sockets and threads of each address; 0 for one per core", f.setReaders)
	cli.Choice(flags, &f.wait, "reader-wait", "where readers wait for packets: in the kernel, or in Go's poller", "kernel", "poller")
	cli.Func(flags, "client-limit", "off", "`limit` of the queries of each client to the agent as QPS [BURST] [refuse|truncate|drop], such as \"200 400 refuse\"; off for none", f.setClientLimit)
	cli.Func(flags, "client-limit-except", "", "comma-separated `addresses` or CIDRs of clients without a limit, besides the node itself", func(s string) (err error) {
		f.ClientLimitExcept, err = config.ParseNets(s)
		return err
	})
}

func (f *agentFlags) addCache(flags *pflag.FlagSet) {
	cli.Func(flags, "cache-size", "32Mi", "`bytes` that all caches together may take, such as 32Mi; the process grows by up to 2.5 times as much", f.setCacheSize)
	flags.StringVar(&f.AdminSocket, "admin-socket", f.AdminSocket, "`path` of the socket that nodens status, top and cache connect to, for the agent's own user only; without it admin.sock in --handover-dir; empty for none")
	cli.Func(flags, "page", "off", "loopback `address` of the HTML page of the agent, such as 127.0.0.1:8353, which everybody on the node can read; off for none", f.setPage)
	flags.StringVar(&f.HandoverDir, "handover-dir", f.HandoverDir, "`directory` through which the next agent on this node takes over the sockets and the cache, and where the cache is saved, on the node's disk and writable only by the agent's user; empty for none")
	cli.Func(flags, "handover-compare", "60s", "`duration` for which the agent, after it has taken over, compares itself with the agent before it, and gives the node back if it is worse; 0 for no comparison", f.setHandoverCompare)
}

func (f *agentFlags) addKernelPath(flags *pflag.FlagSet) {
	cli.Choice(flags, &f.KernelPath, "kernel-path", "answer pods' queries in the kernel where the answer is known; auto: if this kernel can; on: fail if it can't", options.KernelPathModes...)
	cli.Choice(flags, &f.Bypass, "bypass", "count packets of pods to the DNS ports (53, 853) of other servers than the agent; needs --kernel-path=auto or on", options.BypassNames...)
	cli.Func(flags, "bypass-doh", "", "comma-separated `addresses` of servers of DNS over HTTPS, whose port 443 --bypass=count counts, too", f.setBypassDoH)
	cli.Func(flags, "kernel-path-order", "last", "`position` of --kernel-path's program among others on an interface: last, first, before:NAME or after:NAME of another program", f.setKernelPathOrder)
}

func (f *agentFlags) addLogging(flags *pflag.FlagSet) {
	cli.Enum(flags, &f.LogFormat, "log-format", "format of the log; coredns for the lines that CoreDNS writes", options.LogText, options.LogJSON, options.LogCoreDNS)
	cli.Enum(flags, &f.level, "log-level", "lowest level of the lines to log; the lines of the log directive have the level info; the debug directive means debug", "debug", "info", "warn", "error")
	flags.StringVar(&f.MetricsAddr, "metrics-listen-address", f.MetricsAddr, "`address` of the metrics about the node's network; empty for none")
	cli.Choice(flags, &f.ClientMetrics, "client-metrics", "labels of the metrics of pods' queries; off counts no queries by client, so that nodens_client_queries_total is absent", options.ClientMetricsNames...)
	flags.BoolVar(&f.FormerMetricNames, "former-metric-names", f.FormerMetricNames, "also expose metrics by their names before CoreDNS 1.7, such as those that end in _count_total, for older dashboards")
	flags.StringVar(&f.PrometheusAddr, "prometheus-listen-address", f.PrometheusAddr, "`address` that replaces __PROMETHEUS__ENDPOINT__")
}

// nodeName returns the name of the Node object of this machine: given, else $NODE_NAME,
// else the host name as the kubelet takes it, trimmed and in lower case. "" means unknown.
func nodeName(given string) string {
	if name := cmp.Or(given, os.Getenv("NODE_NAME")); name != "" {
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(host))
}

// parseAddrs reads addresses separated by commas. example is one for the error.
func parseAddrs(s, example string) (list []netip.Addr, err error) {
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		a, err := netip.ParseAddr(part)
		if err != nil {
			return nil, fmt.Errorf("%q is no IP address; give addresses separated by commas, such as %s", part, example)
		}
		list = append(list, a)
	}
	return list, nil
}

// maxHostListen bounds --host-listen: the C library uses three name servers (resolv.conf(5)).
const maxHostListen = 2

// addHost adds the flags about the node's own look-ups.
func (f *agentFlags) addHost(flags *pflag.FlagSet) {
	cli.Func(flags, "host-listen", "", "comma-separated `addresses` to answer the node's own look-ups on, such as 169.254.20.11: one, or one of each family", f.setHostListen)
	cli.Choice(flags, &f.HostResolver, "host-resolver", "what the agent does to the node's resolv.conf while it serves; auto: point it to --host-listen, as systemd-resolved, NetworkManager or the file itself asks for; remove: restore it", options.HostResolverNames...)
	flags.StringVar(&f.HostRoot, "host-root", "/", "`directory` at which the node's /etc and /run are mounted, for --host-listen")
}

// setHostListen reads the addresses for the node's own look-ups.
func (f *agentFlags) setHostListen(s string) (err error) {
	if f.HostListen, err = parseAddrs(s, "169.254.20.11"); err != nil {
		return err
	}
	if len(f.HostListen) > maxHostListen {
		return fmt.Errorf("%d addresses; give %d at most: programs on the node use three name servers, and the node's own have to be among them", len(f.HostListen), maxHostListen)
	}
	for _, a := range f.HostListen {
		if a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("%v is not an address that one agent has; give one, such as 169.254.20.11", a)
		}
	}
	return nil
}

// setBypassDoH reads the servers of DNS over HTTPS.
func (f *agentFlags) setBypassDoH(s string) (err error) {
	if f.BypassDoH, err = parseAddrs(s, "192.0.2.44"); err == nil && len(f.BypassDoH) > options.MaxBypassDoH {
		return fmt.Errorf("%d addresses; give %d at most", len(f.BypassDoH), options.MaxBypassDoH)
	}
	return err
}

const maxSyncInterval = 24 * time.Hour

// setSyncInterval reads seconds or a duration. NodeLocal DNSCache multiplies its duration by a second, so that its
// values in use are nanoseconds: 60ns is a minute.
func (f *agentFlags) setSyncInterval(s string) error {
	d, err := time.ParseDuration(s)
	if n, bad := strconv.Atoi(s); bad == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if 0 < d && d < time.Second && d <= maxSyncInterval/time.Second {
		d = time.Duration(d.Nanoseconds()) * time.Second
	}
	if err != nil || d < time.Second || d > maxSyncInterval {
		return errors.New("give seconds, such as 60, or a duration, such as 60s, from 1s to 24h")
	}
	f.SyncInterval = d
	return nil
}

// maxReaders bounds --readers; each takes some 150 KiB.
const maxReaders = 1024

func (f *agentFlags) setReaders(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxReaders {
		return fmt.Errorf("give a number from 1 to %d, or 0 for one reader on each core", maxReaders)
	}
	f.Readers = n
	return nil
}

// setClientLimit reads what client_limit takes.
func (f *agentFlags) setClientLimit(s string) (err error) {
	if f.ClientLimit = nil; s == "" || s == "off" {
		return nil
	}
	f.ClientLimit, err = config.ParseClientLimit(s)
	return err
}

// portFlag returns the function that sets p to a port from least on.
func portFlag(p *uint16, least uint64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n < least {
			return fmt.Errorf("give a port from %d to 65535", least)
		}
		*p = uint16(n)
		return nil
	}
}

// minCacheSize rejects values whose unit was forgotten, such as 32.
const minCacheSize = 1 << 20

// setCacheSize reads plain bytes, or a number of Ki, Mi or Gi as in Kubernetes quantities.
func (f *agentFlags) setCacheSize(s string) error {
	digits, shift := s, 0
	for i, unit := range []string{"Ki", "Mi", "Gi"} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > options.MaxCacheSize>>shift || n<<shift < minCacheSize {
		return errors.New("give bytes, or a number of Ki, Mi or Gi, such as 32Mi, from 1Mi to 16Gi")
	}
	f.CacheSize = int(n << shift)
	return nil
}

// setPage reads the address of the page. Others than loopback would show the page to other hosts and to pods.
func (f *agentFlags) setPage(s string) error {
	f.Page = netip.AddrPort{}
	if s == "" || s == "off" {
		return nil
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil || addr.Port() == 0 {
		return errors.New("give an IP address and a port, such as 127.0.0.1:8353, or off")
	}
	if !addr.Addr().IsLoopback() {
		return errors.New("the address is not loopback; give one such as 127.0.0.1:8353, and reach it from elsewhere by kubectl port-forward")
	}
	f.Page = addr
	return nil
}

// The bounds of --handover-compare: in less time there are too few queries to tell, and meanwhile
// the agent before uses memory.
const (
	minHandoverCompare = 5 * time.Second
	maxHandoverCompare = 10 * time.Minute
)

func (f *agentFlags) setHandoverCompare(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d != 0 && (d < minHandoverCompare || d > maxHandoverCompare) {
		return errors.New("give a duration from 5s to 10m, such as 60s, or 0 for no comparison")
	}
	f.HandoverCompare = d
	return nil
}

func (f *agentFlags) setKernelPathOrder(s string) error {
	where, name, _ := strings.Cut(s, ":")
	switch {
	case s == "last":
		f.KernelPathOrder = options.KernelPathOrder{}
	case s == "first":
		f.KernelPathOrder = options.KernelPathOrder{First: true}
	case where == "before" && name != "":
		f.KernelPathOrder = options.KernelPathOrder{Before: name}
	case where == "after" && name != "":
		f.KernelPathOrder = options.KernelPathOrder{After: name}
	default:
		return errors.New("give last, first, before:NAME or after:NAME, with the name of a program in the kernel, such as before:cil_from_container")
	}
	return nil
}
