package reflector

import (
	"encoding/binary"
	"errors"
)

// errProtobuf is a message that is truncated or has a field of an unknown wire type.
var errProtobuf = errors.New("not a protobuf message")

// protobufFields iterates over the fields of a protobuf message in place. Set rest to the
// message, call next until it returns false, then check err.
type protobufFields struct {
	rest   []byte
	number int    // of the current field
	value  uint64 // of a varint; 0 for other types
	data   []byte // of a length-delimited field, part of the message; nil for other types
	err    error
}

// The wire types of protobuf. Kubernetes uses no groups (3 and 4).
const (
	wireVarint    = 0
	wireFixed64   = 1
	wireDelimited = 2
	wireFixed32   = 5
)

// next advances to the next field and reports whether there is one.
func (f *protobufFields) next() bool {
	if len(f.rest) == 0 || f.err != nil {
		return false
	}
	tag, ok := f.readUvarint()
	f.number, f.value, f.data = int(tag>>3), 0, nil
	if !ok || tag>>3 == 0 || tag>>3 > 1<<29-1 || !f.readValue(tag&7) {
		f.err = errProtobuf
		return false
	}
	return true
}

// readValue reads the value of a field of that wire type.
func (f *protobufFields) readValue(wireType uint64) (ok bool) {
	switch wireType {
	case wireVarint:
		f.value, ok = f.readUvarint()
	case wireFixed64:
		_, ok = f.readBytes(8)
	case wireFixed32:
		_, ok = f.readBytes(4)
	case wireDelimited:
		var n uint64
		if n, ok = f.readUvarint(); ok {
			f.data, ok = f.readBytes(n)
		}
	}
	return ok
}

func (f *protobufFields) readUvarint() (uint64, bool) {
	if len(f.rest) > 0 && f.rest[0] < 0x80 { // most tags and lengths
		v := f.rest[0]
		f.rest = f.rest[1:]
		return uint64(v), true
	}
	v, n := binary.Uvarint(f.rest)
	if n <= 0 {
		return 0, false
	}
	f.rest = f.rest[n:]
	return v, true
}

func (f *protobufFields) readBytes(n uint64) ([]byte, bool) {
	if n > uint64(len(f.rest)) {
		return nil, false
	}
	b := f.rest[:n:n]
	f.rest = f.rest[n:]
	return b, true
}

// fail ends the iteration with err, unless that is nil.
func (f *protobufFields) fail(err error) {
	if err != nil {
		f.err = err
	}
}
