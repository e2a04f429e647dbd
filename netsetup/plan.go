package netsetup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultInterfaceName is the name that NodeLocal DNSCache uses, so that an agent which
	// replaces it adopts the interface.
	DefaultInterfaceName = "nodelocaldns"

	// DefaultInterval is the time between two re-checks, as in NodeLocal DNSCache's manifest. A
	// re-check starts some thirty short processes of iptables in mode legacy, and none otherwise.
	DefaultInterval = time.Minute

	// nameLimit is IFNAMSIZ without the final zero byte.
	nameLimit = 15
)

// Netfilter selects the rule backend (--netfilter).
type Netfilter string

// The values of --netfilter. NetfilterAuto selects the backend that the node's kube-proxy uses.
const (
	NetfilterAuto     Netfilter = "auto"
	NetfilterIptables Netfilter = "iptables"
	NetfilterNftables Netfilter = "nftables"
	NetfilterNone     Netfilter = "none"
)

// Config says what to set up. The zero value sets up nothing.
type Config struct {
	// Addresses are the local addresses (--localip), IPv4, IPv6 or both. Nil is an error if one
	// of the two set-up fields is true.
	Addresses []netip.Addr

	// HostAddresses are further local addresses, for the node's own look-ups (--host-listen), of both
	// families. Without an agent their queries go to the servers of Setup.DivertHost. Nil: none.
	HostAddresses []netip.Addr

	// DNSPort is the port of the agent (--dns.port). Zero is an error with SetupIptables; without
	// it the field is ignored.
	DNSPort uint16

	// HealthPort is the TCP port of the liveness probe (--health-port). Zero: no rules for it.
	HealthPort uint16

	// InterfaceName is the name of the dummy interface (--interfacename). Empty means
	// DefaultInterfaceName.
	InterfaceName string

	// SetupInterface turns on the interface and its addresses (--setupinterface).
	SetupInterface bool

	// SetupIptables turns on the rules, in any backend (--setupiptables).
	SetupIptables bool

	// Interval is the time between re-checks (--syncinterval). Zero means
	// DefaultInterval; negative is an error.
	Interval time.Duration
	// TakingOver reports whether another agent is taking over from this one. It writes its own rules then: one of an
	// earlier version gives up if they are changed while it does. Re-checks of rules wait, for a minute at most. Nil
	// means never. It is called concurrently.
	TakingOver func() bool

	// SkipTeardown makes Teardown leave everything in place (--skipteardown), for the next agent
	// on the node.
	SkipTeardown bool

	// ExternalInterfaces are the interfaces to hosts outside the node (--external-interfaces),
	// whose packets the rules keep away from the agent: names separated by commas,
	// ExternalNone, or ExternalAuto for the interfaces of the default routes. The zero value
	// means ExternalAuto.
	ExternalInterfaces string

	// Netfilter selects the rule backend. The zero value means NetfilterAuto.
	Netfilter Netfilter

	// Logger receives actions and failures. Nil: no log.
	Logger *slog.Logger
}

// Plan describes everything that has to exist on the node; the zero value describes nothing. A Plan is
// immutable.
type Plan struct {
	// Interface is the name of the dummy link; empty: no interface and no addresses.
	Interface string

	// Addresses are host prefixes (/32 and /128), in the order of Config.Addresses and
	// Config.HostAddresses.
	Addresses []netip.Prefix

	// rules is what rules are to do; without locals there are none. netfilter says how.
	rules     desiredRules
	netfilter Netfilter
	// followsRoutes: the external interfaces are the interfaces of the default routes, which are
	// not in want then. open are interfaces of default routes that are not external, each
	// with its kind; only Preview knows them.
	followsRoutes bool
	notExternal   []string
}

// NewPlan returns the Plan for a Config. It is a pure function. With both set-up fields false the Plan
// is empty and most of the Config is not checked. The error joins all problems; each names the flag at
// fault and what to do.
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
		p.rules = desiredRules{addrs: c.addresses(), hosts: c.HostAddresses, dnsPort: c.DNSPort, healthPort: c.HealthPort, matchSocket: true}
		p.rules.external, p.followsRoutes, _ = externalNames(c.ExternalInterfaces) // checked
	}
	return p, nil
}

// interfacePlan returns the Plan for the interface and the addresses alone.
func (c Config) interfacePlan() Plan {
	p := Plan{Interface: c.interfaceName()}
	for _, a := range c.addresses() {
		p.Addresses = append(p.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return p
}

// addresses returns the local addresses, those for the node's own look-ups last.
func (c Config) addresses() []netip.Addr { return slices.Concat(c.Addresses, c.HostAddresses) }

func (c Config) check() error {
	var problems []error
	if c.Interval < 0 {
		problems = append(problems, fmt.Errorf(
			"--syncinterval: %v is negative; give a time such as 60s", c.Interval))
	}
	if c.SetupInterface || c.makesRules() {
		problems = append(problems, checkAddresses(c.Addresses, c.HostAddresses)...)
	}
	if c.SetupInterface {
		problems = append(problems, checkName(c.interfaceName()))
	}
	if c.makesRules() {
		_, _, err := externalNames(c.ExternalInterfaces)
		problems = append(problems, checkPorts(c), err)
		if !slices.Contains([]Netfilter{"", NetfilterAuto, NetfilterIptables, NetfilterNftables}, c.Netfilter) {
			problems = append(problems, fmt.Errorf("--netfilter: unknown value %q; give %s, %s, %s or %s",
				string(c.Netfilter), NetfilterAuto, NetfilterIptables, NetfilterNftables, NetfilterNone))
		}
	}
	return errors.Join(problems...)
}

// makesRules reports whether the Config asks for rules of any kind.
func (c Config) makesRules() bool { return c.SetupIptables && c.Netfilter != NetfilterNone }

// Describe describes the plan. Rules that depend on the cluster DNS's endpoints or on the default routes
// are missing.
func (p Plan) Describe() Description {
	var backend ruleBackend = &iptablesBackend{}
	if p.netfilter == NetfilterNftables {
		backend = newNftBackend(nil)
	}
	return p.describe(backend)
}

// describe is Describe with the rules in the syntax of backend.
func (p Plan) describe(backend ruleBackend) Description {
	d := Description{Interface: p.Interface, Addresses: p.Addresses}
	if len(p.rules.addrs) > 0 {
		d.External, d.DefaultRoutes, d.NotExternal = p.rules.external, p.followsRoutes, p.notExternal
		d.Backend, d.Rules = backend.name(), backend.describe(p.rules)
	}
	return d
}

// Description is a Plan in words. The zero value describes nothing to set up.
type Description struct {
	// Interface is the name of the interface for the addresses: the dummy interface, or lo if the
	// kernel has no such driver; "" if there is none. Addresses are host prefixes.
	Interface string
	Addresses []netip.Prefix
	// External are the external interfaces. DefaultRoutes says that they are the ones of
	// the default routes, which are not known here. NotExternal are interfaces of default routes that
	// are not external, each with its kind.
	External      []string
	DefaultRoutes bool
	NotExternal   []string
	// Backend is the rule backend, "" if there are no rules, and Rules are the rules in its
	// syntax, without a newline at the end. Reason says why it was chosen; "" if that is not known.
	Backend, Rules, Reason string
	// Blocked are [Stats.Blocked].
	Blocked []string
}

// String returns d as text, without a newline at the end: a line for the interface, for each address and
// for the external interfaces, then the rules.
func (d Description) String() string {
	lines := slices.Concat(d.interfaceLines(), d.externalLines())
	for _, c := range d.Blocked {
		lines = append(lines, "blocked   "+c+": its owner has to accept DNS itself")
	}
	if d.Backend != "" {
		name := d.Backend
		if d.Reason != "" {
			name += ": " + d.Reason
		}
		lines = append(lines, "rules     "+name, d.Rules)
	}
	if len(lines) == 0 {
		return "nothing to set up"
	}
	return strings.Join(lines, "\n")
}

// interfaceLines returns the lines about the interface and its addresses.
func (d Description) interfaceLines() (lines []string) {
	switch d.Interface {
	case "":
	case loopback:
		lines = append(lines, "interface "+loopback)
	default:
		lines = append(lines, fmt.Sprintf("interface %s (%s)", d.Interface, kindDummy))
	}
	for _, a := range d.Addresses {
		lines = append(lines, "address   "+a.String())
	}
	return lines
}

// externalLines returns the lines about the interfaces to hosts outside the node.
func (d Description) externalLines() (lines []string) {
	if len(d.External) > 0 {
		lines = append(lines, "external  "+strings.Join(d.External, ", "))
	} else if d.Backend != "" && !d.DefaultRoutes {
		lines = append(lines, "external  none")
	}
	for _, o := range d.NotExternal {
		lines = append(lines, "open      "+o+": pods may use it too; if none does, name it with --external-interfaces")
	}
	return lines
}

func (c Config) interfaceName() string { return cmp.Or(c.InterfaceName, DefaultInterfaceName) }

func (c Config) logger() *slog.Logger { return cmp.Or(c.Logger, slog.New(slog.DiscardHandler)) }

func checkAddresses(addrs, hosts []netip.Addr) []error {
	if len(addrs)+len(hosts) == 0 {
		return []error{errors.New("--localip: no address; give one, such as 169.254.20.10, " +
			"or set nothing up with --setupinterface=false --setupiptables=false")}
	}
	var problems []error
	seen := make(map[netip.Addr]bool, len(addrs))
	for i, a := range slices.Concat(addrs, hosts) {
		flag := "--localip"
		if i >= len(addrs) {
			flag = "--host-listen"
		}
		if why := whyUnusable(a); why != "" {
			problems = append(problems, fmt.Errorf("%s: %v %s", flag, a, why))
		} else if seen[a] {
			problems = append(problems, fmt.Errorf("%s: %v is given twice; give it once", flag, a))
		}
		seen[a] = true
	}
	return problems
}

// whyUnusable says why an address cannot be a local address; "" if it can.
func whyUnusable(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is not an IP address; give one, such as 169.254.20.10"
	case a.Is4In6():
		return "is an IPv4 address in IPv6 form; write it as " + a.Unmap().String()
	case a.IsUnspecified():
		return "stands for all addresses; give the one to listen on, such as 169.254.20.10"
	case a.IsLoopback():
		return "is on every machine already; use --setupinterface=false --setupiptables=false " +
			"with it, or give another address, such as 169.254.20.10"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is not a unicast address; give one, such as 169.254.20.10"
	case a.Is6() && (a.Zone() != "" || a.IsLinkLocalUnicast()):
		// A pod cannot write a zone of the node into its resolv.conf.
		return "is valid on one interface only and pods cannot reach it; " +
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
		why = "is not a valid interface name"
	case name == loopback:
		why = "is the loopback interface, which the agent uses only if the kernel has no dummy driver"
	default:
		return nil
	}
	return fmt.Errorf("--interfacename: %q %s; give another name, such as %s",
		name, why, DefaultInterfaceName)
}

func checkPorts(c Config) error {
	if c.DNSPort == 0 {
		return errors.New("--dns.port: 0 is not a port; " +
			"give one, such as 53, or use --setupiptables=false")
	}
	if c.DNSPort == c.HealthPort {
		return fmt.Errorf("--health-port: %d is also --dns.port; give another port, such as 8080",
			c.HealthPort)
	}
	return nil
}

// Preview describes what New and its Setup would do on this node: interface, addresses,
// external interfaces, and the rules in the syntax of the backend that they would use. It reads
// the node's state and changes nothing. The error is NewPlan's, or of type *Error.
//
// On other systems than Linux it describes what they would do on a node, without the interfaces
// of the default routes. Netfilter has to name the backend then; if not, the error is ErrNotLinux.
func Preview(ctx context.Context, c Config) (Description, error) {
	node, err := thisNode()
	if err != nil {
		return previewElsewhere(c)
	}
	p, err := NewPlan(c)
	if err != nil {
		return Description{}, err
	}
	if len(p.rules.addrs) == 0 {
		return p.Describe(), nil
	}
	chosen, err := node.chooseBackend(ctx, c.Netfilter, p.rules.addrs)
	if err != nil {
		return Description{}, errors.Join(&Error{Type: Iptables, Op: "looking for a way to make rules", Hint: toolHint, Err: err})
	}
	if p.followsRoutes {
		found, err := node.defaultInterfaces()
		if err != nil {
			return Description{}, &Error{Type: InterfaceCheck, Op: "listing default routes", Hint: externalHint, Err: err}
		}
		p.rules.external, p.notExternal = splitExternal(found)
		p.followsRoutes = false
	}
	d := p.describe(chosen.backend)
	d.Reason = chosen.reason
	return d, nil
}

// previewElsewhere is Preview on other systems than Linux.
func previewElsewhere(c Config) (Description, error) {
	p, err := NewPlan(c)
	if err != nil {
		return Description{}, err
	}
	if len(p.rules.addrs) > 0 && p.netfilter != NetfilterIptables && p.netfilter != NetfilterNftables {
		return Description{}, fmt.Errorf("--netfilter: %s follows the node's kube-proxy (%w); give %s or %s",
			NetfilterAuto, ErrNotLinux, NetfilterIptables, NetfilterNftables)
	}
	return p.Describe(), nil
}

// Describe describes what s keeps in place: the interface, the addresses, and the rules with the
// external interfaces and the servers of the cluster DNS that it knows now. Before EnsureRules it
// describes the Plan. It waits for a change of the rules that is being made. The error is ctx's.
func (s *Setup) Describe(ctx context.Context) (Description, error) {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return Description{}, err
	}
	defer s.sem.Release(1)
	if err := s.links.Acquire(ctx, 1); err != nil {
		return Description{}, err
	}
	defer s.links.Release(1)
	p := s.plan
	if s.onLoopback {
		p.Interface = loopback
	}
	if s.backend == nil {
		return p.Describe(), nil
	}
	p.rules, p.notExternal = s.rules, s.notExternal
	p.followsRoutes = p.followsRoutes && !s.keepRules
	d := p.describe(s.backend)
	d.Reason, d.Blocked = s.Stats().BackendReason, s.backend.blocked()
	return d, nil
}
