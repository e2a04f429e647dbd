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
	// ErrNoTool: a program that makes rules is not installed.
	ErrNoTool = errors.New("program not found")
	// ErrNoSocket: the kernel can't match packets by their socket.
	ErrNoSocket = errors.New("the kernel cannot match packets by socket")
	// ErrLocked: another program works on the rules at this moment.
	ErrLocked = errors.New("another program holds the xtables lock")
)

// Interface is a network interface as far as this package looks at it.
type Interface struct {
	Name string
	// Kind is the kernel's name of the driver, such as "dummy" or "veth"; lo and
	// hardware have other words there, or none.
	Kind string
	Up   bool
}

// Addr is one address on one link.
type Addr struct {
	Interface string
	Prefix    netip.Prefix
}

// Node is the machine, as narrow as Setup needs it. Every method may block for a
// short time, and errors wrap one of this package's or fs.ErrPermission where that
// is the cause. Setup never calls two methods at once.
type Node interface {
	// Interface returns ErrNotFound if there is no link of that name.
	Interface(name string) (Interface, error)
	// AddDummy makes a link of kind dummy, down. ErrNoDummy, ErrExists.
	AddDummy(name string) error
	// SetUp brings a link up; a link that is up stays so.
	SetUp(link string) error
	// DeleteInterface returns ErrNotFound if there is no such link.
	DeleteInterface(link string) error

	// Addrs lists the addresses of all links, in no order; none: nil.
	Addrs() ([]Addr, error)
	// AddAddr puts an address on a link, usable when it returns (no duplicate
	// address detection). ErrExists, ErrNoIPv6.
	AddAddr(a Addr) error
	// DeleteAddr returns ErrNotFound if the address is not there.
	DeleteAddr(a Addr) error

	// chooseBackend looks what filter how means on this machine, for these addresses, and
	// changes nothing. ErrNoTool.
	chooseBackend(ctx context.Context, how Netfilter, locals []netip.Addr) (backendChoice, error)
	// openOwnerTable has the kernel leave queries from this machine to the addresses untracked
	// until the Closer is closed or the process is gone, in whatever way. Any error:
	// the kernel can't.
	openOwnerTable(locals []netip.Addr, dns uint16) (io.Closer, error)
	// deleteConntrack has connection tracking forget the flows by which queries to the addresses
	// are led to others than these servers, and says how many it were.
	deleteConntrack(locals []netip.Addr, dns uint16, servers []netip.AddrPort) (int, error)
	// watchRemovals says that some of p may have gone missing, once for many losses, until
	// ctx is done; then it is closed. A kernel that does not tell: nothing comes, ever.
	watchRemovals(ctx context.Context, p Plan) <-chan struct{}
	// defaultInterfaces lists the interfaces that default routes of table main lead over,
	// without lo, of both families, in no order; none: nil.
	defaultInterfaces() ([]defaultInterface, error)
	// watchDefaultRoutes says that a default route may have come or gone, in the way of events.
	watchDefaultRoutes(ctx context.Context) <-chan struct{}
}
