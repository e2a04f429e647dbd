package upstreams

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/test/soak"
)

// shortServers are the rows of the short form.
var shortServers = []string{"BIND", "BIND, server cookie required", "unbound", "dnsdist", "CoreDNS"}

// shortSituations are those of the short form.
var shortSituations = []string{"burst first", "slow names", "restart", "graceful stop"}

// TestSituations puts an agent and a CoreDNS before real servers through all situations. No query of the
// agent may fail; CoreDNS's are logged beside it. The servers take turns: all at once, they need more processor time before
// their deadlines than a small machine has.
func TestSituations(t *testing.T) {
	for _, s := range Servers() {
		if !soak.Enabled() && !slices.Contains(shortServers, s.Name) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "up-") // a path that is short enough for a socket's name
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			b, err := Start(t.Context(), s, dir)
			if errors.Is(err, ErrAbsent) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			for _, in := range Situations() {
				if in.Applies(s) && (soak.Enabled() || slices.Contains(shortSituations, in.Name)) {
					testSituation(t, b, in)
				}
			}
		})
	}
}

// maxConnections is how many connections nodens may open over HTTPS, QUIC or gRPC in one situation: four at
// once, again after a restart, and three attempts a second while the server is away.
const maxConnections = 20

func testSituation(t *testing.T, b *Bed, in Situation) {
	counts, err := b.Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	for _, over := range b.Transports {
		n, c := counts[Of{Nodens, over}], counts[Of{CoreDNS, over}]
		t.Logf("%s, %s: %d of %d queries failed, %d connections; CoreDNS %d, %d", in.Name, over, len(n.Wrong), n.Asked, n.Connections, len(c.Wrong), c.Connections)
		if in.Zero && len(n.Wrong) > 0 {
			t.Errorf("%s, %s: %d of %d queries failed, the first ones: %v", in.Name, over, len(n.Wrong), n.Asked, n.Wrong[:min(5, len(n.Wrong))])
		}
		if b.Usual && over != TCP && over != TLS && n.Connections > maxConnections {
			t.Errorf("%s, %s: %d connections were opened, want %d at most", in.Name, over, n.Connections, maxConnections)
		}
	}
}
