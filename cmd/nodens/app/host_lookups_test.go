package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/internal/resolvconf"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// lookupsTest has a hostLookups whose effects it notes.
type lookupsTest struct {
	*hostLookups
	t       *testing.T
	path    string // of the node's resolv.conf
	effects []string
	serves  bool // the agent answers
}

func newLookupsTest(t *testing.T, mode options.HostResolver, text string) *lookupsTest {
	t.Helper()
	root := t.TempDir()
	l := &lookupsTest{t: t, path: filepath.Join(root, "etc", "resolv.conf"), serves: true}
	check.NoError(t, os.Mkdir(filepath.Dir(l.path), 0o755))
	agenttest.WriteFile(t, l.path, text)
	log := slog.New(slog.DiscardHandler)
	l.hostLookups = &hostLookups{
		log: log, mode: mode, outages: outage.Log{Messages: hostOutage, Logger: log},
		host: resolvconf.Host{Root: root, Addrs: []netip.Addr{netip.MustParseAddr("169.254.20.11")}},
		divert: func(_ context.Context, to []netip.AddrPort) error {
			l.effects = append(l.effects, fmt.Sprint("divert ", to))
			return nil
		},
		reload:  func(context.Context) { l.effects = append(l.effects, "reload") },
		answers: func(context.Context) bool { return l.serves },
	}
	return l
}

// want checks the effects since the last call, and the servers that the node's file names.
func (l *lookupsTest) want(file string, effects ...string) {
	l.t.Helper()
	l.check(l.t.Context())
	if diff := cmp.Diff(effects, l.effects); diff != "" {
		l.t.Errorf("effects (-want +got):\n%s", diff)
	}
	l.effects = nil
	l.wantFile(file)
}

func (l *lookupsTest) wantFile(file string) {
	l.t.Helper()
	text, err := os.ReadFile(l.path)
	check.NoError(l.t, err)
	got := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "nameserver", "")), " ")
	if i := strings.LastIndex(got, "both lines"); i >= 0 {
		got = "agent " + strings.TrimSpace(strings.TrimPrefix(got[i+len("both lines"):], " 169.254.20.11"))
	}
	check.Equal(l.t, file, got, "servers in the file")
}

// TestHostLookups: a change of the servers has its effects once; the file is written when the agent answers, and again after
// another program has written it.
func TestHostLookups(t *testing.T) {
	l := newLookupsTest(t, options.HostResolverAuto, "nameserver 192.0.2.1\n")
	l.serves = false
	l.want("192.0.2.1", "divert [192.0.2.1:53]", "reload")
	if p := l.problems(); len(p) == 0 || l.retry.IsZero() {
		t.Errorf("an agent that does not answer: problems %q, retry %v", p, l.retry)
	}
	l.serves = true
	l.want("192.0.2.1") // not before retry
	l.retry = time.Time{}
	l.want("agent 192.0.2.1")
	l.want("agent 192.0.2.1")
	if p := l.problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
	agenttest.WriteFile(t, l.path, "nameserver 192.0.2.2\nnameserver 192.0.2.3\n")
	l.want("agent 192.0.2.2 192.0.2.3", "divert [192.0.2.2:53 192.0.2.3:53]", "reload")
	agenttest.WriteFile(t, l.path, "search lan\n") // the last servers stay
	l.want("search lan")
	check.NoError(t, os.Remove(l.path))
	l.check(t.Context())
	if len(l.effects) > 0 || len(l.problems()) == 0 {
		t.Errorf("without a file: effects %q, problems %q", l.effects, l.problems())
	}
	agenttest.WriteFile(t, l.path, "nameserver 192.0.2.3\n")
	l.want("agent 192.0.2.3", "divert [192.0.2.3:53]", "reload")
	l.stays = true
	l.end()
	l.wantFile("agent 192.0.2.3")
	l.stays = false
	l.end()
	l.wantFile("192.0.2.3")
}

// TestHostLookupsModes: off follows the servers and leaves the file alone, remove restores it.
func TestHostLookupsModes(t *testing.T) {
	l := newLookupsTest(t, options.HostResolverOff, "nameserver 192.0.2.1\n")
	l.want("192.0.2.1", "divert [192.0.2.1:53]", "reload")
	_, err := l.host.Install(t.Context()) // by the command
	check.NoError(t, err)
	l.want("agent 192.0.2.1")
	l.end()
	l.wantFile("agent 192.0.2.1")
	if p := l.problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
	l.mode = options.HostResolverRemove
	if p := l.problems(); len(p) == 0 {
		t.Error("no problem while the file is not restored")
	}
	l.want("192.0.2.1")
	l.want("192.0.2.1")
	if p := l.problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}

	var none *hostLookups
	none.applyInitial(t.Context())
	none.run(t.Context())
	none.end()
	if none.problems() != nil || none.report() != nil {
		t.Error("an agent without an address has look-ups")
	}
}

// TestHostBlockFollows: the upstreams of a running agent follow the node's file, with no reload directive.
func TestHostBlockFollows(t *testing.T) {
	p := peer.Ports(t, 1)
	root := t.TempDir()
	check.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	path := filepath.Join(root, "etc", "resolv.conf")
	agenttest.WriteFile(t, path, "nameserver 192.0.2.1\n")
	var a *agent
	r := startChanged(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . 192.0.2.9\n}\n", p[0]), func(started *agent) { a = started }, func(o *options.Agent) {
		o.DNSPort, o.HostRoot, o.HostListen = p[0], root, []netip.Addr{netip.MustParseAddr("127.0.0.11")}
	})
	upstream := func() string {
		blocks := a.current.Load().cfg.Blocks
		return blocks[len(blocks)-1].Forward.To[0].String()
	}
	if got := upstream(); !strings.HasPrefix(got, "192.0.2.1") {
		t.Errorf("the first upstream is %s", got)
	}
	agenttest.WriteFile(t, path, "nameserver 192.0.2.2\n")
	r.Await("the new server to be the upstream", func() bool { return strings.HasPrefix(upstream(), "192.0.2.2") })
	agenttest.WriteFile(t, path, "search lan\n") // the configuration in force stays
	r.Stop()
}
