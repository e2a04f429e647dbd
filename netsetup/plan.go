package netsetup

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"
)

const (
	// DefaultInterfaceName is the link that NodeLocal DNSCache makes, so that an
	// agent which replaces it adopts the link instead of making a second one.
	DefaultInterfaceName = "nodelocaldns"

	// DefaultInterval is the time between two re-checks. A minute is what
	// NodeLocal DNSCache's manifest uses: a re-check starts one short iptables
	// process per rule, so a tenth of it would be seen in a node's CPU use, and
	// ten times as long would be an outage of ten minutes after a flush.
	DefaultInterval = time.Minute

	// nameLimit is the kernel's IFNAMSIZ of 16 without the final zero byte.
	nameLimit = 15
)

// Netfilter is a way to have rules in the kernel (-netfilter).
type Netfilter string

// The ways. Auto is the one that the node's kube-proxy uses.
const (
	NetfilterAuto     Netfilter = "auto"
	NetfilterIptables Netfilter = "iptables"
	NetfilterNftables Netfilter = "nftables"
	NetfilterNone     Netfilter = "none"
)

// Config says what to set up. The zero value sets up nothing.
type Config struct {
	// Addresses are the local addresses (-localip), IPv4, IPv6 or both. Nil is
	// an error as soon as one of the two set-up fields is true.
	Addresses []netip.Addr

	// DNSPort is the port the agent answers on (-dns.port). Zero is an error
	// with SetupIptables and not looked at otherwise.
	DNSPort uint16

	// HealthPort is the TCP port of the liveness probe (-health-port). Zero:
	// no health endpoint, and no rules for it.
	HealthPort uint16

	// InterfaceName names the dummy link (-interfacename). Empty means
	// DefaultInterfaceName.
	InterfaceName string

	// SetupInterface turns the link and its addresses on (-setupinterface).
	SetupInterface bool

	// SetupIptables turns the rules on, of whatever kind (-setupiptables).
	SetupIptables bool

	// Interval is the time between re-checks (-syncinterval). Zero means
	// DefaultInterval; negative is an error.
	Interval time.Duration

	// SkipTeardown makes Teardown leave everything in place (-skipteardown), so
	// that the next agent on the node starts without a gap.
	SkipTeardown bool

	// ExternalInterfaces are the interfaces by which hosts outside of the node send to it
	// (-external-interfaces), whose packets the rules keep from the agent: names
	// separated by commas, ExternalNone, or ExternalAuto for those that default routes
	// lead over. The zero value is ExternalAuto.
	ExternalInterfaces string

	// Netfilter says how rules are made. The zero value is NetfilterAuto.
	Netfilter Netfilter

	// Logger receives what is done and what fails between start and teardown.
	// Nil means silence.
	Logger *slog.Logger
}

// Plan is all that the agent wants to exist on the node. The zero value asks for
// nothing. Nobody changes a Plan after NewPlan has returned it.
type Plan struct {
	// Interface is the name of the dummy link; empty means no link and no addresses.
	Interface string

	// Addresses are host prefixes (/32 and /128) in the order of the flags.
	Addresses []netip.Prefix

	// rules is what rules are to do; without locals there are none. netfilter says how.
	rules     desiredRules
	netfilter Netfilter
	// followsRoutes: the external interfaces are those of the default routes, which are
	// not in want then. open are interfaces of default routes that are not external, each
	// with its kind; only Preview knows them.
	followsRoutes bool
	notExternal   []string
}

// NewPlan turns a Config into the Plan it stands for. It looks at nothing but
// its argument. With both set-up fields false the Plan is empty and the rest of
// the Config is not checked. The error joins everything that is wrong, each part
// naming the flag at fault and what to do.
func NewPlan(c Config) (Plan, error) {
	if err := c.check(); err != nil {
		return Plan{}, err
	}
	var p Plan
	if c.SetupInterface {
		p = c.interfacePlan()
	}
	if c.makesRules() {
		p.netfilter = c.Netfilter
		p.rules = desiredRules{addrs: c.Addresses, dnsPort: c.DNSPort, healthPort: c.HealthPort, matchSocket: true}
		p.rules.external, p.followsRoutes, _ = externalNames(c.ExternalInterfaces) // checked
	}
	return p, nil
}

// interfacePlan is the Plan of link and addresses alone.
func (c Config) interfacePlan() Plan {
	p := Plan{Interface: c.interfaceName()}
	for _, a := range c.Addresses {
		p.Addresses = append(p.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return p
}

func (c Config) check() error {
	var problems []error
	if c.Interval < 0 {
		problems = append(problems, fmt.Errorf(
			"-syncinterval: %v is negative; give a time such as 60s", c.Interval))
	}
	if c.SetupInterface || c.makesRules() {
		problems = append(problems, checkAddresses(c.Addresses)...)
	}
	if c.SetupInterface {
		problems = append(problems, checkName(c.interfaceName()))
	}
	if c.makesRules() {
		_, _, err := externalNames(c.ExternalInterfaces)
		problems = append(problems, checkPorts(c), checkNetfilter(c.Netfilter), err)
	}
	return errors.Join(problems...)
}

// hostAddrs are the Addresses without their lengths.
func (p Plan) hostAddrs() (addrs []netip.Addr) {
	for _, a := range p.Addresses {
		addrs = append(addrs, a.Addr())
	}
	return addrs
}

// makesRules reports whether the Config asks for rules of any kind.
func (c Config) makesRules() bool { return c.SetupIptables && c.Netfilter != NetfilterNone }

// String prints the plan for people: one line per link and address and for the external
// interfaces, then the rules in the form of a filter that suits, without those that need to
// know where the cluster DNS is, or which interfaces default routes lead over. It ends
// without a newline.
func (p Plan) String() string {
	var like ruleBackend = &iptablesBackend{}
	if p.netfilter == NetfilterNftables {
		like = newNftBackend(newProgramSet())
	}
	return p.text(like)
}

// text is String with the rules in the form of f.
func (p Plan) text(f ruleBackend) string {
	var lines []string
	if p.Interface != "" {
		lines = append(lines, fmt.Sprintf("link     %s (%s)", p.Interface, kindDummy))
	}
	for _, a := range p.Addresses {
		lines = append(lines, "address  "+a.String())
	}
	if len(p.rules.external) > 0 {
		lines = append(lines, "external "+strings.Join(p.rules.external, ", "))
	} else if len(p.rules.addrs) > 0 && !p.followsRoutes {
		lines = append(lines, "external none")
	}
	for _, o := range p.notExternal {
		lines = append(lines, "open     "+o+": pods may use it too; if none does, name it with -external-interfaces")
	}
	if len(p.rules.addrs) > 0 {
		lines = append(lines, "rules    "+f.name(), f.describe(p.rules))
	}
	if len(lines) == 0 {
		return "nothing to set up"
	}
	return strings.Join(lines, "\n")
}

func (c Config) interfaceName() string {
	if c.InterfaceName == "" {
		return DefaultInterfaceName
	}
	return c.InterfaceName
}

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

func (c Config) interval() time.Duration {
	if c.Interval == 0 {
		return DefaultInterval
	}
	return c.Interval
}

func checkAddresses(addrs []netip.Addr) []error {
	if len(addrs) == 0 {
		return []error{errors.New("-localip: no address; give one, such as 169.254.20.10, " +
			"or set nothing up with -setupinterface=false -setupiptables=false")}
	}
	var problems []error
	seen := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if why := whyUnusable(a); why != "" {
			problems = append(problems, fmt.Errorf("-localip: %v %s", a, why))
			continue
		}
		if seen[a] {
			problems = append(problems, fmt.Errorf("-localip: %v is given twice; give it once", a))
		}
		seen[a] = true
	}
	return problems
}

// whyUnusable says why an address cannot be put on a link of its own, or "".
func whyUnusable(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is not an IP address; give one, such as 169.254.20.10"
	case a.Is4In6():
		return "is an IPv4 address in IPv6 form; write it as " + a.Unmap().String()
	case a.IsUnspecified():
		return "means every address; name the one to listen on, such as 169.254.20.10"
	case a.IsLoopback():
		return "is on every machine already; use -setupinterface=false -setupiptables=false " +
			"with it, or give another address, such as 169.254.20.10"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is no unicast address; give one, such as 169.254.20.10"
	case a.Is6() && (a.Zone() != "" || a.IsLinkLocalUnicast()):
		// A pod cannot write a zone of the node into its resolv.conf.
		return "is valid on one link only and pods cannot reach it; " +
			"give a unique local address, such as fd00::a"
	}
	return ""
}

func checkName(name string) error {
	var why string
	switch {
	case len(name) > nameLimit:
		why = fmt.Sprintf("is longer than the kernel's %d bytes", nameLimit)
	case name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00"):
		why = "is not a name that the kernel takes"
	case name == loopback:
		why = "is the loopback interface, which is used by itself where the kernel has no dummy links"
	default:
		return nil
	}
	return fmt.Errorf("-interfacename: %q %s; give another name, such as %s",
		name, why, DefaultInterfaceName)
}

func checkPorts(c Config) error {
	if c.DNSPort == 0 {
		return errors.New("-dns.port: 0 is not a port that rules can name; " +
			"give one, such as 53, or use -setupiptables=false")
	}
	if c.DNSPort == c.HealthPort {
		return fmt.Errorf("-health-port: %d is -dns.port too; give another port, such as 8080",
			c.HealthPort)
	}
	return nil
}

func checkNetfilter(n Netfilter) error {
	switch n {
	case "", NetfilterAuto, NetfilterIptables, NetfilterNftables:
		return nil
	}
	return fmt.Errorf("-netfilter: %q is not a way to make rules; give %s, %s, %s or %s",
		string(n), NetfilterAuto, NetfilterIptables, NetfilterNftables, NetfilterNone)
}
