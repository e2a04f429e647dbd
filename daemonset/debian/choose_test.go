package debian_test

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// TestChoose: a link comes with its target, each file once, and a missing file is an error.
func TestChoose(t *testing.T) {
	all := map[string]debian.File{
		"usr/sbin/iptables-nft":      {Mode: fs.ModeSymlink, Link: "xtables-nft-multi"},
		"usr/sbin/ip6tables-nft":     {Mode: fs.ModeSymlink, Link: "/sbin/xtables-nft-multi"},
		"usr/sbin/xtables-nft-multi": {Body: []byte("program")},
		"usr/sbin/broken":            {Mode: fs.ModeSymlink, Link: "../none"},
	}
	var names []string
	c := debian.Chooser{
		Find: func(name string) (debian.File, bool) { f, ok := all[name]; return f, ok },
		Add:  func(name string, _ debian.File) { names = append(names, name) },
	}
	for _, name := range []string{"usr/sbin/iptables-nft", "sbin/ip6tables-nft", "usr/sbin/iptables-nft"} {
		if err := c.Choose(name); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(names)
	if want := []string{"usr/sbin/ip6tables-nft", "usr/sbin/iptables-nft", "usr/sbin/xtables-nft-multi"}; !slices.Equal(names, want) {
		t.Errorf("chosen are %v, want %v", names, want)
	}
	for _, name := range []string{"usr/sbin/broken", "usr/sbin/none"} {
		if err := c.Choose(name); err == nil {
			t.Errorf("%s was chosen", name)
		}
	}
}
