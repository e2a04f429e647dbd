package main

import (
	"errors"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/test/soak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == goLookups {
		lookUp(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// TestServers: whose answer a program gets if the first of two name servers fails. The times are in the table of
// docs/reference/clients.md.
func TestServers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs port 53 and a mount namespace")
	}
	const first, second, none, either = "first", "second", "", "second or none, by version"
	// By the faults in their order.
	want := map[string][]string{
		"glibc":                         {first, second, second, second, second, none},
		"musl":                          {first, second, second, second, second, none},
		"Go's resolver":                 {first, second, second, second, second, none},
		"c-ares, by Node's dns.resolve": {first, second, second, either, either, none},
		"c-ares, by Python's pycares":   {first, second, second, second, second, none},
	}
	for _, c := range Resolvers() {
		if !c.Short && !soak.Enabled() {
			continue
		}
		c, err := c.prepareResolver(t.Context(), t.TempDir())
		if errors.Is(err, errAbsent) {
			t.Logf("%s: %v", c.Name, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range Faults() {
			t.Run(c.Name+", "+f.Title, func(t *testing.T) {
				t.Parallel()
				list, err := c.Lookups(t.Context(), t.TempDir(), f)
				if err != nil {
					t.Fatal(err)
				}
				for n, l := range list {
					from := want[c.Name][i]
					if from != l.From && (from != either || l.From == first) {
						t.Errorf("look-up %d: the answer is from %q, want %q", n+1, l.From, from)
					}
					// Only musl asks both at once.
					if answers := from == first || from == none; answers && (l.Asked > 0) != (c.Name == "musl") {
						t.Errorf("look-up %d: %d queries to the second server", n+1, l.Asked)
					}
				}
			})
		}
	}
}
