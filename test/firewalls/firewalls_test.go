package firewalls

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestMain runs a load client if the first argument says so.
func TestMain(m *testing.M) { os.Exit(load.Main(m.Run)) }

// tableFile is the page that the tables are written to.
var tableFile = flag.String("table", "", "`file` to write the tables to")

// cell is a firewall and a back end, with the programs of two releases.
type cell struct {
	row         string
	host, image Release
	Firewall
	BackEnd
}

func (c cell) name() string { return c.row + "/" + c.BackEnd.Name }

// shortCells are the cells of the short form.
var shortCells = []string{
	"nftables.service, Debian's workstation.nft/auto, no kube-proxy",
	"policy drop in a table of inet/auto, kube-proxy iptables",
	"a rule for nft in ip raw PREROUTING/iptables-nft",
	"rules that iptables can't read in ip filter/auto, no kube-proxy",
}

// TestMatrix puts the agent with each back end beside each firewall.
func TestMatrix(t *testing.T) {
	var cells []cell
	r := release("12")
	for _, f := range Firewalls() {
		for _, e := range BackEnds() {
			c := cell{f.Name, r, r, f, e}
			if soak.Enabled() || slices.Contains(shortCells, c.name()) {
				cells = append(cells, c)
			}
		}
	}
	runCells(t, "back ends, with the programs of Debian 12", cells)
}

// The rows and columns of TestVersions.
var (
	versionFirewalls = []string{"firewalld, public zone", "rules that iptables can't read in ip filter"}
	versionBackEnds  = []string{"iptables-nft", "nftables"}
)

// TestVersions has other programs on the node than in the agent's image.
func TestVersions(t *testing.T) {
	if !soak.Enabled() {
		t.Skip("in the short form only the event list of TestMatrix has programs of other releases")
	}
	var cells []cell
	for _, host := range Releases() {
		for _, image := range Releases() {
			for _, f := range Firewalls() {
				for _, e := range BackEnds() {
					row := fmt.Sprintf("node %s, image %s: %s", host.Number, image.Number, f.Name)
					if slices.Contains(versionFirewalls, f.Name) && slices.Contains(versionBackEnds, e.Name) {
						cells = append(cells, cell{row, host, image, f, e})
					}
				}
			}
		}
	}
	runCells(t, "programs of other releases on the node than in the agent's image", cells)
}

// runCells runs the cells, and writes a table of them.
func runCells(t *testing.T, title string, cells []cell) {
	agent := agentPath(t)
	var table Table
	t.Cleanup(func() {
		if *tableFile == "" {
			return
		}
		if err := table.Write(*tableFile, title); err != nil {
			t.Error(err)
		}
	})
	for _, c := range cells {
		table.Place(c.row, c.BackEnd.Name)
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, agent, c)
			outcomes := b.Run(t.Context())
			table.Add(c.row, c.BackEnd.Name, outcomes)
			var said strings.Builder
			for _, o := range outcomes {
				fmt.Fprintf(&said, "\n%s", o)
				if o.Failed() {
					t.Errorf("%s", o)
				}
			}
			t.Logf("Debian %s, the agent's programs of %s:%s", c.host.Number, c.image.Number, &said)
		})
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

// newBed returns the bed of a cell, which is removed after the test.
func newBed(t *testing.T, agent string, c cell) *Bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "fw-") // a path that is short enough for a socket's name
	check.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := New(t.Context(), dir, agent, c.host, c.image, c.Firewall, c.BackEnd)
	if b != nil {
		t.Cleanup(b.Close)
	}
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	check.NoError(t, err)
	return b
}

// plainCell is a node without a firewall.
func plainCell(e BackEnd) cell {
	r := release("12")
	return cell{"none", r, r, Firewalls()[0], e}
}
