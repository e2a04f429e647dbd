package zonefile

import (
	"errors"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestBounds: a zone of too many records, or too large, is refused.
func TestBounds(t *testing.T) {
	rr := wire.RR{Owner: []byte("\x01z\x00"), Type: wire.TypeA, Data: []byte{192, 0, 2, 1}}
	b := builder{origin: "\x01z\x00", soa: -1, scale: 1, records: make([]rawRecord, maxRecords), maxSize: maxZoneSize}
	if err := b.add(rr); !errors.Is(err, errTooMany) {
		t.Errorf("after %d records: %v", maxRecords, err)
	}
	b = builder{origin: "\x01z\x00", soa: -1, scale: 1, outside: maxRecords, maxSize: maxZoneSize}
	if err := b.add(rr); !errors.Is(err, errTooMany) {
		t.Errorf("after %d records of other zones: %v", maxRecords, err)
	}
	b = newBuilder("\x01z\x00", policyScale)
	b.outside = policyScale*maxRecords - 1
	if err := b.add(rr); err != nil {
		t.Errorf("after %d records of a response policy zone: %v", b.outside, err)
	}
	if err := b.add(rr); !errors.Is(err, errTooMany) || !strings.Contains(err.Error(), "1000000") {
		t.Errorf("after %d: %v", policyScale*maxRecords, err)
	}
	b = builder{origin: "\x01z\x00", soa: -1, scale: 1, text: make([]byte, 1001), maxSize: 1000}
	if err := b.add(rr); !errors.Is(err, errTooBig) {
		t.Errorf("after 1,001 bytes: %v", err)
	}
}

// TestDeepNames: the empty non-terminals above deep names count, too.
func TestDeepNames(t *testing.T) {
	b := builder{origin: wire.Root, soa: -1, scale: 1, maxSize: 1 << 20}
	if err := b.add(wire.RR{Owner: []byte(wire.Root), Type: wire.TypeSOA, Data: make([]byte, 22)}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		owner := []byte(strings.Repeat("\x01a", 124) + "\x02" + string([]byte{byte(i), byte(i >> 8)}) + "\x00")
		if err := b.add(wire.RR{Owner: owner, Type: wire.TypeA, Data: []byte{192, 0, 2, 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.build(); !errors.Is(err, errTooBig) {
		t.Errorf("the error is %v", err)
	}
}
