package balance

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// weights are the weights of addresses by the name that has them, in wire form and lower case.
type weights map[wire.Name]nameWeights

// nameWeights are the weights of the addresses of one name; IPv4-mapped addresses are IPv4.
type nameWeights map[netip.Addr]uint8

// of returns the weight of a: 1 if the file has none.
func (n nameWeights) of(a netip.Addr) uint32 {
	if w, ok := n[a]; ok {
		return uint32(w)
	}
	return 1
}

// parseWeights reads the lines of a file: a name, then lines with an address of the name and its weight. Empty lines
// and lines that begin with # mean nothing. Of several weights of one address, the first one counts.
func parseWeights(text string) (weights, error) {
	all := make(weights)
	var name wire.Name
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		var err error
		switch len(fields) {
		case 1:
			name, err = parseOwner(fields[0])
		case 2:
			err = all.add(name, fields[0], fields[1])
		default:
			err = fmt.Errorf("%d words; write a name, or an address and its weight", len(fields))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return all, nil
}

// parseOwner parses the line before the addresses of a name.
func parseOwner(text string) (wire.Name, error) {
	if _, err := netip.ParseAddr(text); err == nil {
		return "", fmt.Errorf("the address %s has no weight; write a number from 1 to 255 behind it", text)
	}
	return wire.ParseName(text)
}

// add parses an address and its weight, which are name's.
func (w weights) add(name wire.Name, addr, weight string) error {
	if name == "" {
		return fmt.Errorf("no name comes before the address %s; write it on a line of its own", addr)
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return fmt.Errorf("%q is no IP address", addr)
	}
	n, err := strconv.ParseUint(weight, 10, 8)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is no weight; allowed: 1 to 255", weight)
	}
	if w[name] == nil {
		w[name] = make(nameWeights)
	}
	if a = a.Unmap().WithZone(""); w[name][a] == 0 {
		w[name][a] = uint8(n)
	}
	return nil
}
