// These tests use clean, closeOwnerTable and loopback, which are not exported.

package netsetup

// Inside the package: the tests use a fake Node, whose interface has unexported methods.

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/rig/check"
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
		check.NoError(t, f.AddAddr(Addr{Interface: loopback, Prefix: netip.MustParsePrefix(foreign)}))
		check.NoError(t, f.runIptables("iptables -t filter -A INPUT -j DROP"))
		before := f.dump()
		s := newSetup(t, dualStack(), f)
		apply(t, s)
		s.closeOwnerTable() // killed
		old := "iptables -t raw -A OUTPUT -d 169.254.20.99/32 -m comment " + nodeLocalComment + `skip conntrack" -j NOTRACK`
		check.NoError(t, f.runIptables(old))
		c := dualStack()
		tt.change(&c)
		result, err := clean(t.Context(), c, f)
		check.NoError(t, err)
		check.Equal(t, tt.want, describeAll(result.Removed), "%s", tt.name)
		got := f.dump()
		for line := range strings.Lines(tt.left) {
			if !strings.Contains(got, line) {
				t.Errorf("%s: lacks %q", tt.name, line)
			}
			got = strings.Replace(got, line, "", 1)
		}
		check.Equal(t, before, got, "%s", tt.name)
		again, err := clean(t.Context(), c, f)
		if err != nil || again.Removed != nil {
			t.Errorf("%s: the second time it removed %q, %v", tt.name, again.Removed, err)
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
	result, err := clean(t.Context(), dualStack(), f)
	if !errors.Is(err, broken) || len(result.Removed) != 4 {
		t.Errorf("removed %q, %v", result.Removed, err)
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

// describeAll returns the texts of objects.
func describeAll(objects []CleanedObject) (texts []string) {
	for _, o := range objects {
		texts = append(texts, o.String())
	}
	return texts
}

// TestCleanFindsAddresses: without addresses, clean removes from lo what an agent has added there,
// and reports what may be another program's.
func TestCleanFindsAddresses(t *testing.T) {
	lo := func(text string) Addr { return Addr{Interface: loopback, Prefix: netip.MustParsePrefix(text)} }
	for _, tt := range []struct {
		name          string
		before        func(f *fakeNode, c *Config) error
		removed, left []string
	}{
		{"added to lo", func(f *fakeNode, _ *Config) error { f.noDummy = true; return nil }, []string{
			"50 rules of iptables (model)", "address 169.254.20.10/32 on lo", "address fd00::a/128 on lo",
		}, nil},
		{"on lo before", func(f *fakeNode, c *Config) error {
			c.SetupInterface = false
			return errors.Join(f.AddAddr(lo("169.254.20.10/32")), f.AddAddr(lo("fd00::a/128")))
		}, []string{"50 rules of iptables (model)"}, []string{"address 169.254.20.10/32 on lo", "address fd00::a/128 on lo"}},
		{"one of them on lo before", func(f *fakeNode, _ *Config) error {
			f.noDummy = true
			return f.AddAddr(lo("169.254.20.10/32"))
		}, []string{"50 rules of iptables (model)"}, []string{"address 169.254.20.10/32 on lo", "address fd00::a/128 on lo"}},
		{"another interface", func(_ *fakeNode, c *Config) error { c.InterfaceName = "dns0"; return nil },
			[]string{"50 rules of iptables (model)"}, []string{"address 169.254.20.10/32 on dns0", "address fd00::a/128 on dns0"}},
		{"another program's interface", func(f *fakeNode, c *Config) error {
			c.SetupInterface = false
			f.putInterface(Interface{Name: "eth0", Kind: "veth"})
			return f.AddAddr(Addr{Interface: "eth0", Prefix: netip.MustParsePrefix("169.254.20.10/32")})
		}, []string{"50 rules of iptables (model)"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, c := newFakeNode(), dualStack()
			check.NoError(t, tt.before(f, &c))
			check.NoError(t, f.AddAddr(lo("192.0.2.9/32")))
			s := newSetup(t, c, f)
			apply(t, s)
			s.closeOwnerTable() // killed
			result, err := clean(t.Context(), Config{}, f)
			check.NoError(t, err)
			check.Equal(t, tt.removed, describeAll(result.Removed), "removed")
			check.Equal(t, tt.left, describeAll(result.Left), "left")
			for _, o := range result.Left {
				if !strings.Contains(o.Reason, "run nodens cleanup --") {
					t.Errorf("%v: the reason %q names no remedy", o, o.Reason)
				}
			}
			if got := f.dump(); !strings.Contains(got, "192.0.2.9/32 on lo") {
				t.Errorf("a foreign address is gone:\n%s", got)
			}
		})
	}
}

// TestKernelCleanFindsAddresses: on a real node whose kernel has no dummy driver, clean without
// addresses finds those that the agent has added to lo, with rules of either backend. It leaves an
// address that was there before, and reports it.
func TestKernelCleanFindsAddresses(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		if _, err := exec.LookPath("nft"); err != nil {
			t.Skip("nft is not installed:", err)
		}
		addForeignObjects(t)
		backends := []Netfilter{NetfilterIptables, NetfilterNftables}
		if isLegacy(t) {
			backends = backends[:1] // the addresses that nft's rules name don't depend on iptables' build
		}
		for _, backend := range backends {
			before := run(t, "ip", "addr")
			result := cleanAfterAgent(t, backend)
			for _, want := range []string{"address 169.254.20.10/32 on lo", "address fd00::a/128 on lo"} {
				if !slices.Contains(describeAll(result.Removed), want) {
					t.Errorf("%s: %q was not removed: %+v", backend, want, result)
				}
			}
			if result.Left != nil {
				t.Errorf("%s: left %+v", backend, result.Left)
			}
			check.Equal(t, before, run(t, "ip", "addr"), "%s", backend)

			run(t, "ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
			result = cleanAfterAgent(t, backend)
			if got := describeAll(result.Left); !slices.Contains(got, "address 169.254.20.10/32 on lo") {
				t.Errorf("%s: another program's address is not reported: %+v", backend, result)
			}
			if again, err := Clean(t.Context(), Config{}); err != nil || len(again.Left) != 1 {
				t.Errorf("%s: the second time: %+v, %v", backend, again, err)
			}
			run(t, "ip", "addr", "del", "169.254.20.10/32", "dev", "lo")
			run(t, "ip", "addr", "del", "fd00::a/128", "dev", "lo")
		}
	})
}

// cleanAfterAgent sets up a node without the dummy driver, as an agent that is then killed, and
// cleans it without addresses.
func cleanAfterAgent(t *testing.T, backend Netfilter) CleanResult {
	t.Helper()
	c := dualStack()
	c.Netfilter = backend
	s := newSetup(t, c, noDummy{&kernelNode{}})
	apply(t, s)
	s.closeOwnerTable()
	result, err := Clean(t.Context(), Config{})
	check.NoError(t, err)
	return result
}
