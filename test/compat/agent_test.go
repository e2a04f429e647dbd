package compat

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/scrape"
)

// TestMain is a load client's process if the first argument says so.
func TestMain(m *testing.M) { os.Exit(load.Main(m.Run)) }

// direction is which agent follows which.
type direction struct {
	name         string
	first, later string // binaries
}

// directions are both; the binaries are built if need be.
func directions(t *testing.T) []direction {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "base"))
	check.NoError(t, err)
	earlier, now := peer.Earlier(t, strings.TrimSpace(string(text))), peer.Build(t, "nodens")
	return []direction{{"upgrade", earlier, now}, {"rollback", now, earlier}}
}

// both runs test in both directions.
func both(t *testing.T, test func(*testing.T, direction)) {
	t.Helper()
	for _, d := range directions(t) {
		t.Run(d.name, func(t *testing.T) { test(t, d) })
	}
}

// site is what agents that follow each other share: the Corefile with its ports, and the
// folder they leave things in.
type site struct {
	dns, web uint16
	corefile string
	dir      string
}

// newSite makes a site whose server block has these directives, each a line.
func newSite(t *testing.T, directives ...string) *site {
	t.Helper()
	p := peer.Ports(t, 2)
	s := &site{dns: p[0], web: p[1], dir: filepath.Join(t.TempDir(), "state"), corefile: filepath.Join(t.TempDir(), "Corefile")}
	check.NoError(t, os.Mkdir(s.dir, 0o700))
	text := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n ready 127.0.0.1:%d\n prometheus 127.0.0.1:%[2]d\n %s\n}\n",
		s.dns, s.web, strings.ReplaceAll(strings.Join(directives, "\n "), "DIR", s.dir))
	check.NoError(t, os.WriteFile(s.corefile, []byte(text), 0o600))
	return s
}

func (s *site) server() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.dns)
}

// run starts the agent in that binary, and waits until its log has text.
func (s *site) run(t *testing.T, binary, text string, args ...string) *peer.Process {
	t.Helper()
	args = append(append(peer.ServerArgs("nodens", s.corefile), "-node-name=n1", "-node-zone=z1"), args...)
	p := peer.Start(t, peer.Command{Name: "nodens", Path: binary, Args: args})
	awaitLog(t, p, text)
	return p
}

func awaitLog(t *testing.T, p *peer.Process, text string) {
	t.Helper()
	p.Must(t, "the log to say "+text, func(context.Context) error {
		if tail := p.Tail(); !strings.Contains(tail, text) {
			return fmt.Errorf("it says:\n%s", tail)
		}
		return nil
	})
}

// end ends p, which saves what it has.
func end(t *testing.T, p *peer.Process) {
	t.Helper()
	check.NoError(t, p.Signal(syscall.SIGTERM))
	if err := p.Err(); err != nil {
		t.Fatalf("the agent ended with %v and wrote:\n%s", err, p.Tail())
	}
}

// metrics returns those of the agent that serves.
func (s *site) metrics(ctx context.Context) (scrape.Metrics, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // the next one may be another agent's
	text, err := scrape.Text(ctx, &client, fmt.Sprintf("http://127.0.0.1:%d/metrics", s.web))
	if err != nil {
		return nil, err
	}
	return scrape.Parse(text)
}

// ask gives the server's answer to a question as sorted text, its TTLs aside.
func ask(t *testing.T, server netip.AddrPort, name string, qtype uint16) string {
	t.Helper()
	q := new(dns.Msg).SetQuestion(name, qtype)
	q.SetEdns0(1232, false)
	client := dns.Client{Timeout: time.Minute} // it ends a test that would hang
	m, _, err := client.ExchangeContext(t.Context(), q, server.String())
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	lines := []string{dns.RcodeToString[m.Rcode]}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				rr.Header().Ttl = 0
				lines = append(lines, rr.String())
			}
		}
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

// answered is the address in the upstream's answers.
var answered = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// startUpstream starts an upstream that answers every query with the same address.
func startUpstream(t *testing.T) *fakedns.Server {
	t.Helper()
	return fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 3600, answered.String()) }))
}
