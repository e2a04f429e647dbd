// These tests use previewElsewhere and a fake Node, which are not exported. Preview calls the former on other systems.

package netsetup

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestPreviewElsewhere: without a node, the plan is the one for the named backend, and auto is
// an error that names the other values.
func TestPreviewElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*Config)
		want    string // part of the plan
		isError bool
	}{
		{"iptables", func(c *Config) { c.Netfilter = NetfilterIptables }, "rules     iptables\n", false},
		{"nftables", func(c *Config) { c.Netfilter = NetfilterNftables }, "rules     nftables\n", false},
		{"no rules", func(c *Config) { c.Netfilter = NetfilterNone }, "address   169.254.20.10/32", false},
		{"auto", func(c *Config) { c.Netfilter = NetfilterAuto }, "", true},
		{"zero value", func(*Config) {}, "", true},
		{"auto without rules", func(c *Config) { c.SetupIptables = false }, "address   169.254.20.10/32", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dualStack()
			c.Netfilter = ""
			tt.change(&c)
			text, err := previewElsewhere(c)
			if tt.isError {
				if !errors.Is(err, ErrNotLinux) || !strings.Contains(err.Error(), "give iptables or nftables") {
					t.Errorf("%v, want an ErrNotLinux that names the values to give", err)
				}
				return
			}
			if err != nil || !strings.Contains(text.String(), tt.want) {
				t.Errorf("%q, error %v, want %q in it", text, err, tt.want)
			}
		})
	}
}

// TestDescribe: a Setup describes what it keeps in place, with the external interfaces and the servers
// of the cluster DNS that it knows; before, the plan.
func TestDescribe(t *testing.T) {
	for name, noDummy := range map[string]bool{"nodelocaldns (dummy)": false, "lo": true} {
		f := newFakeNode()
		f.noDummy = noDummy
		f.putInterface(Interface{Name: "lo", Kind: "device"})
		f.setDefaults(hardware0)
		s := newSetup(t, dualStack(), f)
		before, err := s.Describe(t.Context())
		if err != nil || before.String() != s.Plan().Describe().String() || !before.DefaultRoutes {
			t.Errorf("before it is set up: %v\n%s", err, before)
		}
		apply(t, s)
		d, err := s.Describe(t.Context())
		if err != nil || d.DefaultRoutes {
			t.Errorf("%v\n%s", err, d)
		}
		for _, want := range []string{"interface " + name + "\n", "address   169.254.20.10/32\n", "external  eth0\n", "rules     iptables (model)\n", "-i eth0 ", "10.1.1.2:5353"} {
			if !strings.Contains(d.String(), want) {
				t.Errorf("%q is not in\n%s", want, d)
			}
		}
	}
	s := newSetup(t, dualStack(), newFakeNode())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Describe(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context has ended: %v", err)
	}
}
