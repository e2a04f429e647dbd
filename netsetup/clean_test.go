// These tests use clean, closeOwnerTable and loopback, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestClean: all of an agent goes, and of a NodeLocal DNSCache for other addresses; what
// is others' stays.
func TestClean(t *testing.T) {
	const foreign = "192.0.2.9/32"
	for _, tt := range []struct {
		name   string
		change func(c *Config)
		want   []string
		left   string
	}{
		{"of a Config", func(*Config) {}, []string{
			"51 rules of iptables (model)", "address 169.254.20.10/32 on nodelocaldns", "address fd00::a/128 on nodelocaldns", "interface nodelocaldns",
		}, ""},
		{"whatever is there", func(c *Config) { *c = Config{} }, []string{
			"51 rules of iptables (model)", "address 169.254.20.10/32 on nodelocaldns", "address fd00::a/128 on nodelocaldns", "interface nodelocaldns",
		}, ""},
		{"one address of two", func(c *Config) { c.Addresses = c.Addresses[:1] }, []string{
			"51 rules of iptables (model)", "address 169.254.20.10/32 on nodelocaldns",
		}, "addr fd00::a/128 on nodelocaldns\nlink nodelocaldns kind dummy up true\n"},
		{"another link", func(c *Config) { c.InterfaceName = "other0" }, []string{"51 rules of iptables (model)"},
			"addr 169.254.20.10/32 on nodelocaldns\naddr fd00::a/128 on nodelocaldns\nlink nodelocaldns kind dummy up true\n"},
	} {
		f := newFakeNode()
		if err := f.AddAddr(Addr{loopback, netip.MustParsePrefix(foreign)}); err != nil {
			t.Fatal(err)
		}
		if err := f.runIptables("iptables -t filter -A INPUT -j DROP"); err != nil {
			t.Fatal(err)
		}
		before := f.dump()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		s.closeOwnerTable() // killed
		old := "iptables -t raw -A OUTPUT -d 169.254.20.99/32 -m comment " + nodeLocalComment + `skip conntrack" -j NOTRACK`
		if err := f.runIptables(old); err != nil {
			t.Fatal(err)
		}
		c := dualStack()
		tt.change(&c)
		removed, err := clean(t.Context(), c, f)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, removed); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		got := f.dump()
		for line := range strings.Lines(tt.left) {
			if !strings.Contains(got, line) {
				t.Errorf("%s: lacks %q", tt.name, line)
			}
			got = strings.Replace(got, line, "", 1)
		}
		if diff := cmp.Diff(before, got); diff != "" {
			t.Errorf("%s (-before +after):\n%s", tt.name, diff)
		}
		again, err := clean(t.Context(), c, f)
		if err != nil || again != nil {
			t.Errorf("%s: the second time it removed %q, %v", tt.name, again, err)
		}
	}
}

// TestCleanGoesOn: what can't be removed does not keep the rest.
func TestCleanGoesOn(t *testing.T) {
	f := newFakeNode()
	s := newSetup(t, dualStack(), f)
	apply(t, s)
	broken := errors.New("broken")
	f.fail = func(call string) error {
		if strings.HasPrefix(call, "ip6tables ") {
			return broken
		}
		return nil
	}
	removed, err := clean(t.Context(), dualStack(), f)
	if !errors.Is(err, broken) || len(removed) != 4 {
		t.Errorf("removed %q, %v", removed, err)
	}
	if got := f.dump(); strings.Contains(got, "iptables raw -N") || !strings.Contains(got, "ip6tables raw -N") || strings.Contains(got, "nodelocaldns") {
		t.Errorf("left:\n%s", got)
	}
	c := dualStack()
	c.InterfaceName = "a/b"
	if _, err := clean(t.Context(), c, f); err == nil || !strings.Contains(err.Error(), "-interfacename") {
		t.Errorf("a bad name: %v", err)
	}
}
