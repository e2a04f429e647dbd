package upstreams

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// shortServers are the rows of the short form.
var shortServers = []string{"BIND", "unbound", "dnsdist", "CoreDNS"}

// shortSituations are those of the short form.
var shortSituations = []string{"burst first", "slow names", "restart", "graceful stop"}

// shortAttempts is how often the short form starts anew when queries fail. Other work on the machine can
// take from the servers the processor time that they need to answer before a deadline; a fault of the agent
// is there each time. The long form, which has a machine of its own, tries once.
const shortAttempts = 3

// TestSituations puts an agent and a CoreDNS before real servers through all situations. No query of the
// agent may fail; CoreDNS's are logged beside it.
func TestSituations(t *testing.T) {
	attempts := shortAttempts
	if soak.Enabled() {
		attempts = 1
	}
	for _, s := range Servers() {
		if !soak.Enabled() && !slices.Contains(shortServers, s.Name) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			report := t.Logf
			for i := range attempts {
				faults := try(t, s)
				if len(faults) == 0 {
					return
				}
				if i == attempts-1 {
					report = t.Errorf
				}
				report("attempt %d of %d:\n%s", i+1, attempts, strings.Join(faults, "\n"))
			}
		})
	}
}

// try puts new forwarders before a server through its situations once and returns what was wrong.
func try(t *testing.T, s Server) (faults []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "up-") // a path that is short enough for a socket's name
	check.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	b, err := Start(t.Context(), s, dir)
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	check.NoError(t, err)
	defer b.Close()
	for _, in := range Situations() {
		if !in.Applies(s) || !soak.Enabled() && !slices.Contains(shortSituations, in.Name) {
			continue
		}
		counts, err := b.Run(t.Context(), in)
		check.NoError(t, err)
		faults = append(faults, judge(t, b, in, counts)...)
	}
	return faults
}

// maxConnections is how many connections nodens may open over HTTPS, QUIC or gRPC in one situation: four at
// once, again after a restart, and three attempts a second while the server is away.
const maxConnections = 20

// judge logs what became of a situation's queries and returns what was wrong.
func judge(t *testing.T, b *Bed, in Situation, counts map[Of]Count) (faults []string) {
	t.Helper()
	for _, over := range b.Transports {
		n, c := counts[Of{Nodens, over}], counts[Of{CoreDNS, over}]
		t.Logf("%s, %s: %d of %d queries failed, %d connections; CoreDNS %d, %d", in.Name, over, len(n.Wrong), n.Asked, n.Connections, len(c.Wrong), c.Connections)
		if in.Zero && len(n.Wrong) > 0 {
			faults = append(faults, fmt.Sprintf("%s, %s: %d of %d queries failed, the first ones: %v", in.Name, over, len(n.Wrong), n.Asked, n.Wrong[:min(5, len(n.Wrong))]))
		}
		if b.Usual && over != TCP && over != TLS && n.Connections > maxConnections {
			faults = append(faults, fmt.Sprintf("%s, %s: %d connections were opened, want %d at most", in.Name, over, n.Connections, maxConnections))
		}
	}
	return faults
}
