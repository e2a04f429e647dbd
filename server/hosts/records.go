package hosts

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/wire"
)

// records is the content of all lines. It is immutable once built.
type records struct {
	names map[wire.Name]*host
	// reverse has the RDATA of PTR records by their owner in in-addr.arpa or ip6.arpa.
	reverse map[wire.Name][][]byte
	entries int
	modTime time.Time  // of the file; zero: it was not read
	mark    epoch.Mark // of all answers from these records
}

// host has the addresses of one name in the order of the lines, each once: an RRset has no
// duplicates (RFC 2181, 5).
type host struct {
	v4 [][4]byte
	v6 [][16]byte
}

// wildcardLabel is the first label of a wildcard in wire format.
const wildcardLabel = "\x01*"

// maxRecords bounds the addresses of a name and the names of an address. A message can't
// hold more (64 KiB, at least 16 bytes per record), and block lists map a million names to
// 0.0.0.0.
const maxRecords = 4096

// lookup returns the host for name or for the wildcard that covers it; nil if there is
// none.
func (v *records) lookup(name []byte) *host {
	if h := v.names[wire.Name(name)]; h != nil {
		return h
	}
	if len(name) < 2 {
		return nil
	}
	var buf [len(wildcardLabel) + wire.MaxName]byte
	n := copy(buf[:], wildcardLabel)
	n += copy(buf[n:], name[1+name[0]:])
	return v.names[wire.Name(buf[:n])]
}

// maxLoggedLines bounds the invalid lines that are logged individually per source, so that
// a binary file does not flood the log.
const maxLoggedLines = 10

// buildRecords returns the records of the file's text followed by the inline lines.
func (t *Table) buildRecords(text []byte) *records {
	v := &records{names: make(map[wire.Name]*host), reverse: make(map[wire.Name][][]byte)}
	t.addLines(v, t.cfg.File, text)
	t.addLines(v, "Corefile", []byte(strings.Join(t.cfg.Inline, "\n")))
	return v
}

// addLines adds the lines of text; source names them in the log.
func (t *Table) addLines(v *records, source string, text []byte) {
	bad, number := 0, 0
	for line := range bytes.Lines(text) {
		number++
		err := t.addLine(v, line)
		if err == nil {
			continue
		}
		if bad++; bad <= maxLoggedLines {
			t.log.Warn("skipped an invalid line", "source", source, "line", number, "err", err)
		}
	}
	if bad > maxLoggedLines {
		t.log.Warn("skipped invalid lines", "source", source, "lines", bad)
	}
}

var errNoName = errors.New("an address without a name")

// addLine adds one line: an address, names, and optionally a comment. Invalid names are left out; the error
// is the first one's.
func (t *Table) addLine(v *records, line []byte) error {
	line, _, _ = bytes.Cut(line, []byte("#"))
	fields := strings.Fields(string(line))
	if len(fields) == 0 {
		return nil
	}
	// The zone of an IPv6 address (fe80::1%eth0) has no meaning on other machines.
	text, _, _ := strings.Cut(fields[0], "%")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("%.64q is not an IP address", text)
	}
	if len(fields) == 1 {
		return errNoName
	}
	var invalid error
	for _, field := range fields[1:] {
		name, err := wire.ParseName(field)
		switch {
		case err != nil:
			invalid = cmp.Or(invalid, err)
		case inZones([]byte(name), t.cfg.Zones):
			t.add(v, name, addr.Unmap())
		}
	}
	return invalid
}

// add adds the address addr of name.
func (t *Table) add(v *records, name wire.Name, addr netip.Addr) {
	h := v.names[name]
	if h == nil {
		h = new(host)
		v.names[name] = h
	}
	var isNew bool
	if addr.Is4() {
		h.v4, isNew = appendUnique(h.v4, addr.As4())
	} else {
		h.v6, isNew = appendUnique(h.v6, addr.As16())
	}
	if !isNew {
		return
	}
	v.entries++
	if t.cfg.NoReverse || strings.HasPrefix(string(name), wildcardLabel) {
		return
	}
	at := reverseName(addr)
	if names := v.reverse[at]; len(names) < maxRecords {
		v.reverse[at] = append(names, []byte(name))
		v.entries++
	}
}

// appendUnique appends e to s unless it is there already or s is full.
func appendUnique[E comparable](s []E, e E) ([]E, bool) {
	if len(s) == maxRecords || slices.Contains(s, e) {
		return s, false
	}
	return append(s, e), true
}

// reverseName returns the owner of the PTR records of addr (RFC 1035, 3.5, and RFC 3596,
// 2.5).
func reverseName(addr netip.Addr) wire.Name {
	var b []byte
	if addr.Is4() {
		for _, octet := range slices.Backward(addr.AsSlice()) {
			label := fmt.Appendf(nil, "%d", octet)
			b = append(append(b, byte(len(label))), label...)
		}
		return wire.Name(append(b, "\x07in-addr\x04arpa\x00"...))
	}
	const digits = "0123456789abcdef"
	for _, octet := range slices.Backward(addr.AsSlice()) {
		b = append(b, 1, digits[octet&15], 1, digits[octet>>4])
	}
	return wire.Name(append(b, "\x03ip6\x04arpa\x00"...))
}
