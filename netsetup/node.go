package netsetup

import (
	"context"
	"errors"
	"io"
	"net/netip"
)

const (
	loopback  = "lo"
	kindDummy = "dummy"
)

// Errors that Node's methods and backends wrap. A lack of permission is fs.ErrPermission.
var (
	// ErrNotFound: the interface or address does not exist.
	ErrNotFound = errors.New("no such interface or address")
	// ErrExists: the interface or address already exists.
	ErrExists = errors.New("already exists")
	// ErrNoDummy: the kernel cannot create interfaces of kind dummy.
	ErrNoDummy = errors.New("the kernel has no dummy driver")
	// ErrNoIPv6: IPv6 is disabled for the interface or the whole kernel.
	ErrNoIPv6 = errors.New("IPv6 is disabled")
	// ErrNoTool: a program that makes rules is not installed.
	ErrNoTool = errors.New("program not found")
	// ErrNoSocket: the kernel cannot match packets by socket.
	ErrNoSocket = errors.New("the kernel cannot match packets by socket")
	// ErrNotLinux: this machine runs another system than Linux.
	ErrNotLinux = errors.New("nodes run Linux, and this machine does not")
	// ErrLocked: another program is changing the rules.
	ErrLocked = errors.New("another program holds the xtables lock")
	// ErrConflict: another program changes the rules while they are written.
	ErrConflict = errors.New("another program changes the rules at the same time")
)

// Interface is a network interface.
type Interface struct {
	Name string
	// Kind is the kernel's name of the driver, such as "dummy" or "veth". lo and hardware
	// have other words, or none.
	Kind string
	Up   bool
}

// Addr is an address on an interface.
type Addr struct {
	Interface string
	Prefix    netip.Prefix
	// Label is the kernel's label of an IPv4 address, which is the interface's name unless
	// another one was set. IPv6 addresses have none.
	Label string
}

// loopbackLabel is the label of the IPv4 addresses that an agent adds to lo. [Clean] removes
// no other address from lo that it finds by itself.
const loopbackLabel = loopback + ":nodens"

// Node is the machine, reduced to what Setup needs. Every method may block for a short time.
// Errors wrap a sentinel of this package or fs.ErrPermission where that is the cause. Setup
// may call methods about interfaces and addresses while it calls one about rules.
type Node interface {
	// Interface returns ErrNotFound if there is no interface of that name.
	Interface(name string) (Interface, error)
	// AddDummy adds an interface of kind dummy, which is down. ErrNoDummy, ErrExists.
	AddDummy(name string) error
	// SetUp brings an interface up; no error if it is up. ErrNotFound.
	SetUp(name string) error
	// DeleteInterface returns ErrNotFound if there is no interface of that name.
	DeleteInterface(name string) error

	// Addrs lists the addresses of all interfaces, in no order; nil if there are none.
	Addrs() ([]Addr, error)
	// AddAddr adds an address to an interface. It can be bound when AddAddr returns:
	// there is no duplicate address detection. An IPv6 address gets no label. ErrNotFound,
	// ErrExists, ErrNoIPv6.
	AddAddr(a Addr) error
	// DeleteAddr deletes an address, whatever its label is. ErrNotFound if the interface does
	// not have it.
	DeleteAddr(a Addr) error

	// chooseBackend returns the backend that setting selects on this machine for these
	// addresses, which is never nil, and the other installed ones, which may be none. It
	// changes nothing. ErrNoTool.
	chooseBackend(ctx context.Context, setting Netfilter, addrs []netip.Addr) (backendChoice, error)
	// openOwnerTable makes the kernel leave queries from this machine to the addresses
	// untracked until the Closer is closed or the process ends. On error the kernel does
	// not, and the Closer is nil.
	openOwnerTable(addrs []netip.Addr, dnsPort uint16) (io.Closer, error)
	// cleanEgressSets removes the egress sets of all policies, and their table if nothing is left in it. It returns how many; used
	// are those that rules use, which are emptied.
	cleanEgressSets() (removed, used int, err error)
	// deleteConntrack deletes the connection-tracking entries of UDP queries to the
	// addresses that lead to other servers than these. It returns how many; 0 and no error
	// if there were none.
	deleteConntrack(addrs []netip.Addr, dnsPort uint16, servers []netip.AddrPort) (int, error)
	// watchRemovals returns two channels, for interface and addresses, and for rules. Each
	// receives one value after one or more removals of objects in p, and is closed when ctx is
	// done. If p follows the default routes, their changes count as removals of rules. It receives
	// nothing if the kernel does not report removals. It is never nil.
	watchRemovals(ctx context.Context, p Plan) (addresses, rules <-chan struct{})
	// defaultInterfaces lists the interfaces of the default routes in table main, of both
	// families, without lo and in no order; nil if there are none.
	defaultInterfaces() ([]defaultInterface, error)
}
