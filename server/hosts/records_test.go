// Inside the package: the fuzzer reads the tables that buildRecords makes.

package hosts

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// FuzzLines reads arbitrary files. Each name that is counted must be in the tables.
func FuzzLines(f *testing.F) {
	f.Add([]byte("10.0.0.1 web.example # a comment\n::ffff:10.0.0.5 mapped.example\n10.0.0.2 *.wild.example\n"))
	f.Add([]byte("10.0.0.1 \\001\\. a\\"))
	f.Add([]byte("::1 localhost\r\n127.0.0.1 .\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tab := &Table{log: slog.New(slog.DiscardHandler), cfg: config.Hosts{Zones: []wire.Name{"\x07example\x00", wire.Root}}}
		v := tab.buildRecords(text)
		tab.records.Store(v)
		entries := 0
		for n, h := range v.names {
			if len(h.v4)+len(h.v6) == 0 {
				t.Errorf("%s has no address", n)
			}
			entries += len(h.v4) + len(h.v6)
			back, err := wire.ParseName(n.String())
			if err != nil || back != n {
				t.Errorf("%q came back as %q, %v", n, back, err)
			}
			if v.lookup([]byte(n)) != h {
				t.Errorf("%s is not found", n)
			}
		}
		for at, names := range v.reverse {
			entries += len(names)
			if !strings.HasSuffix(string(at), "\x04arpa\x00") {
				t.Errorf("a reverse name %s", at)
			}
		}
		if entries != v.entries {
			t.Errorf("%d entries held, %d counted", entries, v.entries)
		}
	})
}

// TestInvalidNames: the names of a line around invalid ones stay.
func TestInvalidNames(t *testing.T) {
	tab := &Table{log: slog.New(slog.DiscardHandler), cfg: config.Hosts{Zones: []wire.Name{wire.Root}}}
	long := strings.Repeat("x", 64)
	v := tab.buildRecords([]byte("192.0.2.1 bad..test one.test " + long + " two.test\n192.0.2.2 three.test bad..test\nx four.test\n"))
	for name, want := range map[string]bool{"one.test.": true, "two.test.": true, "three.test.": true, "four.test.": false} {
		n, err := wire.ParseName(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.names[n] != nil; got != want {
			t.Errorf("%s is there: %t", name, got)
		}
	}
}
