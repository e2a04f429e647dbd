// These tests use heldWrites, which is not exported.

package server

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writesConn records the writes to it.
type writesConn struct {
	net.Conn
	writes []string
	err    error
}

func (c *writesConn) Write(b []byte) (int, error) {
	c.writes = append(c.writes, string(b))
	return len(b), c.err
}

// TestHeldWrites: what is written during a reply leaves with the first write after it, in order.
func TestHeldWrites(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), maxHeld+1))
	for name, tt := range map[string]struct {
		steps []string // "+" begins a reply, "-" ends one, "." lets maxHold pass, others are written
		want  []string
	}{
		"no reply":                      {[]string{"a", "b"}, []string{"a", "b"}},
		"a reply":                       {[]string{"a", "+", "b", "c", "-", "d", "e"}, []string{"a", "bcd", "e"}},
		"two replies":                   {[]string{"+", "a", "+", "b", "-", "c", "-", "d"}, []string{"abcd"}},
		"one after the other":           {[]string{"+", "a", "-", "+", "b", "-", "c"}, []string{"abc"}},
		"a stream that does not end":    {[]string{"+", "a", "-", ".", "b"}, []string{"a", "b"}},
		"a reply that is not let out":   {[]string{"+", "a", ".", "b", ".", "-", "c"}, []string{"a", "b", "c"}},
		"a reply longer than is held":   {[]string{"+", "a", long, "b", "-", "c"}, []string{"a", long, "bc"}},
		"a long reply alone":            {[]string{"+", long, "-", "a"}, []string{long, "a"}},
		"more than is held in pieces":   {[]string{"+", "a", long[:maxHeld], "-", "b"}, []string{"a" + long[:maxHeld], "b"}},
		"as much as is held":            {[]string{"+", long[:maxHeld], "-", "a"}, []string{long[:maxHeld] + "a"}},
		"nothing is held after a pause": {[]string{"+", "a", "-", "b", ".", "c"}, []string{"ab", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &writesConn{}
				h := &heldWrites{conn: conn}
				for _, s := range tt.steps {
					switch s {
					case "+":
						h.hold()
					case "-":
						h.release()
					case ".":
						time.Sleep(maxHold)
						synctest.Wait()
					default:
						if n, err := h.Write([]byte(s)); n != len(s) || err != nil {
							t.Errorf("writing %.9q: %d, %v", s, n, err)
						}
					}
				}
				if diff := cmp.Diff(tt.want, conn.writes); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestHeldWritesFail: the write that reaches a failed connection returns the connection's error.
func TestHeldWritesFail(t *testing.T) {
	broken := errors.New("broken")
	for _, after := range []int{1, maxHeld + 1} {
		h := &heldWrites{conn: &writesConn{err: broken}}
		h.hold()
		if _, err := h.Write([]byte("held")); err != nil {
			t.Errorf("holding fails: %v", err)
		}
		h.release()
		if _, err := h.Write(make([]byte, after)); !errors.Is(err, broken) {
			t.Errorf("writing %d bytes: %v", after, err)
		}
	}
}
