package portholder

import (
	"bufio"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// socket is a bound socket in one of the kernel's tables.
type socket struct {
	port  Port // as in the argument of Find
	inode uint64
	uid   int
}

// The states of sockets that receive what nobody else has a claim to (include/net/tcp_states.h).
const (
	stateUnconnected = "07" // UDP, TCP_CLOSE
	stateListening   = "0A" // TCP_LISTEN
)

// tables are the tables of listening sockets. Without IPv6 the others exist.
var tables = []struct {
	path string
	udp  bool
}{{"/proc/net/udp", true}, {"/proc/net/udp6", true}, {"/proc/net/tcp", false}, {"/proc/net/tcp6", false}}

// bound returns the sockets that are bound to one of the ports.
func bound(ports []Port) (found []socket, err error) {
	for _, t := range tables {
		some, err := readTable(t.path, t.udp, ports)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// readTable returns the sockets in one table. Listening TCP sockets precede all connections, whose number is not
// bounded: it reads no further.
func readTable(path string, udp bool, ports []Port) (found []socket, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the head
	for lines.Scan() {
		s, state, ok := parseLine(lines.Text(), udp)
		if !udp && ok && state != stateListening {
			break
		}
		if !ok || udp && state != stateUnconnected {
			continue
		}
		if i := slices.IndexFunc(ports, s.port.meets); i >= 0 {
			s.port = ports[i]
			found = append(found, s)
		}
	}
	return found, lines.Err()
}

// meets reports whether a socket at p receives packets that are sent to other. No socket is at port 0.
func (p Port) meets(other Port) bool {
	return p.UDP == other.UDP && other.Port() != 0 && other.Port() == p.Port() && same(other.Addr(), p.Addr())
}

// same reports whether sockets at a and b receive the same packets. A socket at an IPv4-mapped address only sends the
// late replies of an agent.
func same(a, b netip.Addr) bool {
	return a.WithZone("") == b || a.IsUnspecified() && b.IsUnspecified()
}

// parseLine parses a line such as
//
//	0: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 12345 2 0000000000000000 0
//
// with the local address, the state, the user and the inode.
func parseLine(line string, udp bool) (s socket, state string, ok bool) {
	const local, stateField, uid, inode = 1, 3, 7, 9
	fields := strings.Fields(line)
	if len(fields) <= inode {
		return s, "", false
	}
	addr, ok := parseAddr(fields[local])
	if !ok {
		return s, "", false
	}
	s.port = Port{udp, addr}
	var err error
	if s.inode, err = strconv.ParseUint(fields[inode], 10, 64); err != nil {
		return s, "", false
	}
	s.uid, err = strconv.Atoi(fields[uid])
	return s, fields[stateField], err == nil
}

// parseAddr parses an address of a table: words of 32 bits in the machine's byte order, which is little-endian on all
// machines that the agent runs on, a colon, and the port.
func parseAddr(text string) (a netip.AddrPort, ok bool) {
	host, port, ok := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	n, badPort := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || badPort != nil || len(b)%4 != 0 {
		return a, false
	}
	for w := b; len(w) > 0; w = w[4:] {
		w[0], w[1], w[2], w[3] = w[3], w[2], w[1], w[0]
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr, uint16(n)), ok
}
