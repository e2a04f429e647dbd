package transfer_test

import (
	"testing"
	"time"

	"github.com/nodens-dns/nodens/server/transfer"
)

// TestPace: a client that takes less than 32 KiB a second over ten seconds is too slow, however fast it was before.
func TestPace(t *testing.T) {
	const message = 16 << 10
	for name, tt := range map[string]struct {
		interval time.Duration // between two messages
		fast     int           // messages that come at once, before
		want     time.Duration // when the client is found to be too slow; 0: never
	}{
		"twice as fast":        {250 * time.Millisecond, 0, 0},
		"as slow as allowed":   {500 * time.Millisecond, 0, 0},
		"too slow":             {time.Second, 0, 10 * time.Second},
		"slow after the start": {time.Second, 1000, 20 * time.Second},
		"a message in a while": {4 * time.Second, 0, 12 * time.Second},
		"hardly any":           {time.Minute, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Hour
			p, now, got := transfer.NewPace(start), start, time.Duration(0)
			for range tt.fast {
				p.Sustains(now, message)
			}
			for got == 0 && now < start+10*time.Minute {
				now += tt.interval
				if !p.Sustains(now, message) {
					got = now - start
				}
			}
			if got != tt.want {
				t.Errorf("too slow after %v, want %v", got, tt.want)
			}
		})
	}
}
