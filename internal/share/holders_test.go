package share_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/share"
)

// TestHolders: clients are in the order in which they lose a place, whatever they had before.
func TestHolders(t *testing.T) {
	const limit = 16
	l := share.NewLimiter(limit)
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.2"), netip.MustParseAddr("fd00::3")
	acquire := func(addr netip.Addr, n int) (places []*share.Place) {
		for range n {
			p := new(share.Place)
			if !l.Acquire(p, addr) {
				t.Fatalf("%v gets no place", addr)
			}
			places = append(places, p)
		}
		return places
	}
	text := func(n int) (text string) {
		for _, h := range l.Holders(n) {
			text += fmt.Sprintf("%v %d, ", h.Addr, h.Places)
		}
		return text
	}
	check := func(want string) {
		t.Helper()
		if diff := cmp.Diff(want, text(9)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	check("")
	ofA := acquire(a, 2)
	background := new(share.Place)
	if !l.AcquireBackground(background) {
		t.Fatal("background work gets no place")
	}
	acquire(b, 5)
	acquire(c, 2)
	check("10.0.0.2 5, 10.0.0.1 2, fd00::3 2, ")
	if got := text(1); got != "10.0.0.2 5, " {
		t.Errorf("the first one is %s", got)
	}
	l.Release(ofA[0])
	check("10.0.0.2 5, fd00::3 2, 10.0.0.1 1, ")
	l.Release(ofA[1])
	check("10.0.0.2 5, fd00::3 2, ")
	l.Release(background)
	acquire(c, limit-7)
	check("fd00::3 11, 10.0.0.2 5, ")
	acquire(a, 1) // the first of the holders loses a place
	check("fd00::3 10, 10.0.0.2 5, 10.0.0.1 1, ")
}
