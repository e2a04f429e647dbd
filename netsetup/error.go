package netsetup

import (
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
)

// ErrorType is the value of the label errortype in NodeLocal DNSCache's metric
// coredns_nodecache_setup_errors_total.
type ErrorType string

// The kinds of failure. The fifth value of the label, configmap, is not of this
// package.
const (
	// Iptables: rules, of whatever kind, could not be looked up, made or removed.
	Iptables ErrorType = "iptables"
	// IptablesLock: the same, as another program held the xtables lock. It goes
	// away by itself and Run repairs it, so a caller may go on after it.
	IptablesLock ErrorType = "iptables_lock"
	// InterfaceAdd: the link or an address could not be made.
	InterfaceAdd ErrorType = "interface_add"
	// InterfaceCheck: links could not be read or removed, or are in the way.
	InterfaceCheck ErrorType = "interface_check"
)

// ErrorTypes returns all types, for a metric that shows zeros too.
func ErrorTypes() []ErrorType {
	return []ErrorType{Iptables, IptablesLock, InterfaceAdd, InterfaceCheck}
}

// Error is one thing that could not be done. What Links, Rules and Teardown
// return is one of these or several joined; errors.As finds the first.
type Error struct {
	Type ErrorType
	// Op is what was being done, such as "adding link nodelocaldns".
	Op string
	// Hint names the flag that turns this part off, and what else would help.
	Hint string
	Err  error
}

// Error returns the operation, the cause and the hint in one line.
func (e *Error) Error() string {
	s := e.Op + ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// errorList are errors that have nothing to do with each other; each counts.
type errorList []error

// joinErrors is errs without those that are nil, or nil if there are no others.
func joinErrors(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return errorList(errs)
}

// Error returns all, one a line.
func (s errorList) Error() string { return errors.Join(s...).Error() }

// Unwrap returns all.
func (s errorList) Unwrap() []error { return s }

// Stats are totals since New, which only grow, and what is true now.
type Stats struct {
	// Errors has every ErrorType as a key. The map is the caller's.
	Errors map[ErrorType]uint64
	// Checks counts finished re-checks, failed ones included.
	Checks uint64
	// Repairs counts links, addresses and rules that a re-check had to put back,
	// and duplicates that it removed.
	Repairs uint64

	// Backend is what makes the rules: "iptables (nft)", "iptables (legacy)" or
	// "nftables". "" until it is known, and without rules.
	Backend string
	// FailOpen: the rules hold only while somebody listens, so that a dead agent's
	// packets find another way. False where the kernel can't match by socket, and while
	// rules are missing.
	FailOpen bool
	// Diversion is how many servers that way leads to, as far as it is known.
	Diversion int
}

type counters struct {
	errors  [4]atomic.Uint64 // in the order of ErrorTypes
	checks  atomic.Uint64
	repairs atomic.Uint64

	backend   atomic.Pointer[string]
	failOpen  atomic.Bool
	diversion atomic.Int64
}

func (c *counters) fail(t ErrorType) {
	c.errors[slices.Index(ErrorTypes(), t)].Add(1)
}

func (c *counters) stats() Stats {
	s := Stats{
		Errors:  make(map[ErrorType]uint64, len(c.errors)),
		Checks:  c.checks.Load(),
		Repairs: c.repairs.Load(),

		FailOpen:  c.failOpen.Load(),
		Diversion: int(c.diversion.Load()),
	}
	if name := c.backend.Load(); name != nil {
		s.Backend = *name
	}
	for i, t := range ErrorTypes() {
		s.Errors[t] = c.errors[i].Load()
	}
	return s
}

// interfaceFailure counts and describes a failure with links and addresses.
func (s *Setup) interfaceFailure(t ErrorType, op string, err error) *Error {
	s.counters.fail(t)
	hint := "use -setupinterface=false to go without"
	switch {
	case errors.Is(err, fs.ErrPermission):
		hint = "needs root or the capability NET_ADMIN; " +
			"or set the interface up by other means and use -setupinterface=false"
	case errors.Is(err, ErrNoIPv6):
		hint = "take the IPv6 address out of -localip, or set the sysctl " +
			"net.ipv6.conf.all.disable_ipv6=0; or use -setupinterface=false"
	}
	return &Error{Type: t, Op: op, Hint: hint, Err: err}
}

// toolHint is what to do where no program makes rules.
const toolHint = "install the iptables package, or nftables, and see -netfilter; " +
	"or use -setupiptables=false to go without rules"

// ruleFailure counts and describes a failure with rules.
func (s *Setup) ruleFailure(op string, err error) *Error {
	t := Iptables
	hint := "use -setupiptables=false to go without rules"
	switch {
	case errors.Is(err, ErrLocked):
		t = IptablesLock
		hint = "look who holds /run/xtables.lock; or use -setupiptables=false"
	case errors.Is(err, fs.ErrPermission):
		hint = "needs root or the capability NET_ADMIN, with the legacy flavour of iptables NET_RAW too, " +
			"and the host's /run/xtables.lock writable; or use -setupiptables=false"
	case errors.Is(err, ErrNoTool):
		hint = toolHint
	}
	s.counters.fail(t)
	return &Error{Type: t, Op: op, Hint: hint, Err: err}
}
