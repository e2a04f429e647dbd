package reflector

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
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

// protobufReader reads the fields of a protobuf message from a stream, one at a time. Its methods return errProtobuf if
// the data are not such a message, and errConnBroken if the stream breaks off.
type protobufReader struct {
	in   *bufio.Reader
	read uint64 // bytes read so far
}

// nextField reads the tag of a field, and its value unless that is length-delimited: then size bytes follow. It
// returns io.EOF at the end of the stream.
func (r *protobufReader) nextField() (number int, size uint64, err error) {
	tag, err := r.readUvarint()
	switch {
	case err != nil:
		return 0, 0, err
	case tag>>3 == 0 || tag>>3 > 1<<29-1:
		return 0, 0, errProtobuf
	}
	switch tag & 7 {
	case wireVarint:
		_, err = r.readUvarint()
	case wireFixed64:
		err = r.skip(8)
	case wireFixed32:
		err = r.skip(4)
	case wireDelimited:
		if size, err = r.readUvarint(); err == nil && size > math.MaxInt64/2 { // so that no sum of sizes overflows
			err = errProtobuf
		}
	default:
		err = errProtobuf
	}
	return int(tag >> 3), size, unexpectedEOF(err)
}

// readUvarint returns io.EOF at the end of the stream.
func (r *protobufReader) readUvarint() (uint64, error) {
	data, err := r.in.Peek(binary.MaxVarintLen64)
	v, n := binary.Uvarint(data)
	switch {
	case n > 0:
		_, _ = r.in.Discard(n) // they are in the buffer
		r.read += uint64(n)
		return v, nil
	case n < 0:
		return 0, errProtobuf
	case len(data) > 0:
		err = unexpectedEOF(err)
	}
	return 0, connError(err)
}

// readField reads the size bytes of a field into buf, which grows as needed.
func (r *protobufReader) readField(buf *[]byte, size uint64) (err error) {
	*buf, err = readBytes(r.in, *buf, int(size))
	r.read += size
	return err
}

// skip reads size bytes.
func (r *protobufReader) skip(size uint64) error {
	r.read += size
	if _, err := io.CopyN(io.Discard, r.in, int64(size)); err != nil {
		return connError(unexpectedEOF(err))
	}
	return nil
}

// readBytes reads n bytes into buf, which it returns. The buffer grows with the data received, not with the announced
// length.
func readBytes(in io.Reader, buf []byte, n int) ([]byte, error) {
	buf = buf[:0]
	for left := n; left > 0; {
		have := len(buf)
		part := min(left, max(have, cap(buf)-have, readBufferSize))
		buf = slices.Grow(buf, part)[:have+part]
		if _, err := io.ReadFull(in, buf[have:]); err != nil {
			return buf, connError(unexpectedEOF(err))
		}
		left -= part
	}
	return buf, nil
}
