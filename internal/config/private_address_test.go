package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPrivateAddress(t *testing.T) {
	byDefault := DefaultPrivateAddress().Ranges
	for text, want := range map[string]*PrivateAddress{
		"private_address":        {Ranges: byDefault, ClusterIPs: true},
		"private_address count":  {Ranges: byDefault, ClusterIPs: true},
		"private_address nodata": {Action: PrivateNoData, Ranges: byDefault, ClusterIPs: true},
		"private_address off":    {Action: PrivateOff, Ranges: byDefault, ClusterIPs: true},
		"private_address refuse {\nrange 10.96.1.2/12 fd00:10:96::/112\nrange private\nexcept corp.test b.test\nexcept c.test\n}": {
			Action: PrivateRefuse,
			Ranges: slices.Concat([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}, privateRanges["private"]),
			Except: names(t, "corp.test", "b.test", "c.test"),
		},
		"private_address {\nrange cluster_ip\n}":            {ClusterIPs: true},
		"private_address {\nrange 192.0.2.1 2001:db8::1\n}": {Ranges: prefixes("192.0.2.1/32", "2001:db8::1/128")},
	} {
		c, err := parse(t, ". {\n"+text+"\n}")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		equal := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
		if d := cmp.Diff(want, c.Blocks[0].PrivateAddress, equal); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
}

func TestPrivateAddressErrors(t *testing.T) {
	wantFaults(t, map[string]string{
		"private_address deny":                                           `private_address: unknown action "deny"; allowed: count, nodata, off, refuse`,
		"private_address count off":                                      `private_address: "off" is one argument too many after "private_address"`,
		"private_address {\nrange\n}":                                    `private_address: an argument is missing after "range"`,
		"private_address {\nrange 10.0.0.0/33\n}":                        `private_address range: "10.0.0.0/33" is no range; write link_local`,
		"private_address {\nrange ::ffff:10.0.0.0/104\n}":                `is an IPv4 address in IPv6`,
		"private_address {\nranges private\n}":                           `unknown option "ranges" (did you mean "range"?)`,
		"private_address\nprivate_address refuse":                        `private_address`,
		"private_address {\nexcept " + strings.Repeat("a", 64) + ".a\n}": `private_address except`,
	})
}
