// Inside the package: the test has no upstream, whose own work would be counted.

package resolver

import (
	"log/slog"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/otlp"
)

// TestRecordingAllocs: a query that waits and is not selected costs no allocation.
func TestRecordingAllocs(t *testing.T) {
	e := otlp.New(otlp.Options{Endpoint: "http://collector.test:4318", Logger: slog.New(slog.DiscardHandler)})
	z := &Zone{Name: wire.Root, Tracing: &Tracing{To: e}, Stats: NewStats()}
	packet, err := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	var r Request
	r.Query.Packet = packet
	if r.Parse() != wire.Serve {
		t.Fatal("not a query")
	}
	r.Begin(NewRoutes([]*Zone{z}, NewStats()), 0, make([]byte, 0, replyBuffer))
	r.zone = z
	if n := testing.AllocsPerRun(1000, func() {
		r.recordWait(true)
		r.recordEnd(false, nil)
		r.recordForward()
		r.recordEnd(false, nil)
		r.ownLookups.asked = true
		r.exportSpans(true)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if r.ownLookups.recording != nil {
		t.Error("the recording is kept")
	}
}
