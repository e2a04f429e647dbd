package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"maps"
	"path"
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
	packs, err := debian.Archive{Arch: arch, Names: []string{"iproute2", "iptables", "nftables", "busybox-static"}, Suites: []string{programSuite}, Limit: maxProgram}.Packages(ctx, false)
	if err != nil {
		return nil, err
	}
	all := make(map[string]debian.File)
	for _, p := range packs {
		maps.Copy(all, p.Files)
	}
	s := selection{all: all, triple: machines()[arch].triple, chosen: make(map[string]bool)}
	wanted := []string{"usr/bin/ip", "usr/sbin/nft", "usr/bin/busybox"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-restore", "-save"} {
			wanted = append(wanted, "usr/sbin/"+family+"-nft"+does, "usr/sbin/"+family+"-legacy"+does)
			s.link("usr/sbin/"+family+does, family+"-nft"+does) // as Debian's alternatives have it
			s.link("legacy/"+family+does, "/usr/sbin/"+family+"-legacy"+does)
		}
	}
	for _, name := range []string{"sh", "sysctl"} {
		s.link("usr/bin/"+name, "busybox")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "usr/lib/"+s.triple+"/xtables/") {
			wanted = append(wanted, name)
		}
	}
	for _, name := range wanted {
		if err := s.choose(name); err != nil {
			return nil, err
		}
	}
	return s.entries, nil
}

// selection are files of packages with everything that they need.
type selection struct {
	all     map[string]debian.File
	triple  string // of the folder with Debian's libraries
	chosen  map[string]bool
	entries []entry
}

func (s *selection) link(name, to string) {
	s.entries = append(s.entries, entry{name: name, link: to})
}

// choose adds a file, the target of a symbolic link, and the libraries of a program.
func (s *selection) choose(name string) error {
	name = debian.MergedPath(name)
	if s.chosen[name] {
		return nil
	}
	f, ok := s.all[name]
	if !ok {
		return fmt.Errorf("no package has /%s", name)
	}
	s.chosen[name] = true
	if f.Mode.Type() == fs.ModeSymlink {
		s.link(name, f.Link)
		to := f.Link
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(name), to)
		}
		return s.choose(strings.TrimPrefix(path.Clean(to), "/"))
	}
	s.entries = append(s.entries, entry{name: name, body: f.Body})
	needed, err := s.needed(f.Body)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	for _, n := range needed {
		if err := s.choose(n); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
	}
	return nil
}

// needed returns the paths of the libraries and the loader of a program or a library; none for
// other files.
func (s *selection) needed(body []byte) (paths []string, err error) {
	if !bytes.HasPrefix(body, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	e, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz)
		if _, err := p.ReadAt(loader, 0); err != nil {
			return nil, err
		}
		paths = append(paths, strings.Trim(string(loader), "/\x00"))
	}
	libraries, err := e.ImportedLibraries()
	for _, l := range libraries {
		paths = append(paths, "usr/lib/"+s.triple+"/"+l)
	}
	return paths, err
}
