package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxDumpTries is how often a netlink dump is made if the kernel reports that a change has interrupted
// it. The next re-check tries again.
const maxDumpTries = 3

// kernelNode is the Node of this machine, in the network namespace of the process. It uses netlink
// with one short-lived socket per request. The zero value is ready.
type kernelNode struct{}

// thisNode returns the Node of this machine.
func thisNode() (Node, error) { return &kernelNode{}, nil }

// chooseBackend implements Node.
func (k *kernelNode) chooseBackend(ctx context.Context, setting Netfilter, addrs []netip.Addr) (backendChoice, error) {
	return chooseBackend(ctx, setting, addrs)
}

// watchRemovals implements Node.
func (k *kernelNode) watchRemovals(ctx context.Context, p Plan) (addresses, rules <-chan struct{}) {
	return watchRemovals(ctx, watchSpec{iface: p.Interface, addrs: p.Addresses}),
		watchRemovals(ctx, watchSpec{rules: len(p.rules.addrs) > 0, routes: p.followsRoutes})
}

// Interface implements Node.
func (k *kernelNode) Interface(name string) (Interface, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Interface{}, netlinkError(err)
	}
	return Interface{Name: name, Kind: l.Type(), Up: l.Attrs().Flags&net.FlagUp != 0}, nil
}

// AddDummy implements Node.
func (k *kernelNode) AddDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoDummy, err)
	}
	return netlinkError(err)
}

// SetUp implements Node.
func (k *kernelNode) SetUp(link string) error { return withLink(link, netlink.LinkSetUp) }

// DeleteInterface implements Node.
func (k *kernelNode) DeleteInterface(link string) error { return withLink(link, netlink.LinkDel) }

// withLink calls f with an interface.
func withLink(name string, f func(netlink.Link) error) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = f(l)
	}
	return netlinkError(err)
}

// Addrs implements Node.
func (k *kernelNode) Addrs() ([]Addr, error) {
	var found []netlink.Addr
	var err error
	for range maxDumpTries {
		found, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, netlinkError(err)
	}
	var addrs []Addr
	names := make(map[int]string)
	for _, f := range found {
		ip, ok := netip.AddrFromSlice(f.IP)
		if !ok {
			continue
		}
		bits, _ := f.Mask.Size()
		name, known := names[f.LinkIndex]
		if !known {
			l, err := netlink.LinkByIndex(f.LinkIndex)
			if err != nil {
				continue // the interface was deleted since, with its addresses
			}
			name = l.Attrs().Name
			names[f.LinkIndex] = name
		}
		addrs = append(addrs, Addr{Interface: name, Prefix: netip.PrefixFrom(ip.Unmap(), bits), Label: f.Label})
	}
	return addrs, nil
}

// AddAddr implements Node.
func (k *kernelNode) AddAddr(a Addr) error {
	addr := &netlink.Addr{IPNet: ipNet(a.Prefix), Label: a.Label}
	if a.Prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // else it is tentative for a second, and bind fails
	}
	err := withLink(a.Interface, func(l netlink.Link) error { return netlink.AddrAdd(l, addr) })
	if a.Prefix.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) ||
		errors.Is(err, unix.EOPNOTSUPP)) {
		// The sysctl disable_ipv6 causes EACCES; a lack of capability is EPERM.
		return fmt.Errorf("%w on %s: %v", ErrNoIPv6, a.Interface, err) //nolint:errorlint // wrapped, EACCES would look like a lack of permission
	}
	return err
}

// DeleteAddr implements Node.
func (k *kernelNode) DeleteAddr(a Addr) error {
	err := withLink(a.Interface, func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: ipNet(a.Prefix)})
	})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// netlinkError adds this package's sentinels to an error of netlink. EPERM is fs.ErrPermission by
// itself.
func netlinkError(err error) error {
	var gone netlink.LinkNotFoundError
	switch {
	case errors.As(err, &gone), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
