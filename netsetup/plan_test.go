package netsetup_test

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/test/rig/check"
)

func parseAddrs(words ...string) []netip.Addr {
	var as []netip.Addr
	for _, w := range words {
		as = append(as, netip.MustParseAddr(w))
	}
	return as
}

// validConfig returns a Config with addresses of both families that sets up everything.
func validConfig() netsetup.Config {
	return netsetup.Config{
		Addresses: parseAddrs("169.254.20.10", "fd00::a"), DNSPort: 53, HealthPort: 8080,
		SetupInterface: true, SetupIptables: true,
	}
}

func TestPlan(t *testing.T) {
	tests := []struct {
		name   string
		config netsetup.Config
		want   string
	}{{
		name: "zero sets up nothing",
		want: "nothing to set up",
	}, {
		name:   "nothing to set up is not checked",
		config: netsetup.Config{Addresses: parseAddrs("127.0.0.1", "127.0.0.1"), InterfaceName: "a/b"},
		want:   "nothing to set up",
	}, {
		name: "interface only, both families",
		config: netsetup.Config{
			Addresses:      parseAddrs("169.254.20.10", "10.96.0.10", "fd00::a"),
			SetupInterface: true,
		},
		want: `
interface nodelocaldns (dummy)
address   169.254.20.10/32
address   10.96.0.10/32
address   fd00::a/128`,
	}, {
		name: "rules only, no health port",
		config: netsetup.Config{
			Addresses:     parseAddrs("fd00::a"),
			DNSPort:       5353,
			SetupIptables: true,
		},
		want: `
rules     iptables
# ip6tables-restore --noflush
*filter
:NODENS-INPUT - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-INPUT -d fd00::a/128 -p udp -m udp --dport 5353 -j ACCEPT
-A NODENS-INPUT -d fd00::a/128 -p tcp -m tcp --dport 5353 -j ACCEPT
-A NODENS-OUTPUT -s fd00::a/128 -p udp -m udp --sport 5353 -j ACCEPT
-A NODENS-OUTPUT -s fd00::a/128 -p tcp -m tcp --sport 5353 -j ACCEPT
-I INPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-INPUT
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT
*raw
:NODENS-PREROUTING - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-PREROUTING -d fd00::a/128 -p udp -m udp --dport 5353 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d fd00::a/128 -p tcp -m tcp --dport 5353 -m socket --nowildcard -j NOTRACK
-A NODENS-OUTPUT -s fd00::a/128 -p udp -m udp --sport 5353 -j NOTRACK
-A NODENS-OUTPUT -s fd00::a/128 -p tcp -m tcp --sport 5353 -j NOTRACK
-I PREROUTING 1 -m comment --comment "nodens: DNS of this node" -j NODENS-PREROUTING
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT`,
	}, {
		name: "everything on one address",
		config: netsetup.Config{
			Addresses:      parseAddrs("169.254.20.10"),
			DNSPort:        53,
			HealthPort:     8080,
			InterfaceName:  "dns0",
			SetupInterface: true,
			SetupIptables:  true,
			Interval:       time.Second,
		},
		want: `
interface dns0 (dummy)
address   169.254.20.10/32
rules     iptables
# iptables-restore --noflush
*filter
:NODENS-INPUT - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-INPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j ACCEPT
-A NODENS-INPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j ACCEPT
-I INPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-INPUT
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT
*raw
:NODENS-PREROUTING - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 8080 -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 8080 -j NOTRACK
-I PREROUTING 1 -m comment --comment "nodens: DNS of this node" -j NODENS-PREROUTING
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT`,
	}, {
		name: "external interfaces",
		config: netsetup.Config{
			Addresses:          parseAddrs("169.254.20.10", "10.96.0.10"),
			DNSPort:            53,
			SetupIptables:      true,
			ExternalInterfaces: "eth1,eth0",
		},
		want: `
external  eth0, eth1
rules     iptables
# iptables-restore --noflush
*filter
:NODENS-INPUT - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-INPUT -i eth0 -j RETURN
-A NODENS-INPUT -i eth1 -j RETURN
-A NODENS-INPUT -d 169.254.20.10/32 -p udp -m udp --dport 53 -j ACCEPT
-A NODENS-INPUT -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A NODENS-INPUT -d 10.96.0.10/32 -p udp -m udp --dport 53 -j ACCEPT
-A NODENS-INPUT -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j ACCEPT
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j ACCEPT
-A NODENS-OUTPUT -s 10.96.0.10/32 -p udp -m udp --sport 53 -j ACCEPT
-A NODENS-OUTPUT -s 10.96.0.10/32 -p tcp -m tcp --sport 53 -j ACCEPT
-I INPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-INPUT
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT
*raw
:NODENS-PREROUTING - [0:0]
:NODENS-OUTPUT - [0:0]
-A NODENS-PREROUTING -d 169.254.20.10/32 -i eth0 -j DROP
-A NODENS-PREROUTING -d 169.254.20.10/32 -i eth1 -j DROP
-A NODENS-PREROUTING -i eth0 -j RETURN
-A NODENS-PREROUTING -i eth1 -j RETURN
-A NODENS-PREROUTING -d 169.254.20.10/32 -p udp -m udp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d 169.254.20.10/32 -p tcp -m tcp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d 10.96.0.10/32 -p udp -m udp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 53 -m socket --nowildcard -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p udp -m udp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -s 169.254.20.10/32 -p tcp -m tcp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -s 10.96.0.10/32 -p udp -m udp --sport 53 -j NOTRACK
-A NODENS-OUTPUT -s 10.96.0.10/32 -p tcp -m tcp --sport 53 -j NOTRACK
-I PREROUTING 1 -m comment --comment "nodens: DNS of this node" -j NODENS-PREROUTING
-I OUTPUT 1 -m comment --comment "nodens: DNS of this node" -j NODENS-OUTPUT
COMMIT`,
	}, {
		name: "no rules at all",
		config: netsetup.Config{
			Addresses:      parseAddrs("169.254.20.10"),
			SetupInterface: true,
			SetupIptables:  true,
			Netfilter:      netsetup.NetfilterNone,
		},
		want: `
interface nodelocaldns (dummy)
address   169.254.20.10/32`,
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := netsetup.NewPlan(tt.config)
			check.NoError(t, err)
			got := regexp.MustCompile(` \([0-9a-f]{8}\)"`).ReplaceAllString(p.Describe().String(), `"`)
			check.Equal(t, strings.TrimPrefix(tt.want, "\n"), got, "it differs")
		})
	}
}

func TestPlanErrors(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *netsetup.Config)
		want   []string // each must be in the error
	}{
		{"no address", func(c *netsetup.Config) { c.Addresses = nil }, []string{"--localip: no address", "--setupinterface=false"}},
		{"twice the same", func(c *netsetup.Config) { c.Addresses = parseAddrs("fd00::a", "fd00:0::a") }, []string{"--localip: fd00::a is given twice"}},
		{"zero Addr", func(c *netsetup.Config) { c.Addresses = []netip.Addr{{}} }, []string{"--localip: invalid IP is not an IP address"}},
		{"unspecified IPv4", func(c *netsetup.Config) { c.Addresses = parseAddrs("0.0.0.0") }, []string{"--localip: 0.0.0.0 stands for all addresses"}},
		{"unspecified IPv6", func(c *netsetup.Config) { c.Addresses = parseAddrs("::") }, []string{"--localip: :: stands for all addresses"}},
		{"loopback IPv4", func(c *netsetup.Config) { c.Addresses = parseAddrs("127.0.0.1") }, []string{"--localip: 127.0.0.1 is on every machine", "--setupiptables=false"}},
		{"loopback IPv6", func(c *netsetup.Config) { c.Addresses = parseAddrs("::1") }, []string{"--localip: ::1 is on every machine"}},
		{"multicast IPv4", func(c *netsetup.Config) { c.Addresses = parseAddrs("224.0.0.251") }, []string{"--localip: 224.0.0.251 is not a unicast address"}},
		{"multicast IPv6", func(c *netsetup.Config) { c.Addresses = parseAddrs("ff02::fb") }, []string{"--localip: ff02::fb is not a unicast address"}},
		{"broadcast", func(c *netsetup.Config) { c.Addresses = parseAddrs("255.255.255.255") }, []string{"--localip: 255.255.255.255 is not a unicast address"}},
		{"IPv4 in IPv6", func(c *netsetup.Config) { c.Addresses = parseAddrs("::ffff:169.254.20.10") }, []string{"--localip: ::ffff:169.254.20.10 is an IPv4 address", "write it as 169.254.20.10"}},
		{"IPv6 link-local", func(c *netsetup.Config) { c.Addresses = parseAddrs("fe80::a") }, []string{"--localip: fe80::a is valid on one interface only", "fd00::a"}},
		{"zone", func(c *netsetup.Config) { c.Addresses = parseAddrs("fd00::a%eth0") }, []string{"--localip: fd00::a%eth0 is valid on one interface only"}},
		{"no DNS port", func(c *netsetup.Config) { c.DNSPort = 0 }, []string{"--dns.port: 0", "--setupiptables=false"}},
		{"health on the DNS port", func(c *netsetup.Config) { c.HealthPort = 53 }, []string{"--health-port: 53 is also --dns.port"}},
		{"negative interval", func(c *netsetup.Config) { c.Interval = -time.Second }, []string{"--syncinterval: -1s is negative", "60s"}},
		{"unknown filter", func(c *netsetup.Config) { c.Netfilter = "ebtables" }, []string{`--netfilter: unknown value "ebtables"`, "auto, iptables, nftables or none"}},
		{"long name", func(c *netsetup.Config) { c.InterfaceName = "nodelocaldns-one" }, []string{`--interfacename: "nodelocaldns-one" is longer than the kernel's 15 bytes`}},
		{"slash in name", func(c *netsetup.Config) { c.InterfaceName = "a/b" }, []string{`--interfacename: "a/b" is not a valid interface name`}},
		{"blank in name", func(c *netsetup.Config) { c.InterfaceName = "a b" }, []string{`--interfacename: "a b" is not a valid interface name`}},
		{"name is ..", func(c *netsetup.Config) { c.InterfaceName = ".." }, []string{`--interfacename: ".." is not a valid interface name`}},
		{"name is lo", func(c *netsetup.Config) { c.InterfaceName = "lo" }, []string{`--interfacename: "lo" is the loopback interface`}},
		{"all at once", func(c *netsetup.Config) { c.Addresses, c.DNSPort, c.InterfaceName = nil, 0, "lo" }, []string{"--localip", "--dns.port", "--interfacename"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := validConfig()
			tt.change(&c)
			p, err := netsetup.NewPlan(c)
			if err == nil {
				t.Fatalf("no error; the plan is\n%v", p)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error lacks %q: %v", w, err)
				}
			}
			if p.Describe().String() != "nothing to set up" {
				t.Errorf("an error came with a plan:\n%v", p)
			}
			if _, err := netsetup.New(c, nil); err == nil {
				t.Error("New takes what netsetup.NewPlan refuses")
			}
		})
	}
}

func TestInterfaceNames(t *testing.T) {
	for _, name := range []string{"", "nodelocaldns", "dns-0.5", "nodelocaldns-15", "..."} {
		c := validConfig()
		c.InterfaceName = name
		if _, err := netsetup.NewPlan(c); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
