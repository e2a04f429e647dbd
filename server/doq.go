package server

import (
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/wire"
)

// doqCodes counts the outcomes of queries over QUIC at one address by error code. A reply is
// code 0, as in CoreDNS.
type doqCodes [quicErrors]atomic.Uint64

// Errors of reading a query, for which the connection is closed.
var (
	errDoQFraming = errors.New("the stream is not one message with its length")
	errDoQSize    = errors.New("the query is too long")
)

// readDoQ reads one message with its length, and the end of the stream, into buf, which grows by
// what is received (RFC 9250, 4.2).
func readDoQ(str io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := str.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		whole, invalid := checkDoQ(buf)
		switch {
		case invalid != nil:
			return nil, invalid
		case err == nil:
		case errors.Is(err, io.EOF) && whole:
			return buf, nil
		case errors.Is(err, io.EOF):
			return nil, errDoQFraming
		default:
			return nil, err
		}
	}
}

// checkDoQ checks what has been received of a stream. whole is set if it is one message.
func checkDoQ(buf []byte) (whole bool, err error) {
	if len(buf) < lengthPrefix {
		return false, nil
	}
	size := lengthPrefix + int(binary.BigEndian.Uint16(buf))
	switch {
	case size > maxStreamQuery:
		return false, errDoQSize
	case size < lengthPrefix+wire.HeaderLen || len(buf) > size:
		return false, errDoQFraming
	}
	return len(buf) == size, nil
}
