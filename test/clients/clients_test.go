package main

import (
	"errors"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/test/soak"
)

// TestClients: each program gets from the agent what it gets from CoreDNS, or more. The short form asks with the programs
// that test/install.sh knows.
func TestClients(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs port 53 and a mount namespace")
	}
	b, err := startBed(t.Context(), t.TempDir())
	t.Cleanup(b.close)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Clients() {
		if !c.Short && !soak.Enabled() {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c, err := c.prepare(t.Context(), t.TempDir())
			if errors.Is(err, errAbsent) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range Situations() {
				if c.Asks(s) {
					testSituation(t, b, c, s)
				}
			}
		})
	}
}

func testSituation(t *testing.T, b *bed, c Client, s Situation) {
	t.Helper()
	n, err := c.Count(t.Context(), t.TempDir(), b.nodens, s)
	if err != nil {
		t.Fatal(err)
	}
	if n == s.want {
		return
	}
	other, err := c.Count(t.Context(), t.TempDir(), b.other, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d records of %d; %d from CoreDNS", s.Title, n, s.want, other)
	// Where both replies are cut, compression decides about the last record.
	if n < other-1 || n > s.want || other == s.want {
		t.Errorf("%s: %d records, want %d; %d from CoreDNS", s.Title, n, s.want, other)
	}
}
