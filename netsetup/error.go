package netsetup

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"
)

// ErrorType is a value of the label errortype of coredns_nodecache_setup_errors_total, a metric of
// NodeLocal DNSCache.
type ErrorType string

// The kinds of failure. The label has a fifth value, configmap, which this package never uses.
const (
	// Iptables: rules of any backend could not be listed, written or removed.
	Iptables ErrorType = "iptables"
	// IptablesLock: the same, because another program held the xtables lock. It is
	// temporary, and Run tries again, so a caller may continue.
	IptablesLock ErrorType = "iptables_lock"
	// InterfaceAdd: the interface or an address could not be added.
	InterfaceAdd ErrorType = "interface_add"
	// InterfaceCheck: interfaces, addresses or routes could not be read or removed, or
	// conflict with the Plan.
	InterfaceCheck ErrorType = "interface_check"
)

// ErrorTypes returns all types, for a metric that exposes zeros, too.
func ErrorTypes() []ErrorType {
	return []ErrorType{Iptables, IptablesLock, InterfaceAdd, InterfaceCheck}
}

// Error is one failed operation. EnsureInterface, EnsureRules and Teardown return one or several
// joined; errors.As finds the first.
type Error struct {
	Type ErrorType
	// Op is the operation, such as "adding interface nodelocaldns".
	Op string
	// Hint says what to do, and names the flag that turns this part off.
	Hint string
	Err  error
}

// Error returns the operation, the cause and the hint.
func (e *Error) Error() string {
	s := e.Op + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// IsPermanent reports whether err has a cause that lasts as long as the process: a lack of permission, of a
// program, or of a feature of the kernel.
func IsPermanent(err error) bool {
	return isAny(err, fs.ErrPermission, ErrNoTool, ErrNoSocket, errNoNftables)
}

// isAny reports whether err has one of the causes.
func isAny(err error, causes ...error) bool {
	return slices.ContainsFunc(causes, func(cause error) bool { return errors.Is(err, cause) })
}

// errorList has independent errors, each of which is counted.
type errorList []error

// joinErrors returns the errors of errs that are not nil, or nil if there are none.
func joinErrors(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return errorList(errs)
}

// Error returns all errors, one a line.
func (s errorList) Error() string { return errors.Join(s...).Error() }

// Unwrap returns all errors.
func (s errorList) Unwrap() []error { return s }

// Stats are totals since New, and the current state.
type Stats struct {
	// Errors has every ErrorType as a key. The map is the caller's.
	Errors map[ErrorType]uint64
	// Checks counts finished re-checks, failed ones included.
	Checks uint64
	// Repairs counts the interfaces, addresses and rules that a re-check restored, and the
	// duplicates that it removed. RepairedAt is when it last rose.
	Repairs    uint64
	RepairedAt time.Time

	// Backend is "iptables (nft)", "iptables (legacy)" or "nftables"; "" until it is chosen,
	// and without rules.
	Backend string
	// FailOpen: the rules apply only while a socket listens, so that queries reach the
	// cluster DNS while the agent is down. False if the kernel can't match by socket, and
	// while rules are missing.
	FailOpen bool
	// NoSocketMatch: the kernel can't match by socket. False until the rules are written.
	NoSocketMatch bool
	// RulesInPlace: no rule is missing. RulesSince is when that became true or false for the
	// last time; the zero Time before EnsureRules.
	RulesInPlace bool
	RulesSince   time.Time
	// BackendReason says why the backend was chosen.
	BackendReason string
	// Blocked are foreign chains that drop DNS packets and that can't be changed, because
	// another process owns their table; in nft's syntax, and nil if there are none.
	Blocked []string
	// Diversion is the number of servers that queries go to while the agent is down; 0 if
	// none is known.
	Diversion int
	// HostDiversion is the same for the addresses of Config.HostAddresses.
	HostDiversion int
}

// counters hold the Stats of a Setup.
type counters struct {
	mu    sync.Mutex
	total Stats // without FailOpen; Errors has those that occurred, or is nil
}

// update lets change modify the totals.
func (c *counters) update(change func(total *Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.total)
}

// setRules records whether the rules are in place.
func (c *counters) setRules(inPlace bool) {
	c.update(func(total *Stats) {
		if total.RulesSince.IsZero() || total.RulesInPlace != inPlace {
			total.RulesInPlace, total.RulesSince = inPlace, time.Now()
		}
	})
}

func (c *counters) fail(t ErrorType) {
	c.update(func(total *Stats) {
		if total.Errors == nil {
			total.Errors = make(map[ErrorType]uint64)
		}
		total.Errors[t]++
	})
}

func (c *counters) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.total
	s.FailOpen = s.RulesInPlace && !s.NoSocketMatch
	s.Errors = make(map[ErrorType]uint64)
	for _, t := range ErrorTypes() {
		s.Errors[t] = c.total.Errors[t]
	}
	return s
}

// interfaceFailure counts a failure with interfaces and addresses, and adds a hint.
func (s *Setup) interfaceFailure(t ErrorType, op string, err error) *Error {
	s.counters.fail(t)
	hint := "use --setupinterface=false to go without"
	switch {
	case errors.Is(err, fs.ErrPermission):
		hint = "needs root or the capability NET_ADMIN; " +
			"or set the interface up by other means and use --setupinterface=false"
	case errors.Is(err, ErrNoIPv6):
		hint = "take the IPv6 address out of --localip, or set the sysctl " +
			"net.ipv6.conf.all.disable_ipv6=0; or use --setupinterface=false"
	}
	return &Error{Type: t, Op: op, Hint: hint, Err: err}
}

// toolHint says what to do if no program can make rules.
const toolHint = "install the iptables package, or use a kernel with nf_tables, and see --netfilter; " +
	"or use --setupiptables=false to go without rules"

// ruleFailure counts a failure with rules, and adds a hint.
func (s *Setup) ruleFailure(op string, err error) *Error {
	t := Iptables
	hint := "use --setupiptables=false to go without rules"
	switch {
	case errors.Is(err, errLockFile):
		hint = "make the host's /run/xtables.lock writable for the agent, or its directory where the file is missing; or use --setupiptables=false"
	case errors.Is(err, errNotXtables):
		hint = "find the rule with nft list ruleset, and put it into a table of its own; or use --netfilter nftables"
	case errors.Is(err, errNoNftables):
		hint = "load the kernel module nf_tables, or use --netfilter iptables"
	case errors.Is(err, ErrLocked):
		t = IptablesLock
		hint = "find the program that holds /run/xtables.lock; or use --setupiptables=false"
	case errors.Is(err, fs.ErrPermission):
		hint = "needs root or the capability NET_ADMIN, with the legacy mode of iptables NET_RAW too, " +
			"the host's /run/xtables.lock writable, and tables that no other program owns (nft list tables shows the flag owner); or use --setupiptables=false"
	case errors.Is(err, ErrNoTool):
		hint = toolHint
	}
	s.counters.fail(t)
	return &Error{Type: t, Op: op, Hint: hint, Err: err}
}
