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

// castagnoli is the table of the CRC that CPUs have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	chunkHeadLen = 1 + 4
	crcLen       = 4
	// chunkOverhead is what a chunk has besides its contents.
	chunkOverhead = chunkHeadLen + crcLen
)

// begin begins a chunk.
func (w *writer) begin(t chunkType) { w.b = append(w.b[:0], byte(t), 0, 0, 0, 0) }

// flush ends the chunk and writes it.
func (w *writer) flush() error {
	binary.BigEndian.PutUint32(w.b[1:], uint32(len(w.b)-chunkHeadLen))
	w.b = binary.BigEndian.AppendUint32(w.b, crc32.Checksum(w.b, castagnoli))
	_, err := w.w.Write(w.b)
	return err
}

// chunks reads a stream chunk by chunk, and not a byte more than there is of it.
type chunks struct {
	r io.Reader
	b []byte
}

// open reads what stands before the first chunk.
func (c *chunks) open() error {
	c.b = make([]byte, maxChunk+chunkOverhead)
	if err := c.fill(c.b[:preambleLen]); err != nil {
		return err
	}
	if string(c.b[:len(magic)]) != magic {
		return fmt.Errorf("%w: it does not begin with %q", ErrStream, magic)
	}
	if v := binary.BigEndian.Uint16(c.b[len(magic):]); v != formatVersion {
		return fmt.Errorf("%w: it has format %d, and this is what reads %d", ErrStream, v, formatVersion)
	}
	return nil
}

// next gives the next chunk, whose checksum is right. The bytes are good until the call
// after that.
func (c *chunks) next() (chunkType, []byte, error) {
	if err := c.fill(c.b[:chunkHeadLen]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(c.b[1:])
	if n > maxChunk {
		return 0, nil, fmt.Errorf("%w: a chunk of %d bytes, the most is %d", ErrStream, n, maxChunk)
	}
	end := chunkHeadLen + int(n)
	if err := c.fill(c.b[chunkHeadLen : end+crcLen]); err != nil {
		return 0, nil, err
	}
	if crc32.Checksum(c.b[:end], castagnoli) != binary.BigEndian.Uint32(c.b[end:]) {
		return 0, nil, fmt.Errorf("%w: a checksum is wrong", ErrStream)
	}
	return chunkType(c.b[0]), c.b[chunkHeadLen:end], nil
}

func (c *chunks) fill(b []byte) error {
	_, err := io.ReadFull(c.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", ErrStream)
	}
	return err
}

// stamp is a moment that another process can compare with its own: on the clock that runs
// from the start of the machine, which nobody sets, and on the wall clock for after that.
type stamp struct {
	boot [bootLen]byte // which start of the machine; zero if unknown
	up   time.Duration
	wall int64 // in nanoseconds since 1970
}

const (
	bootLen  = 36 // a UUID as text
	stampLen = bootLen + 8 + 8
)

func (s stamp) append(b []byte) []byte {
	b = append(b, s.boot[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.up))
	return binary.BigEndian.AppendUint64(b, uint64(s.wall))
}

// readStamp reads the stamp that b begins with.
func readStamp(b []byte) (s stamp, ok bool) {
	if len(b) < stampLen {
		return s, false
	}
	copy(s.boot[:], b)
	s.up = time.Duration(binary.BigEndian.Uint64(b[bootLen:]))
	s.wall = int64(binary.BigEndian.Uint64(b[bootLen+8:]))
	return s, s.up >= 0 && s.wall >= 0
}

// since is the time from then to s. After another start of the machine it is what the
// wall clock says. ok is false where a clock has gone back, and nobody knows.
func (s stamp) since(then stamp) (d time.Duration, ok bool) {
	d = time.Duration(s.wall - then.wall)
	if s.boot == then.boot && s.boot != [bootLen]byte{} {
		d = s.up - then.up
	}
	return d, d >= 0
}

// watch makes stamps of now.
type watch struct {
	now func() stamp
}

func newWatch() *watch {
	var s stamp
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(id) >= bootLen {
		copy(s.boot[:], id)
	}
	return &watch{now: func() stamp {
		var up unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
			s.boot = [bootLen]byte{} // and so is not looked at
		}
		s.up, s.wall = time.Duration(up.Nano()), time.Now().UnixNano()
		return s
	}}
}
