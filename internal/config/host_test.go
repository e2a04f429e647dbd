package config

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

// hostNode is node with an address for the node's own look-ups, whose servers are these.
func hostNode(t testing.TB, servers ...string) Options {
	opts := node(t)
	opts.LocalIPs, opts.HostListen = addrs("169.254.20.10"), addrs("169.254.20.11")
	opts.HostServers = func() ([]netip.Addr, error) { return addrs(servers...), nil }
	return opts
}

func parseWith(opts Options, text string) (*Config, error) {
	return Parse(Source{Path: "Corefile", Text: []byte(text), Options: opts})
}

const rootBlock = ".:53 {\n bind 169.254.20.10\n forward . 192.0.2.9\n}\n"

// TestHostBlock: without a block at the address there is a default one, with the node's servers.
func TestHostBlock(t *testing.T) {
	for name, text := range map[string]string{"bind": rootBlock, "without bind": ".:53 {\n forward . 192.0.2.9\n}\n"} {
		c, err := parseWith(hostNode(t, "192.0.2.1", "2001:db8::1"), text)
		if err != nil {
			t.Fatal(name, err)
		}
		limits := CacheLimits{Entries: 9984, MaxTTL: 30 * time.Second, MinTTL: 5 * time.Second}
		zone := []wire.Name{wire.Root}
		want := &Block{
			Zones: zone, Port: 53, File: "--host-listen", Line: 1, Listen: ports("169.254.20.11:53"),
			Bind: &Bind{Addrs: addrs("169.254.20.11")}, Errors: &Errors{}, Loop: &Switch{},
			Cache: &Cache{Zones: zone, Success: limits, Denial: limits, Servfail: 5 * time.Second},
			Forward: &Forward{
				From: wire.Root, To: targets("192.0.2.1:53", "[2001:db8::1]:53"), MaxFails: 2, Expire: 10 * time.Second,
				ReadTimeout: 2 * time.Second, HealthInterval: 500 * time.Millisecond, HealthDomain: wire.Root,
			},
		}
		if len(c.Blocks) != 2 || len(c.Suspicious) > 0 {
			t.Fatalf("%s: %d blocks, %v", name, len(c.Blocks), c.Suspicious)
		}
		if diff := cmp.Diff(want, c.Blocks[1], equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, at := range c.Blocks[0].Listen {
			if at.Addr() == netip.MustParseAddr("169.254.20.11") {
				t.Errorf("%s: a block for pods listens at %v", name, at)
			}
		}
		other, err := parseWith(hostNode(t, "192.0.2.2"), text)
		if err != nil || other.Digest == c.Digest || other.Hash != c.Hash {
			t.Errorf("%s: another server does not call for a reload (%v)", name, err)
		}
	}
	c, err := parse(t, rootBlock)
	if err != nil || len(c.Blocks) != 1 {
		t.Errorf("without --host-listen: %d blocks, %v", len(c.Blocks), err)
	}
}

// TestHostBlockOfCorefile: a block that is bound to the address takes the place of the default one.
func TestHostBlockOfCorefile(t *testing.T) {
	for _, text := range []string{
		rootBlock + ".:53 {\n bind 169.254.20.11\n forward . 192.0.2.8\n}\n",
		".:53 {\n forward . 192.0.2.9\n}\n.:53 {\n bind 169.254.20.11\n forward . 192.0.2.8\n}\n",
		".:53 {\n bind 169.254.20.10 169.254.20.11\n forward . 192.0.2.8\n}\n",
	} {
		c, err := parseWith(hostNode(t, "192.0.2.1"), text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		last := c.Blocks[len(c.Blocks)-1]
		if diff := cmp.Diff(targets("192.0.2.8:53"), last.Forward.To, equal); diff != "" || len(c.Suspicious) > 0 {
			t.Errorf("%s: %s %v", text, diff, c.Suspicious)
		}
	}
	// Another port, and one of two addresses, leave the rest to the default block.
	opts := hostNode(t, "192.0.2.1")
	opts.HostListen = addrs("169.254.20.11", "fd00:20::11")
	c, err := parseWith(opts, rootBlock+".:5353 {\n bind 169.254.20.11\n forward . 192.0.2.8\n}\n.:53 {\n bind fd00:20::11\n forward . 192.0.2.8\n}\n")
	if err != nil || len(c.Blocks) != 4 || !cmp.Equal(c.Blocks[3].Bind.Addrs, addrs("169.254.20.11"), equal) {
		t.Errorf("%d blocks, %v", len(c.Blocks), err)
	}
}

// TestHostServersNeverLoop: neither the agent's addresses nor systemd-resolved's become upstreams, in any block.
func TestHostServersNeverLoop(t *testing.T) {
	opts := hostNode(t, "127.0.0.53", "169.254.20.11", "192.0.2.1", "169.254.20.10", "127.0.0.54")
	opts.ResolvConf = write(t, t.TempDir(), "resolv.conf", "nameserver 169.254.20.11\nnameserver 127.0.0.53\nnameserver 169.254.20.10\nnameserver 192.0.2.3\n")
	only := write(t, t.TempDir(), "only", "nameserver 169.254.20.11\n")
	text := ".:53 {\n bind 169.254.20.10\n forward . " + opts.ResolvConf + "\n}\na.test {\n bind 169.254.20.10\n forward . " + only +
		"\n}\nb.test {\n bind 169.254.20.10\n forward . /etc/resolv.conf\n}\n"
	c, err := parseWith(opts, text)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"192.0.2.3:53", "192.0.2.1:53", "192.0.2.1:53", "192.0.2.1:53"} {
		if diff := cmp.Diff(targets(want), c.Blocks[i].Forward.To, equal); diff != "" {
			t.Errorf("block %d (-want +got):\n%s", i, diff)
		}
	}
	for want, servers := range map[string]func() ([]netip.Addr, error){
		"no name server but the agent":                      func() ([]netip.Addr, error) { return addrs("169.254.20.11", "127.0.0.53"), nil },
		"can't be read: no such thing; see --host-root, or": func() ([]netip.Addr, error) { return nil, errors.New("no such thing") },
	} {
		opts.HostServers = servers
		if _, err := parseWith(opts, rootBlock); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	opts.HostServers = nil // not on the node
	if c, err := parseWith(opts, rootBlock); err != nil || c.Blocks[1].Forward.To[0].Addr != UnknownNameserver {
		t.Errorf("off the node: %v", err)
	}
}
