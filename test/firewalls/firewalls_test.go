package firewalls

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/node/load"
	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMain runs a load client if the first argument says so.
func TestMain(m *testing.M) {
	os.Exit(load.Main(func() int {
		testbed.RaisePriority()
		return m.Run()
	}))
}

// shortCells are the cells of the short form.
var shortCells = []string{"ufw/auto, no kube-proxy", "policy drop in a table of inet/iptables-nft"}

// TestMatrix puts the agent with each back end beside each firewall.
func TestMatrix(t *testing.T) {
	agent := agentPath(t)
	for _, f := range Firewalls() {
		for _, e := range BackEnds() {
			if !soak.Enabled() && !slices.Contains(shortCells, f.Name+"/"+e.Name) {
				continue
			}
			t.Run(f.Name+"/"+e.Name, func(t *testing.T) {
				t.Parallel()
				r := release("12")
				testCell(t, newBed(t, agent, r, r, f, e))
			})
		}
	}
}

// agentPath returns the path of the agent under test.
func agentPath(t *testing.T) string {
	t.Helper()
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	if path := os.Getenv("AGENT"); path != "" {
		return path
	}
	return peer.Build(t, "nodens")
}

func newBed(t *testing.T, agent string, host, image Release, f Firewall, e BackEnd) *Bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "fw-") // a path that is short enough for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := New(t.Context(), dir, agent, host, image, f, e)
	if b != nil && b.Network != nil {
		t.Cleanup(b.Close)
	}
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func testCell(t *testing.T, b *Bed) {
	var said []string
	for _, o := range b.Run(t.Context()) {
		said = append(said, o.String())
		if o.Failed() {
			t.Errorf("%s", o)
		}
	}
	t.Log(fmt.Sprintf("Debian %s, agent's tools of %s:\n", b.host.Number, b.image.Number) + strings.Join(said, "\n"))
}
