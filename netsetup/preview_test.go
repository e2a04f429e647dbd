// These tests use previewElsewhere, which is not exported: Preview calls it on other systems.

package netsetup

import (
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
