// Package tentative tells which IPv6 addresses can't be used yet. After an address is added to an interface, the
// kernel asks for a second or two whether another host has it (duplicate address detection, RFC 4862, section 5.4).
// Meanwhile bind(2) fails as if the machine did not have the address.
package tentative

import (
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// State is what the kernel knows of an address.
type State int

// The states of an address.
const (
	// Absent: no interface has the address, or it is an IPv4 address.
	Absent State = iota
	// Assigned: the address can be used.
	Assigned
	// Tentative: the kernel asks whether another host has it.
	Tentative
	// Duplicate: another host has it.
	Duplicate
)

// The flags of addresses in /proc/net/if_inet6 (linux/if_addr.h).
const (
	flagOptimistic = 0x04
	flagDADFailed  = 0x08
	flagTentative  = 0x40
)

// tableLimit bounds what is read of the kernel's table, in bytes. It has 60 for an address.
const tableLimit = 1 << 20

// Of returns the state of addr in this network namespace. The zone of addr, if it has one, is the interface.
func Of(addr netip.Addr) State {
	f, err := os.Open("/proc/thread-self/net/if_inet6") // fails without IPv6
	if err != nil {
		return Absent
	}
	defer f.Close()
	table, err := io.ReadAll(io.LimitReader(f, tableLimit))
	if err != nil {
		return Absent
	}
	return find(string(table), addr)
}

// find returns the state of addr in a table of the kernel: a line for each address, with the address, the index of the
// interface, the length of the prefix, the scope and the flags in hexadecimal, and the name of the interface.
func find(table string, addr netip.Addr) State {
	if !addr.Is6() {
		return Absent
	}
	bytes := addr.As16()
	text := hex.EncodeToString(bytes[:])
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[0] != text || addr.Zone() != "" && addr.Zone() != fields[5] {
			continue
		}
		flags, _ := strconv.ParseUint(fields[4], 16, 32)
		switch {
		case flags&flagDADFailed != 0:
			return Duplicate
		case flags&(flagTentative|flagOptimistic) == flagTentative:
			return Tentative
		}
		return Assigned
	}
	return Absent
}

const (
	// maxWait bounds the time for which Await waits. The kernel asks once, for a second, and begins after up to a second; on
	// a bridge whose ports are not forwarding yet it takes longer.
	maxWait = 5 * time.Second
	// interval is the time between two looks.
	interval = 50 * time.Millisecond
)

// Await waits, for five seconds at most, while addr is tentative, and returns its state then. waited says that it was
// tentative.
func Await(addr netip.Addr) (state State, waited bool) {
	for end := time.Now().Add(maxWait); ; time.Sleep(interval) {
		if state = Of(addr); state != Tentative || time.Now().After(end) {
			return state, waited
		}
		waited = true
	}
}

// Problem says why an address in the state s can't be used; "" if that is not the reason.
func (s State) Problem() string {
	switch s {
	case Tentative:
		return "the interface has the address, but the kernel still checks whether another host has it, too (duplicate address detection); wait, or add the address with the option nodad"
	case Duplicate:
		return "another host has the address, too: duplicate address detection has failed; give one of them another address"
	}
	return ""
}
