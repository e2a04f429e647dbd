package wire

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// ErrZoneFile is wrapped by the errors of [ZoneFile.Records].
var ErrZoneFile = errors.New("invalid zone file")

// ZoneFile is a master file (RFC 1035, 5).
type ZoneFile struct {
	Origin Name
	// Path is the file's absolute path, for errors and for relative names of $INCLUDE.
	Path string
	// Files opens the files of $INCLUDE by their absolute paths without the leading slash; nil: none
	// can be included.
	Files fs.FS
}

// Records iterates over the records that text has, in order. $ORIGIN, $TTL, $INCLUDE (seven
// levels deep) and $GENERATE (65,536 records in one line) are understood. The names of owners,
// and those in NS, SOA, CNAME and MX records, are in lower case, as CoreDNS has them. All others stay as they are written: capitals in
// SVCB and HTTPS records count for signatures (RFC 4034, 6.2) and digests (RFC 8976, 3.3.1). The record is valid until the next one is read. An error is the last element; it has the line.
func (f ZoneFile) Records(text io.Reader) iter.Seq2[RR, error] {
	return func(yield func(RR, error) bool) {
		p := dns.NewZoneParser(text, f.Origin.String(), filepath.ToSlash(f.Path))
		if f.Files != nil {
			p.SetIncludeAllowed(true)
			p.SetIncludeFS(f.Files)
		}
		buf := make([]byte, MaxMessage+MaxName)
		for rr, ok := p.Next(); ok; rr, ok = p.Next() {
			packed, err := zoneRecord(buf, rr)
			if !yield(packed, err) || err != nil {
				return
			}
		}
		if err := p.Err(); err != nil {
			yield(RR{}, fmt.Errorf("%w: %w", ErrZoneFile, err))
		}
	}
}

// ZoneFilePlace returns the path and the line that an error of [ZoneFile.Records] is about, and what is wrong there; the line
// is 0 if it is not known.
func ZoneFilePlace(err error) (path string, line int, text string) {
	var at *dns.ParseError
	if !errors.As(err, &at) {
		return "", 0, ""
	}
	text = at.Error()
	path, text, found := strings.Cut(text, ": dns: ")
	i := strings.LastIndex(text, " at line: ")
	if !found || i < 0 {
		return "", 0, ""
	}
	number, _, _ := strings.Cut(text[i+len(" at line: "):], ":")
	if line, err = strconv.Atoi(number); err != nil {
		return "", 0, ""
	}
	return path, line, text[:i]
}

// zoneRecord packs rr into buf.
func zoneRecord(buf []byte, rr dns.RR) (RR, error) {
	h := rr.Header()
	if h.Class != dns.ClassINET {
		return RR{}, fmt.Errorf("%w: %s has the class %s; only the class IN is served", ErrZoneFile, h.Name, dns.Class(h.Class))
	}
	for _, name := range targetNames(rr) {
		*name = strings.ToLower(*name)
	}
	n, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return RR{}, fmt.Errorf("%w: the record %q: %w", ErrZoneFile, rr.String(), err)
	}
	r, ok := readRecord(buf[:n], 0)
	if !ok {
		return RR{}, fmt.Errorf("%w: the record %q does not fit into a message", ErrZoneFile, rr.String())
	}
	owner := AppendLower(buf[:0], buf[:r.Data-10])
	packed := RR{Owner: owner, Type: r.Type, TTL: r.TTL, Data: buf[r.Data:r.End]}
	if !validData(packed) {
		return RR{}, fmt.Errorf("%w: the data of the record %q are incomplete", ErrZoneFile, rr.String())
	}
	return packed, nil
}

// validData reports whether RDATA that an answer or a zone reads has its form: miekg/dns takes records that end between two
// fields, as those of dynamic updates and of the notation of RFC 3597 may.
func validData(rr RR) bool {
	data := rr.Data
	switch rr.Type {
	case TypeA:
		return len(data) == 4
	case TypeAAAA:
		return len(data) == 16
	case TypeNS, TypeCNAME, TypeDNAME, TypePTR:
		return nameEnd(data, 0) == len(data)
	case TypeMX:
		return nameEnd(data, 2) == len(data)
	case TypeSRV:
		return nameEnd(data, 6) == len(data)
	case dns.TypeSVCB, dns.TypeHTTPS:
		return nameEnd(data, 2) > 0
	case TypeSOA:
		end := nameEnd(data, 0)
		return end > 0 && nameEnd(data, end)+20 == len(data)
	}
	return true
}

// nameEnd returns the offset after the uncompressed name at off; -1 if there is none.
func nameEnd(b []byte, off int) int {
	for n := 0; off < len(b) && b[off] <= MaxLabel && n < MaxName; n++ {
		if b[off] == 0 {
			return off + 1
		}
		off += 1 + int(b[off])
	}
	return -1
}

func targetNames(rr dns.RR) []*string {
	switch rr := rr.(type) {
	case *dns.NS:
		return []*string{&rr.Ns}
	case *dns.SOA:
		return []*string{&rr.Ns, &rr.Mbox}
	case *dns.CNAME:
		return []*string{&rr.Target}
	case *dns.MX:
		return []*string{&rr.Mx}
	}
	return nil
}
