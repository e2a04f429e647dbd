package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// castagnoli is the table of CRC-32C, for which CPUs have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	chunkHeadLen = 1 + 4
	crcLen       = 4
	// chunkOverhead is what a chunk has besides its contents.
	chunkOverhead = chunkHeadLen + crcLen
)

// begin begins a chunk.
func (w *writer) begin(t chunkType) { w.b = append(w.b[:0], byte(t), 0, 0, 0, 0) }

// flush completes the chunk and writes it.
func (w *writer) flush() error {
	binary.BigEndian.PutUint32(w.b[1:], uint32(len(w.b)-chunkHeadLen))
	w.b = binary.BigEndian.AppendUint32(w.b, crc32.Checksum(w.b, castagnoli))
	_, err := w.w.Write(w.b)
	return err
}

// chunkReader reads a stream chunk by chunk, and nothing beyond its end.
type chunkReader struct {
	r io.Reader
	b []byte
}

// open reads what comes before the first chunk.
func (c *chunkReader) open() error {
	c.b = make([]byte, maxChunk+chunkOverhead)
	if err := c.fill(c.b[:preambleLen]); err != nil {
		return err
	}
	if string(c.b[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin with %q", ErrStream, magic)
	}
	if v := binary.BigEndian.Uint16(c.b[len(magic):]); v != formatVersion {
		return fmt.Errorf("%w: it has format version %d, this agent reads %d", ErrStream, v, formatVersion)
	}
	return nil
}

// next returns the next chunk and checks its checksum. The bytes are valid until the next
// call.
func (c *chunkReader) next() (chunkType, []byte, error) {
	if err := c.fill(c.b[:chunkHeadLen]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(c.b[1:])
	if n > maxChunk {
		return 0, nil, fmt.Errorf("%w: a chunk has %d bytes, at most %d are allowed", ErrStream, n, maxChunk)
	}
	end := chunkHeadLen + int(n)
	if err := c.fill(c.b[chunkHeadLen : end+crcLen]); err != nil {
		return 0, nil, err
	}
	if crc32.Checksum(c.b[:end], castagnoli) != binary.BigEndian.Uint32(c.b[end:]) {
		return 0, nil, fmt.Errorf("%w: wrong checksum", ErrStream)
	}
	return chunkType(c.b[0]), c.b[chunkHeadLen:end], nil
}

func (c *chunkReader) fill(b []byte) error {
	_, err := io.ReadFull(c.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is truncated", ErrStream)
	}
	return err
}

// timestamp is a time that another process can compare with its own: on the clock that
// starts with the machine and is never set, and on the wall clock for after a reboot.
type timestamp struct {
	boot [bootLen]byte // the boot ID of the machine; zero if unknown
	up   time.Duration
	wall int64 // in nanoseconds since 1970
}

const (
	bootLen      = 36 // a UUID as text
	timestampLen = bootLen + 8 + 8
)

func (s timestamp) append(b []byte) []byte {
	b = append(b, s.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.up))
	return binary.BigEndian.AppendUint64(b, uint64(s.wall))
}

// readTimestamp reads the timestamp that b begins with.
func readTimestamp(b []byte) (s timestamp, ok bool) {
	if len(b) < timestampLen {
		return s, false
	}
	copy(s.boot[:], b)
	s.up = time.Duration(binary.BigEndian.Uint64(b[bootLen:]))
	s.wall = int64(binary.BigEndian.Uint64(b[bootLen+8:]))
	return s, s.up >= 0 && s.wall >= 0
}

// since returns the time from then to s, after a reboot by the wall clock. ok is false if
// the clock was set back, so that the time is unknown.
func (s timestamp) since(then timestamp) (d time.Duration, ok bool) {
	d = time.Duration(s.wall - then.wall)
	if s.boot == then.boot && s.boot != [bootLen]byte{} {
		d = s.up - then.up
	}
	return d, d >= 0
}

// bootClock makes timestamps.
type bootClock struct {
	now func() timestamp
}

func newBootClock() *bootClock {
	var s timestamp
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(id) >= bootLen {
		copy(s.boot[:], id)
	}
	return &bootClock{now: func() timestamp {
		var up unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
			s.boot = [bootLen]byte{} // since does not use up then
		}
		s.up, s.wall = time.Duration(up.Nano()), time.Now().UnixNano()
		return s
	}}
}
