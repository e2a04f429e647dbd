package mmsg_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/mmsg"
)

// place is a message and what it points to.
type place struct {
	bytes [16]byte
	vec   unix.Iovec
}

func messages(places []place, length int) []mmsg.Message {
	ms := make([]mmsg.Message, len(places))
	for i := range places {
		p := &places[i]
		p.vec.Base = &p.bytes[0]
		p.vec.SetLen(length)
		ms[i].Iov = &p.vec
		ms[i].SetIovlen(1)
	}
	return ms
}

// TestRoundTrip: what is sent with one call is received with one call, in order, and
// an empty socket is EAGAIN.
func TestRoundTrip(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if mmsg.Unavailable(uintptr(fds[0])) {
		t.Skip("a filter refuses the system calls")
	}
	out, in := make([]place, 3), make([]place, 5)
	for i := range out {
		out[i].bytes[0] = byte('a' + i)
	}
	if n, errno := mmsg.Send(uintptr(fds[0]), messages(out, 4), unix.MSG_DONTWAIT); n != 3 || errno != 0 {
		t.Fatalf("%d sent, %v", n, errno)
	}
	got := messages(in, 16)
	if n, errno := mmsg.Receive(uintptr(fds[1]), got, unix.MSG_DONTWAIT); n != 3 || errno != 0 {
		t.Fatalf("%d received, %v", n, errno)
	}
	for i := range out {
		if got[i].Len != 4 || in[i].bytes != out[i].bytes {
			t.Errorf("message %d has %d bytes, %v", i, got[i].Len, in[i].bytes)
		}
	}
	if n, errno := mmsg.Receive(uintptr(fds[1]), got, unix.MSG_DONTWAIT); n != 0 || errno != unix.EAGAIN {
		t.Errorf("%d received from an empty socket, %v", n, errno)
	}
}

// TestRefused: a descriptor that is no socket is no refusal.
func TestRefused(t *testing.T) {
	if mmsg.Unavailable(^uintptr(0)) {
		t.Error("EBADF is taken for a refusal")
	}
}
