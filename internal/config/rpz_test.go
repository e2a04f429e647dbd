package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TestRPZ: what the directive says, and the defaults.
func TestRPZ(t *testing.T) {
	const zone wire.Name = "\x03rpz\x07example\x00"
	for text, want := range map[string]RPZ{
		"rpz rpz.example {\nfile db.rpz\n}":                                                    {Zone: zone, File: "db.rpz", Reload: time.Minute},
		"rpz RPZ.example {\nfile db.rpz\nreload 5s\naudit\nnamespaces web ci\nnamespaces a\n}": {Zone: zone, File: "db.rpz", Reload: 5 * time.Second, Audit: true, Namespaces: []string{"web", "ci", "a"}},
		"rpz rpz.example. {\ntransfer from 192.0.2.1 [::1]:5353\n}":                            {Zone: zone, Reload: time.Minute, From: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[::1]:5353")}},
	} {
		if diff := cmp.Diff(&want, one(t, "rpz", text), equal, samePrefix()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	wantFaults(t, map[string]string{
		"rpz":                 `rpz: an argument is missing after "rpz"; write: rpz ZONE {`,
		"rpz a.test b.test":   `"b.test" is one argument too many`,
		"rpz a.test":          "nothing says where the rules come from; write in its block: file PATH, or transfer from ADDRESS…",
		"rpz . {\nfile db\n}": "the root can't be a response policy zone",
		"rpz a.test {\nfile db\ntransfer from ::1\n}":                                          "from a file or from primary servers, not from both",
		"rpz a.test {\nfile db\nnamespace a\n}":                                                `unknown option "namespace" (did you mean "namespaces"?)`,
		"rpz a.test {\nfile db\nnamespaces *\n}":                                               `"*" is not the name of a namespace`,
		"rpz a.test {\ntransfer to ::1\n}":                                                     `"to" is not from`,
		"rpz a.test {\nfile db\n}\nrpz A.test {\nfile db\n}":                                   "the response policy zone a.test. is in the block twice",
		"rpz a.test {\nfile db\nnamespaces" + strings.Repeat(" a", maxRPZNamespaces+1) + "\n}": "more than 1000 namespaces",
	})
}

// TestTunnel: what the directive says, and the defaults.
func TestTunnel(t *testing.T) {
	for text, want := range map[string]Tunnel{
		"tunnel": {Names: 500, Bytes: 16384, Window: 10 * time.Minute},
		"tunnel {\nnames 100\nbytes 2000\nwindow 1m\nlimit 5\nexcept a.test b.test\n}": {
			Names: 100, Bytes: 2000, Window: time.Minute, Limit: 5, Except: []wire.Name{"\x01a\x04test\x00", "\x01b\x04test\x00"},
		},
	} {
		if diff := cmp.Diff(&want, one(t, "tunnel", text), equal, samePrefix()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	wantFaults(t, map[string]string{
		"tunnel on":                    `"on" is one argument too many`,
		"tunnel {\nnames 10\n}":        "10 is out of range; allowed: 50 to 5000",
		"tunnel {\nlimit 0\n}":         "0 is out of range; allowed: 1 to 10000",
		"tunnel {\nwindow 1s\n}":       "1s is out of range",
		"tunnel\ntunnel {\nlimit 5\n}": "is in the block twice",
		"tunnel {\nbytes 1KiB\n}":      `"1KiB" is not a whole number`,
	})
}
