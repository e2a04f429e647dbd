package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/netsetup"
)

// agentFlags are the flags of the agent, which most commands take as well.
type agentFlags struct {
	options.Agent
	version bool
	given   map[string]bool // the flags that are set, by name
}

const usage = `nodens is a node-local DNS agent for Kubernetes.

  nodens [FLAGS]         run the agent
  nodens check [FLAGS]   print what the agent would do with -conf; change nothing
  nodens plan [FLAGS]    print the interface, addresses and rules for FLAGS; change nothing
  nodens cleanup [FLAGS] remove what an agent, or NodeLocal DNSCache, has left on this
                         node; -localip names its addresses
  nodens ready -handover-dir DIR
                         exit with 0 if the agent in this container is ready, else with 1
  nodens sample          run without root or a cluster on 127.0.0.1:5353, with sample names
  nodens wait            do nothing until a signal arrives, for a pod whose work is done
` + flushUsage + migrateUsage + `
`

// parseFlags reads the agent's flags. For -help it prints the usage to stderr and returns
// [flag.ErrHelp]. Other errors are of type *usageError and name the flag and its values.
func parseFlags(args []string, stderr io.Writer) (*agentFlags, error) {
	f := newAgentFlags()
	fs := flag.NewFlagSet("nodens", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	f.register(fs)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stderr, usage)
		fs.SetOutput(stderr)
		fs.PrintDefaults()
		return nil, err
	}
	if err != nil {
		return nil, &usageError{fmt.Errorf("%w; nodens -help lists the flags", err)}
	}
	if fs.NArg() > 0 {
		return nil, &usageError{fmt.Errorf("unexpected argument %q; flags start with a dash and take their value as -name=value", fs.Arg(0))}
	}
	fs.Visit(func(set *flag.Flag) { f.given[set.Name] = true })
	f.PreferBaseConf = f.given["basecorefile"]
	f.NodeName, f.NodeZone = nodeName(f.NodeName), cmp.Or(f.NodeZone, os.Getenv("NODE_ZONE"))
	return f, nil
}

func newAgentFlags() *agentFlags {
	f := &agentFlags{Agent: options.Default(), given: make(map[string]bool)}
	f.Build = buildInfo()
	return f
}

// register adds the flags to fs. A usage text puts the value's name in backquotes.
func (f *agentFlags) register(fs *flag.FlagSet) {
	fs.Func("localip", "comma-separated `addresses` to answer on, such as 169.254.20.10", f.setLocalIPs)
	fs.StringVar(&f.Conf, "conf", f.Conf, "Corefile `file`")
	fs.StringVar(&f.BaseConf, "basecorefile", f.BaseConf, "Corefile template `file`, read instead of -conf if it is given, or if there is no -conf")
	fs.StringVar(&f.KubeDNSDir, "kubednscm", f.KubeDNSDir, "`directory` where the kube-dns ConfigMap is mounted (stubDomains, upstreamNameservers)")
	fs.StringVar(&f.UpstreamService, "upstreamsvc", f.UpstreamService, "`service` whose address replaces __PILLAR__CLUSTER__DNS__")
	fs.StringVar(&f.TakeoverService, "takeover-service", f.TakeoverService, "`service` whose ClusterIP the agent takes over: the start fails if the ClusterIP is not in -localip; empty for no comparison")
	fs.BoolVar(&f.SetupInterface, "setupinterface", f.SetupInterface, "create the interface and assign the -localip addresses to it")
	fs.StringVar(&f.InterfaceName, "interfacename", f.InterfaceName, "`name` of that interface")
	fs.BoolVar(&f.SetupIptables, "setupiptables", f.SetupIptables, "install rules for the -localip addresses; false means -netfilter=none")
	fs.Func("netfilter", "backend of the rules: `auto`, the same as the node's kube-proxy; iptables; nftables; or none (default auto)", f.setNetfilter)
	fs.StringVar(&f.ExternalInterfaces, "external-interfaces", f.ExternalInterfaces, "`interfaces` that lead to hosts outside of the node, whose traffic the rules keep from the agent: auto, the interfaces of the default routes; none; or names separated by commas")
	fs.Func("syncinterval", "interval between two checks of the interface and the rules, in `seconds` or as a duration (default 60)", f.setSyncInterval)
	fs.BoolVar(&f.SkipTeardown, "skipteardown", f.SkipTeardown, "keep the interface and the rules at exit: queries go to the cluster DNS until the next start; nodens cleanup removes them")
	fs.Func("health-port", "`port` of the health endpoint, for the rules; 0 for none (default 8080)", portFlag(&f.HealthPort, 0))
	fs.StringVar(&f.MetricsAddr, "metrics-listen-address", f.MetricsAddr, "`address` of the metrics about the node's network; empty for none")
	fs.StringVar(&f.PrometheusAddr, "prometheus-listen-address", f.PrometheusAddr, "`address` that replaces __PROMETHEUS__ENDPOINT__")
	fs.StringVar(&f.Pidfile, "pidfile", f.Pidfile, "`file` to write the process ID to")
	fs.BoolVar(&f.ReloadBySignal, "reloadwithsignal", f.ReloadBySignal, "check for a changed configuration every -syncinterval, even without a reload directive; SIGUSR1 always reloads")
	fs.Func("dns.port", "`port` of server blocks that name none (default 53)", portFlag(&f.DNSPort, 1))
	fs.StringVar(&f.NodeName, "node-name", f.NodeName, "`name` of the Node object of this machine (default $NODE_NAME, else the host name)")
	fs.StringVar(&f.NodeZone, "node-zone", f.NodeZone, "topology `zone` of this machine (default $NODE_ZONE, else the label of its Node object)")
	fs.Func("readers", "`number` of UDP sockets and threads of each address; 0 for one per core (default 0)", f.setReaders)
	fs.Func("reader-wait", "where readers wait for packets: in the `kernel`, or in Go's poller (default kernel)", f.setReaderWait)
	fs.Func("cache-size", "`bytes` that all caches together may take, such as 32Mi (default 32Mi)", f.setCacheSize)
	fs.StringVar(&f.AdminSocket, "admin-socket", f.AdminSocket, "`path` of the socket that nodens flush connects to; empty for none")
	fs.StringVar(&f.HandoverDir, "handover-dir", f.HandoverDir, "`directory` through which the next agent on this node takes over the sockets and the cache, and where the cache is saved; empty for none")
	fs.Func("kernel-path", "answer pods' queries in the kernel where the answer is known: `off`; auto, if this kernel can; or on, fail if it can't (default off)", f.FastPath.Set)
	fs.Func("kernel-path-order", "position of -kernel-path's program among others on an interface: `last`, first, before:NAME or after:NAME of another program (default last)", f.setFastPathOrder)
	fs.StringVar(&f.LogFormat, "log-format", f.LogFormat, "`text`, json, or coredns for the lines that CoreDNS writes")
	fs.BoolVar(&f.version, "version", false, "print the version and exit")
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

func (f *agentFlags) setLocalIPs(s string) error {
	f.LocalIPs = nil
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		a, err := netip.ParseAddr(part)
		if err != nil {
			return fmt.Errorf("%q is no IP address; give addresses separated by commas, such as 169.254.20.10", part)
		}
		f.LocalIPs = append(f.LocalIPs, a)
	}
	return nil
}

const maxSyncInterval = 24 * time.Hour

func (f *agentFlags) setSyncInterval(s string) error {
	d, err := time.ParseDuration(s)
	if n, bad := strconv.Atoi(s); bad == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < time.Second || d > maxSyncInterval {
		return errors.New("give seconds, such as 60, or a duration, such as 60s, from 1s to 24h")
	}
	f.SyncInterval = d
	return nil
}

func (f *agentFlags) setNetfilter(s string) error {
	switch backend := netsetup.Netfilter(s); backend {
	case netsetup.NetfilterAuto, netsetup.NetfilterIptables, netsetup.NetfilterNftables, netsetup.NetfilterNone:
		f.Netfilter = backend
		return nil
	default:
		return errors.New("give auto, iptables, nftables or none")
	}
}

// maxReaders bounds -readers; each takes some 150 KiB.
const maxReaders = 1024

func (f *agentFlags) setReaders(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxReaders {
		return fmt.Errorf("give a number from 1 to %d, or 0 for one reader on each core", maxReaders)
	}
	f.Readers = n
	return nil
}

func (f *agentFlags) setReaderWait(s string) error {
	if s != "kernel" && s != "poller" {
		return errors.New("give kernel or poller")
	}
	f.Polled = s == "poller"
	return nil
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

func (f *agentFlags) setFastPathOrder(s string) error {
	where, name, _ := strings.Cut(s, ":")
	switch {
	case s == "last":
		f.FastPathOrder = options.FastPathOrder{}
	case s == "first":
		f.FastPathOrder = options.FastPathOrder{First: true}
	case where == "before" && name != "":
		f.FastPathOrder = options.FastPathOrder{Before: name}
	case where == "after" && name != "":
		f.FastPathOrder = options.FastPathOrder{After: name}
	default:
		return errors.New("give last, first, before:NAME or after:NAME, with the name of a program in the kernel, such as before:cil_from_container")
	}
	return nil
}
