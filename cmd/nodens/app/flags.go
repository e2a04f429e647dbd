package app

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server/fastpath"
)

// options are the flags, those of NodeLocal DNSCache.
type options struct {
	localIPs       []netip.Addr
	conf           string
	baseConf       string
	kubeDNSDir     string
	upstreamSvc    string
	setupInterface bool
	interfaceName  string
	setupIptables  bool
	syncInterval   time.Duration
	skipTeardown   bool
	healthPort     uint16
	metricsAddr    string
	prometheusAddr string
	pidfile        string
	reloadBySignal bool
	dnsPort        uint16
	nodeName       string // as given; see node
	nodeZone       string // as given; see zone
	readers        int
	polled         bool
	cacheSize      int    // in bytes
	adminSocket    string // "": none
	handoverDir    string // "": none
	netfilter      netsetup.Netfilter
	external       string
	kernelPath     kernelPath
	kernelOrder    fastpath.Order
	logFormat      string
	level          *slog.LevelVar // of the log
	version        bool

	// given are the flags that were set.
	given map[string]bool
}

const usage = `nodens is a node-local DNS agent for Kubernetes.

  nodens [FLAGS]         run the agent
  nodens check [FLAGS]   say what the agent would do with -conf, and touch nothing
  nodens plan [FLAGS]    print the interface, the addresses and the rules for FLAGS, and
                         touch nothing
  nodens cleanup [FLAGS] remove all that an agent, or NodeLocal DNSCache, has left on
                         this node; -localip names its addresses
  nodens ready -handover-dir DIR
                         exit with 0 if the agent in this container is ready, else with 1
  nodens sample          run without root or cluster on 127.0.0.1:5353, with sample names
  nodens wait            do nothing until a signal ends it, for a pod whose work is done
` + flushUsage + migrateUsage + `
`

// parseFlags reads args. Errors name the flag and say what it takes; they are
// not printed yet.
func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{given: make(map[string]bool), level: new(slog.LevelVar)}
	fs := flag.NewFlagSet("nodens", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var usageText strings.Builder
	fs.Usage = func() {}
	o.register(fs)
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(&usageText)
		fs.PrintDefaults()
		fmt.Fprint(stderr, usage, usageText.String())
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; nodens -help lists the flags", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; flags begin with a dash and take their value as -name=value", fs.Arg(0))
	}
	fs.Visit(func(f *flag.Flag) { o.given[f.Name] = true })
	return o, nil
}

func (o *options) register(fs *flag.FlagSet) {
	o.healthPort, o.dnsPort, o.syncInterval = 8080, 53, time.Minute
	o.cacheSize, o.netfilter = defaultCacheSize, netsetup.NetfilterAuto
	fs.Func("localip", "comma-separated `addresses` to answer on, such as 169.254.20.10", o.setLocalIPs)
	fs.StringVar(&o.conf, "conf", "/etc/Corefile", "Corefile `file`")
	fs.StringVar(&o.baseConf, "basecorefile", "/etc/coredns/Corefile.base", "Corefile template `file`, read in place of -conf if it is given, or if there is no -conf")
	fs.StringVar(&o.kubeDNSDir, "kubednscm", "/etc/kube-dns", "`folder` where the kube-dns ConfigMap is mounted (stubDomains, upstreamNameservers)")
	fs.StringVar(&o.upstreamSvc, "upstreamsvc", "kube-dns", "`service` whose address replaces __PILLAR__CLUSTER__DNS__")
	fs.BoolVar(&o.setupInterface, "setupinterface", true, "make the interface and give it the -localip addresses")
	fs.StringVar(&o.interfaceName, "interfacename", "nodelocaldns", "`name` of that interface")
	fs.BoolVar(&o.setupIptables, "setupiptables", true, "make the rules for the -localip addresses; false is -netfilter=none")
	fs.Func("netfilter", "how the rules are made: `auto`, which is as the node's kube-proxy makes them, iptables, nftables or none (default auto)", o.setNetfilter)
	fs.StringVar(&o.external, "external-interfaces", netsetup.ExternalAuto, "by which `interfaces` hosts outside of the node send to it, which the rules keep from the agent: auto, which is those that default routes lead over, none, or names separated by commas")
	fs.Func("syncinterval", "how often interface and rules are checked, as `seconds` or a duration (default 60)", o.setSyncInterval)
	fs.BoolVar(&o.skipTeardown, "skipteardown", false, "leave interface and rules behind at exit: queries then go to the cluster DNS until the next start; nodens cleanup removes them")
	fs.Func("health-port", "`port` of the health endpoint, for the rules; 0 for none (default 8080)", portFlag(&o.healthPort, 0))
	fs.StringVar(&o.metricsAddr, "metrics-listen-address", "0.0.0.0:9353", "`address` of the metrics about the node's set-up; empty for none")
	fs.StringVar(&o.prometheusAddr, "prometheus-listen-address", ":9253", "`address` that replaces __PROMETHEUS__ENDPOINT__")
	fs.StringVar(&o.pidfile, "pidfile", "", "`file` to write the process id to")
	fs.BoolVar(&o.reloadBySignal, "reloadwithsignal", false, "look for changed configuration every -syncinterval even without a reload directive; SIGUSR1 always reloads")
	fs.Func("dns.port", "`port` of server blocks that name none (default 53)", portFlag(&o.dnsPort, 1))
	fs.StringVar(&o.nodeName, "node-name", "", "`name` of the Node object of this machine (default $NODE_NAME, else the host name)")
	fs.StringVar(&o.nodeZone, "node-zone", "", "topology `zone` of this machine (default $NODE_ZONE, else the label of its Node object)")
	fs.Func("readers", "`number` of UDP sockets and threads of each address; 0 is one for each core (default 0)", o.setReaders)
	fs.Func("reader-wait", "where the readers wait for packets: in the `kernel`, or by Go's poller (default kernel)", o.setReaderWait)
	fs.Func("cache-size", "`bytes` that all caches together may take, such as 32Mi (default 32Mi)", o.setCacheSize)
	fs.StringVar(&o.adminSocket, "admin-socket", "", "`path` of a socket to flush the cache through; empty for none")
	fs.StringVar(&o.handoverDir, "handover-dir", "", "`folder` through which the next agent on this node takes over sockets and cache, and where the cache is saved; empty for none")
	fs.Func("kernel-path", "answer pods' queries inside of the kernel where the answer is known: `off`, auto, which is where the kernel can, or on, which is an error where it can't (default off)", o.kernelPath.set)
	fs.Func("kernel-path-order", "where the program of -kernel-path stands among others on a link: `last`, first, before:NAME or after:NAME of a program there (default last)", o.setKernelOrder)
	fs.StringVar(&o.logFormat, "log-format", "text", "`text`, json, or the lines that coredns writes")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
}

// node is the name of the Node object that the agent runs on: -node-name, else
// $NODE_NAME, else the host name as the kubelet takes it, trimmed and in lower case.
// "" if there is none of these.
func (o *options) node() string {
	if name := cmp.Or(o.nodeName, os.Getenv("NODE_NAME")); name != "" {
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(host))
}

// zone is the topology zone that the agent runs in: -node-zone, else $NODE_ZONE. ""
// leaves it to the label of the Node object.
func (o *options) zone() string { return cmp.Or(o.nodeZone, os.Getenv("NODE_ZONE")) }

func (o *options) setLocalIPs(s string) error {
	o.localIPs = nil
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		a, err := netip.ParseAddr(part)
		if err != nil {
			return fmt.Errorf("%q is no IP address; give addresses separated by commas, such as 169.254.20.10", part)
		}
		o.localIPs = append(o.localIPs, a)
	}
	return nil
}

// maxSyncInterval is a day: rules that are looked at less often are not looked
// at.
const maxSyncInterval = 24 * time.Hour

func (o *options) setSyncInterval(s string) error {
	d, err := time.ParseDuration(s)
	if n, bad := strconv.Atoi(s); bad == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < time.Second || d > maxSyncInterval {
		return errors.New("give seconds, such as 60, or a duration, such as 60s, from 1s to 24h")
	}
	o.syncInterval = d
	return nil
}

func (o *options) setNetfilter(s string) error {
	switch way := netsetup.Netfilter(s); way {
	case netsetup.NetfilterAuto, netsetup.NetfilterIptables, netsetup.NetfilterNftables, netsetup.NetfilterNone:
		o.netfilter = way
		return nil
	default:
		return errors.New("give auto, iptables, nftables or none")
	}
}

// rules reports whether there are to be rules in the kernel.
func (o *options) rules() bool { return o.setupIptables && o.netfilter != netsetup.NetfilterNone }

// maxReaders is more than any machine has cores for; each holds some 150 KiB.
const maxReaders = 1024

func (o *options) setReaders(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxReaders {
		return fmt.Errorf("give a number from 1 to %d, or 0 for one reader on each core", maxReaders)
	}
	o.readers = n
	return nil
}

func (o *options) setReaderWait(s string) error {
	if s != "kernel" && s != "poller" {
		return errors.New("give kernel or poller")
	}
	o.polled = s == "poller"
	return nil
}

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

const (
	// defaultCacheSize has room for some 200,000 answers of one address, ten times
	// what one kind has in a bare cache directive. With half of it 9984 signed
	// answers of 1 KiB and more begin to push each other out; twice as much is more
	// than all the rest of the process takes.
	defaultCacheSize = 32 << 20
	// minCacheSize keeps a slip (32, 512Ki) from being a cache that keeps nothing.
	minCacheSize = 1 << 20
	// maxCacheSize is a hundred million answers, more than names are ever asked
	// for on one node.
	maxCacheSize = 16 << 30
)

// setCacheSize reads plain bytes, or a number of Ki, Mi or Gi as Kubernetes writes
// quantities.
func (o *options) setCacheSize(s string) error {
	digits, shift := s, 0
	for i, unit := range []string{"Ki", "Mi", "Gi"} {
		if n, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = n, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > maxCacheSize>>shift || n<<shift < minCacheSize {
		return errors.New("give bytes, or a number of Ki, Mi or Gi, such as 32Mi, from 1Mi to 16Gi")
	}
	o.cacheSize = int(n << shift)
	return nil
}
