package share_test

import (
	"fmt"
	"testing"

	"github.com/nodens-dns/nodens/internal/share"
)

// TestShares: clients that take what they can, in turns, leave one part of n+1.
func TestShares(t *testing.T) {
	tests := []struct {
		slots, clients int
		each, free     int
	}{
		{slots: 1, clients: 1, each: 1, free: 0},
		{slots: 2, clients: 1, each: 1, free: 1},
		{slots: 10, clients: 1, each: 5, free: 5},
		{slots: 2048, clients: 1, each: 1024, free: 1024},
		{slots: 2048, clients: 10, each: 187, free: 178},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.clients, tt.slots), func(t *testing.T) {
			d := share.NewFairShare(tt.slots)
			for more := true; more; {
				more = false
				for c := range share.Client(tt.clients) {
					if d.Check(c+1) == share.Available {
						d.Add(c + 1)
						more = true
					}
				}
			}
			for c := range share.Client(tt.clients) {
				if n := d.InUseBy(c + 1); n > tt.each || n < tt.each-1 {
					t.Errorf("client %d holds %d slots, want %d", c+1, n, tt.each)
				}
			}
			if free := tt.slots - d.InUse(); free < tt.free || free > tt.free+tt.clients {
				t.Errorf("%d slots are free, want %d", free, tt.free)
			}
			if v := d.Check(share.Client(tt.clients + 1)); (v == share.Available) != (tt.free > 0) {
				t.Errorf("a newcomer: %d with %d free slots", v, tt.free)
			}
		})
	}
}

// TestReasons: a client that is refused learns whether others have slots left.
func TestReasons(t *testing.T) {
	d := share.NewFairShare(2)
	d.Add(1)
	if v := d.Check(1); v != share.OverShare {
		t.Errorf("the second slot of the only client: %d, want OverShare", v)
	}
	d.Add(share.NoClient)
	if v := d.Check(2); v != share.Full {
		t.Errorf("without a slot: %d, want Full", v)
	}
	d.Remove(1)
	d.Remove(share.NoClient)
	if n := d.InUse(); n != 0 {
		t.Errorf("%d slots are in use after all were removed", n)
	}
}
