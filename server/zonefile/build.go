package zonefile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// maxRecords bounds the records of a zone: with $GENERATE a line makes 65,536.
	maxRecords = 250_000
	// maxZoneSize bounds a zone in memory, in bytes. Empty non-terminals above deep names take more than
	// the file has.
	maxZoneSize = 64 << 20
	// policyScale is how many times as many records, as much memory, and as large files and transfers a response policy zone
	// may have: lists of unwanted names have some 100,000 of them, often twice, with the names below them.
	policyScale = 4
)

var (
	errNoSOA    = errors.New("it has no SOA record at the zone's name; write one, as `@ SOA …`, and check $ORIGIN")
	errNSEC3    = errors.New("NSEC3 is not supported; sign the zone with NSEC")
	errTooMany  = errors.New("it has too many records")
	errTooBig   = errors.New("the zone takes too much memory")
	errSameSOA  = errors.New("the serial is unchanged")
	errSOAOwner = errors.New("its SOA record has another name than the zone; write the zone's name or @ there, and check $ORIGIN and the directive's zones")
)

const (
	typeRRSIG      uint16 = 46
	typeNSEC       uint16 = 47
	typeNSEC3      uint16 = 50
	typeNSEC3Param uint16 = 51
	typeSVCB       uint16 = 64
	typeHTTPS      uint16 = 65
)

// builder collects the records of a zone.
type builder struct {
	origin  wire.Name
	text    []byte // owners and RDATA
	records []rawRecord
	// soa is the index of the last SOA record, -1 for none.
	soa     int
	outside int
	maxSize int // of text, and of the zone
	scale   int // how many times maxRecords it may have
}

// rawRecord is a record in builder.text: its owner, then its RDATA.
type rawRecord struct {
	at             uint32
	owner          uint8
	data           uint16
	rtype, covered uint16
	ttl            uint32
}

func (b *builder) owner(r *rawRecord) []byte { return b.text[r.at:][:r.owner] }
func (b *builder) data(r *rawRecord) []byte  { return b.text[r.at+uint32(r.owner):][:r.data] }

// newBuilder returns a builder for a zone whose bounds are scale times those of other zones.
func newBuilder(origin wire.Name, scale int) builder {
	return builder{origin: origin, soa: -1, maxSize: scale * maxZoneSize, scale: scale}
}

// read reads the zone in text. If unchanged is not nil, a zone with the serial *unchanged is not
// read to its end, and the error is errSameSOA.
func read(file wire.ZoneFile, text io.Reader, scale int, unchanged *uint32) (*Zone, error) {
	b := newBuilder(file.Origin, scale)
	for rr, err := range file.Records(text) {
		if err != nil {
			return nil, err
		}
		if err := b.add(rr); err != nil {
			return nil, err
		}
		if unchanged != nil && rr.Type == wire.TypeSOA && serialOf(rr.Data) == *unchanged {
			return nil, errSameSOA
		}
	}
	return b.build()
}

// serialOf returns the serial of an SOA record.
func serialOf(rdata []byte) uint32 { return binary.BigEndian.Uint32(rdata[len(rdata)-20:]) }

// check reports why rr can't be part of the zone.
func (b *builder) check(rr wire.RR) error {
	switch {
	case rr.Type == typeNSEC3, rr.Type == typeNSEC3Param:
		return errNSEC3
	case rr.Type == wire.TypeSOA && string(rr.Owner) != string(b.origin):
		return errSOAOwner
	case len(b.records)+b.outside >= maxRecords*b.scale: // with $GENERATE a few lines make millions
		return fmt.Errorf("%w: more than %d", errTooMany, maxRecords*b.scale)
	case len(b.text) > b.maxSize:
		return b.tooBig()
	}
	return nil
}

func (b *builder) tooBig() error { return fmt.Errorf("%w: more than %d MiB", errTooBig, b.maxSize>>20) }

// add adds a record.
func (b *builder) add(rr wire.RR) error {
	if err := b.check(rr); err != nil {
		return err
	}
	if !wire.Under(rr.Owner, b.origin) {
		b.outside++
		return nil
	}
	r := rawRecord{at: uint32(len(b.text)), owner: uint8(len(rr.Owner)), data: uint16(len(rr.Data)), rtype: rr.Type, ttl: rr.TTL}
	if rr.Type == typeRRSIG && len(rr.Data) >= 2 {
		r.covered = binary.BigEndian.Uint16(rr.Data)
	}
	b.text = append(append(b.text, rr.Owner...), rr.Data...)
	if rr.Type == wire.TypeSOA {
		if b.soa >= 0 { // the last one counts: a transfer ends with the SOA that it began with
			b.records[b.soa] = r
			return nil
		}
		b.soa = len(b.records)
	}
	b.records = append(b.records, r)
	return nil
}

// build packs the records.
func (b *builder) build() (*Zone, error) {
	if b.soa < 0 {
		return nil, errNoSOA
	}
	slices.SortStableFunc(b.records, func(x, y rawRecord) int {
		return cmp.Or(wire.Canonical(b.owner(&x), b.owner(&y)), cmp.Compare(x.rtype, y.rtype), cmp.Compare(x.covered, y.covered))
	})
	z := &Zone{origin: b.origin, outside: b.outside, seed: maphash.MakeSeed()}
	z.data = make([]byte, 0, len(b.text)+16*len(b.records))
	var nodes []uint32
	last := []byte(b.origin)
	for rest := b.records; len(rest) > 0; {
		owner := b.owner(&rest[0])
		n := 1
		for n < len(rest) && string(b.owner(&rest[n])) == string(owner) {
			n++
		}
		for _, name := range between(owner, last) {
			nodes = append(nodes, uint32(len(z.data)))
			z.data = append(append(append(z.data, 0), name...), 0, 0)
		}
		nodes = append(nodes, uint32(len(z.data)))
		b.appendNode(z, rest[:n])
		rest, last = rest[n:], owner
		if len(z.data) > b.maxSize {
			return nil, b.tooBig()
		}
	}
	z.data = bytes.Clone(z.data) // its cap is what it takes
	z.index(nodes)
	z.setApex()
	return z, nil
}

// between returns the names above name that are not last or above it, the highest first.
func between(name, last []byte) (list [][]byte) {
	for off := 1 + int(name[0]); off < len(name) && !wire.Under(last, wire.Name(name[off:])); off += 1 + int(name[off]) {
		list = append(list, name[off:])
	}
	slices.Reverse(list)
	return list
}

// appendNode appends the node with these records, which have one owner.
func (b *builder) appendNode(z *Zone, list []rawRecord) {
	owner := b.owner(&list[0])
	at := len(z.data)
	z.data = append(append(z.data, 0), owner...)
	count := len(z.data)
	z.data = append(z.data, 0, 0)
	sets := uint16(0)
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].rtype == list[0].rtype && list[n].covered == list[0].covered {
			n++
		}
		z.data[at] |= flagOf(list[0].rtype, string(owner) == string(b.origin))
		z.records += b.appendSet(z, list[:n])
		sets, list = sets+1, list[n:]
	}
	binary.BigEndian.PutUint16(z.data[count:], sets)
}

func flagOf(t uint16, apex bool) uint8 {
	switch {
	case t == wire.TypeNS && !apex:
		return hasNS
	case t == wire.TypeDNAME:
		return hasDNAME
	case t == wire.TypeCNAME:
		return hasCNAME
	}
	return 0
}

// maxSet bounds the records of a set: a message can't hold more.
const maxSet = 4096

// appendSet appends the set of these records, each once (RFC 2181, 5), and returns their number.
func (b *builder) appendSet(z *Zone, list []rawRecord) (n int) {
	head := len(z.data)
	z.data = append(z.data, make([]byte, setHeader)...)
	seen := make(map[string]bool)
	for i := range list {
		data := b.data(&list[i])
		if n == maxSet || len(list) > 1 && seen[string(data)] {
			continue
		}
		if len(list) > 1 {
			seen[string(data)] = true
		}
		n++
		z.data = binary.BigEndian.AppendUint32(z.data, list[i].ttl)
		z.data = binary.BigEndian.AppendUint16(z.data, uint16(len(data)))
		z.data = append(z.data, data...)
	}
	h := z.data[head:]
	binary.BigEndian.PutUint16(h, list[0].rtype)
	binary.BigEndian.PutUint16(h[2:], list[0].covered)
	binary.BigEndian.PutUint16(h[4:], uint16(n))
	binary.BigEndian.PutUint32(h[6:], uint32(len(h)-setHeader))
	return n
}
