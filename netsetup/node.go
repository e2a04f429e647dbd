package netsetup

import (
	"errors"
	"net/netip"
)

const (
	loopback  = "lo"
	kindDummy = "dummy"
)

// What a Node's methods report so that Setup can tell the causes apart. A lack
// of permission is fs.ErrPermission.
var (
	// ErrNotFound: there is no such link.
	ErrNotFound = errors.New("no such link")
	// ErrExists: the link or address is there already.
	ErrExists = errors.New("already exists")
	// ErrNoDummy: the kernel cannot make links of kind dummy.
	ErrNoDummy = errors.New("the kernel has no dummy driver")
	// ErrNoIPv6: IPv6 is off for the link or the whole kernel.
	ErrNoIPv6 = errors.New("IPv6 is disabled")
	// ErrNoTool: the iptables or ip6tables program is not installed.
	ErrNoTool = errors.New("program not found")
	// ErrNoSocket: the kernel can't match packets by their socket.
	ErrNoSocket = errors.New("the kernel cannot match packets by socket")
	// ErrLocked: another program works on the rules at this moment.
	ErrLocked = errors.New("another program holds the xtables lock")
)

// Link is a network interface as far as this package looks at it.
type Link struct {
	Name string
	// Kind is the kernel's name of the driver, such as "dummy" or "veth"; lo and
	// hardware have other words there, or none.
	Kind string
	Up   bool
}

// Addr is one address on one link.
type Addr struct {
	Link   string
	Prefix netip.Prefix
}

// Node is the machine, as narrow as Setup needs it. Every method may block for a
// short time (about a second at most, if another program holds the xtables lock)
// and errors wrap one of this package's or fs.ErrPermission where that is the
// cause. Setup never calls two methods at once.
type Node interface {
	// Link returns ErrNotFound if there is no link of that name.
	Link(name string) (Link, error)
	// AddLink makes a link of kind dummy, down. ErrNoDummy, ErrExists.
	AddLink(name string) error
	// SetUp brings a link up; a link that is up stays so.
	SetUp(link string) error
	// DeleteLink returns ErrNotFound if there is no such link.
	DeleteLink(link string) error

	// Addrs lists the addresses of all links, in no order; none: nil.
	Addrs() ([]Addr, error)
	// AddAddr puts an address on a link, usable when it returns (no duplicate
	// address detection). ErrExists, ErrNoIPv6.
	AddAddr(a Addr) error
	// DeleteAddr returns ErrNotFound if the address is not there.
	DeleteAddr(a Addr) error

	// HasRule reports whether the rule stands in its chain, anywhere.
	HasRule(r Rule) (bool, error)
	// InsertRule puts the rule at the head of its chain, even if it is there.
	InsertRule(r Rule) error
	// DeleteRule removes the first such rule; false: there was none.
	DeleteRule(r Rule) (bool, error)
	// ListRules returns a chain's rules as `iptables -S` prints them. A chain
	// that does not exist has none.
	ListRules(f Family, table, chain string) ([]string, error)
}
