package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestCacheOfNothing: a capacity of 0 is CoreDNS's smallest cache.
func TestCacheOfNothing(t *testing.T) {
	c, err := parse(t, ". {\ncache {\nsuccess 0\ndenial 0 5\n}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Blocks[0].Cache; got.Success.Entries != fewestEntries || got.Denial.Entries != fewestEntries || len(c.Suspicious) != 2 {
		t.Errorf("cache %+v, suspicious %v", got, c.Suspicious)
	}
}

// TestHostsTTL: the TTL of hosts is within the bounds of the block's cache.
func TestHostsTTL(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint32
	}{
		{". {\nhosts\n}\n", 3600},
		{". {\nhosts\ncache 30\n}\n", 30},
		{". {\ncache 30\nhosts {\nttl 60\n}\n}\n", 30},
		{". {\ncache\nhosts {\nttl 2\n}\n}\n", 5},
		{". {\ncache {\nsuccess 100 90 60\n}\nhosts {\nttl 20\n}\n}\n", 60},
		{". {\ncache 30 a.test\nhosts\n}\n", 3600},
		{". {\ncache 30 a.test\nhosts /etc/hosts x.a.test\n}\n", 30},
	} {
		c, err := parse(t, tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Blocks[0].Hosts.TTL; got != tt.want {
			t.Errorf("%q: TTL %d, want %d", tt.text, got, tt.want)
		}
	}
}

// TestLeftOut: names and lines that are left out are warnings with their places.
func TestLeftOut(t *testing.T) {
	path := write(t, t.TempDir(), "resolv.conf", "search a\nnameserver ns.test\nnameserver 192.0.2.1 # first\nnameserver 192.0.2.300\nnameserver\n")
	c, err := parse(t, ". {\nhosts {\n192.0.2.9 bad..test ok.test "+strings.Repeat("x", 64)+"\n}\nforward . "+path+"\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, w := range c.Warnings {
		place, _, _ := strings.Cut(w, ": ")
		places = append(places, strings.TrimPrefix(place, path))
	}
	if got := fmt.Sprint(places); got != "[Corefile:3 Corefile:3 :2 :4]" {
		t.Errorf("warnings at %s: %q", got, c.Warnings)
	}
	if got := c.Blocks[0].Forward.To; len(got) != 1 {
		t.Errorf("upstreams %v", got)
	}
}
