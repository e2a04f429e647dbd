// Package ethtool reads the counters of a network driver that tell of packets dropped because of a budget of the cloud.
// `ethtool -S INTERFACE` shows the same counters. It uses the ioctl SIOCETHTOOL, which needs no privilege.
package ethtool

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// dropCounters are the counters of packets dropped beyond a budget for queries to the cloud's own DNS servers. Counters for other
// budgets, such as that for connection tracking, don't belong here: sending fewer queries does not help.
var dropCounters = []string{
	// The driver ena of AWS: packets to its DNS servers, the instance metadata service and the time service, beyond 1,024
	// per second and network interface.
	"linklocal_allowance_exceeded",
}

// ErrNoCounter is the error of [Drops] if the driver has no such counter.
var ErrNoCounter = errors.New("the driver does not count packets dropped beyond a budget (" + strings.Join(dropCounters, ", ") + ")")

// Drops returns a function that reads how many packets to addresses such as to were dropped beyond a budget, since the driver was loaded.
// It reads the counter of the interface that has the source address of packets to that address. The function opens a socket for each
// call and is safe for concurrent use. The error is [ErrNoCounter], or says why the driver can't be asked.
func Drops(to netip.Addr) (read func() (uint64, error), err error) {
	name, err := interfaceTo(to)
	if err != nil {
		return nil, fmt.Errorf("finding the interface to %s: %w", to, err)
	}
	for _, counter := range dropCounters {
		read = func() (uint64, error) { return Counter(name, counter) }
		if _, err = read(); err == nil {
			return read, nil
		}
	}
	return nil, fmt.Errorf("interface %s: %w", name, err)
}

// interfaceTo returns the name of the interface with the source address of packets to an address.
func interfaceTo(to netip.Addr) (string, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 53))) // sends nothing
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	source := conn.LocalAddr().(*net.UDPAddr).IP
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if own, ok := a.(*net.IPNet); ok && own.IP.Equal(source) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %s", source)
}
