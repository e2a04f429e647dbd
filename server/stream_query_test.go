// This test uses streamQuery, which is not exported.

package server

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

// deadlines is a stream whose deadlines have no effect.
type deadlines struct{}

func (deadlines) SetReadDeadline(time.Time) error  { return nil }
func (deadlines) SetWriteDeadline(time.Time) error { return nil }

// TestStreamQueryLostPlace: a query whose stream has lost its place at the last moment doesn't refuse the next one that
// reuses its buffers.
func TestStreamQueryLostPlace(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), Limits{})
	for range 20 {
		places := share.NewLimiter(1)
		e := newStreamQuery(s, deadlines{})
		var other share.Place
		if !places.Acquire(&e.inFlight, netip.MustParseAddr("127.0.0.1")) || !places.Acquire(&other, netip.MustParseAddr("127.0.0.2")) {
			t.Fatal("no place")
		}
		e.reusable = true
		places.Release(&e.inFlight)
		e.release()
		next := newStreamQuery(s, deadlines{})
		if !next.beginReply() {
			t.Fatal("the next query is refused")
		}
		next.reusable = true
		next.release()
	}
}
