package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// entry is a file of a machine that can be run, or a symbolic link.
type entry struct {
	name string
	body []byte
	link string
}

// programSuite is the Debian release whose programs run in the machines. Nodes have other releases
// of the kernel than of these programs, too: the agent's image brings its own iptables.
const programSuite = "bookworm"

// maxProgram bounds what is unpacked of a package with programs: libc6 has 13 MB.
const maxProgram = 64 << 20

// programs returns the programs that the machines need, and their libraries.
func programs(ctx context.Context, arch string) ([]entry, error) {
	packs, err := debian.Archive{Arch: arch, Names: []string{"iproute2", "iptables", "nftables", "busybox-static", "runc", "apparmor"}, Suites: []string{programSuite}, Limit: maxProgram}.Packages(ctx, false)
	if err != nil {
		return nil, err
	}
	all := make(map[string]debian.File)
	for _, p := range packs {
		maps.Copy(all, p.Files)
	}
	m := machines()[arch]
	var entries []entry
	link := func(name, to string) { entries = append(entries, entry{name: name, link: to}) }
	chooser := debian.Chooser{
		Find: func(name string) (debian.File, bool) { f, ok := all[name]; return f, ok },
		Add: func(name string, f debian.File) {
			entries = append(entries, entry{name: name, body: f.Body, link: f.Link})
		},
		Triple: m.triple, Machine: m.machine,
	}
	wanted := []string{"usr/bin/ip", "usr/sbin/nft", "usr/bin/busybox", "usr/sbin/runc", "usr/sbin/apparmor_parser"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-restore", "-save"} {
			wanted = append(wanted, "usr/sbin/"+family+"-nft"+does, "usr/sbin/"+family+"-legacy"+does)
			link("usr/sbin/"+family+does, family+"-nft"+does) // as Debian's alternatives have it
			link("legacy/"+family+does, "/usr/sbin/"+family+"-legacy"+does)
		}
	}
	for _, name := range []string{"sh", "sysctl"} {
		link("usr/bin/"+name, "busybox")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "usr/lib/"+m.triple+"/xtables/") {
			wanted = append(wanted, name)
		}
	}
	for _, name := range wanted {
		if err := chooser.Choose(name); err != nil {
			return nil, err
		}
	}
	return entries, nil
}
