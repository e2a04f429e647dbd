// Inside the package: it builds single chunks and sets the clocks of reader and writer.

package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestSnapshotMalformed reads chunks with a correct checksum and wrong contents.
func TestSnapshotMalformed(t *testing.T) {
	o := newSnapshotClock()
	now := o.append(nil)
	later := o.timestamp
	later.up, later.wall = later.up+time.Second, later.wall+int64(time.Second)
	head, name := chunk(chunkHead, now), chunk(chunkName, []byte("\x00\x07here"))
	entries := func(b ...byte) []byte { return chunk(chunkEntries, append(slices.Clone(now), b...)) }
	for _, tt := range []struct {
		name   string
		chunks [][]byte
		says   string // a part of the error
	}{
		{"no chunk", nil, "truncated"},
		{"no head", [][]byte{name}, "in place of the head"},
		{"a short head", [][]byte{chunk(chunkHead, now[1:])}, "no timestamp"},
		{"a head from the future", [][]byte{chunk(chunkHead, later.append(nil))}, "in the future"},
		{"a cache without a number", [][]byte{head, chunk(chunkName, []byte{7})}, "without a name"},
		{"entries without a time", [][]byte{head, name, chunk(chunkEntries, now[1:])}, "no timestamp"},
		{"entries from the future", [][]byte{head, name, chunk(chunkEntries, later.append(nil))}, "in the future"},
		{"an entry without a length", [][]byte{head, name, entries(0, 0, 0)}, "longer than its chunk"},
		{"an entry beyond its chunk", [][]byte{head, name, entries(0, 0, 0, 2, 1)}, "longer than its chunk"},
		{"an entry of the greatest length", [][]byte{head, name, entries(0xFF, 0xFF, 0xFF, 0xFF, 1)}, "longer than its chunk"},
		{"an entry without contents", [][]byte{head, name, entries(0, 0, 0, 0)}, "without a head"},
		{"an entry shorter than a head", [][]byte{head, name, entries(0, 0, 0, 1, entryHeadLen)}, "without a head"},
		{"a head shorter than any", [][]byte{head, name, entries(append([]byte{0, 0, 0, entryHeadLen, entryHeadLen - 1}, make([]byte, entryHeadLen-1)...)...)}, "without a head"},
		{"a head longer than its entry", [][]byte{head, name, entries(append([]byte{0, 0, 0, entryHeadLen, entryHeadLen + 1}, make([]byte, entryHeadLen-1)...)...)}, "without a head"},
		{"an end without a number", [][]byte{head, chunk(chunkEnd, []byte{0, 0, 0})}, "not the number"},
	} {
		stream := binary.BigEndian.AppendUint16([]byte(magic), formatVersion)
		stream = append(stream, bytes.Join(tt.chunks, nil)...)
		d := newCache(nil, Options{})
		n, err := o.read(t, stream, map[string]*Cache{"here": d})
		if n != 0 || !errors.Is(err, ErrStream) || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %d answers, error %v; want one with %q", tt.name, n, err, tt.says)
		}
	}
}

// failsAfter is a writer that fails after some writes.
type failsAfter int

func (f *failsAfter) Write(b []byte) (int, error) {
	if *f--; *f < 0 {
		return 0, errUpstream
	}
	return len(b), nil
}

// cancelsAfter is a context that is canceled after its error was read a number of times.
type cancelsAfter struct {
	context.Context
	left int
}

func (c *cancelsAfter) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestSnapshotWriteFails: writing ends with the first write that fails, whichever it is, and with
// the context.
func TestSnapshotWriteFails(t *testing.T) {
	c := newCache(nil, Options{})
	fetch(t, c, question(t, "www.example.", dns.TypeA), message{answer: []string{addr}})
	// The preamble, the head, a name, a chunk of entries and the end.
	const writes = 5
	for n := range writes + 1 {
		room := failsAfter(n)
		if _, err := Write(t.Context(), &room, map[string]*Cache{"c": c}); (err == nil) != (n == writes) || err != nil && !errors.Is(err, errUpstream) {
			t.Errorf("with room for %d writes of %d: error %v", n, writes, err)
		}
	}
	for n := 0; ; n++ {
		var b bytes.Buffer
		_, err := Write(&cancelsAfter{t.Context(), n}, &b, map[string]*Cache{"c": c})
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("canceled at check %d: error %v", n, err)
		}
		if _, _, err := Check(t.Context(), &b); !errors.Is(err, ErrStream) {
			t.Errorf("canceled at check %d: the stream is read with error %v", n, err)
		}
	}
}

// TestSnapshotNameTooLong: a cache with a name that the format has no room for is an error, and
// nothing is written.
func TestSnapshotNameTooLong(t *testing.T) {
	c := newCache(nil, Options{})
	for length, ok := range map[int]bool{maxCacheName: true, maxCacheName + 1: false} {
		var b bytes.Buffer
		_, err := Write(t.Context(), &b, map[string]*Cache{strings.Repeat("n", length): c})
		if (err == nil) != ok || (b.Len() > 0) != ok {
			t.Errorf("a name of %d bytes: %d bytes written, error %v", length, b.Len(), err)
		}
		if err != nil && !strings.Contains(err.Error(), "at most 65536 caches") {
			t.Errorf("the limit is missing: %v", err)
		}
	}
}
