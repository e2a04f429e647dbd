package main

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// architecture is one that there are images for.
type architecture struct {
	// name is Go's and Debian's.
	name string
	// triple is the folder of Debian's libraries.
	triple  string
	machine elf.Machine
}

// architectures by name.
var architectures = map[string]architecture{
	"amd64": {name: "amd64", triple: "x86_64-linux-gnu", machine: elf.EM_X86_64},
	"arm64": {name: "arm64", triple: "aarch64-linux-gnu", machine: elf.EM_AARCH64},
}

// base is what the agent stands on: files, and the package that each is from, nil of
// those that are from none.
type base struct {
	architecture
	all    map[string]*deb
	chosen map[string]*deb
	made   oci.Layer
}

// base chooses what the agent needs of the packages: netsetup calls iptables, of both
// flavours, and nft.
func (a architecture) base(debs []*deb) (*base, error) {
	b := &base{architecture: a, all: make(map[string]*deb), chosen: make(map[string]*deb)}
	for _, d := range debs {
		for name := range d.files {
			b.all[name] = d
		}
	}
	var want []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-restore", "-save"} {
			want = append(want, "usr/sbin/"+family+"-nft"+does, "usr/sbin/"+family+"-legacy"+does)
			// The plain name, as Debian's alternatives have it.
			b.link("usr/sbin/"+family+does, family+"-nft"+does)
		}
	}
	want = append(want, "usr/sbin/nft",
		// Names of protocols and ports, which others' rules may have.
		"etc/protocols", "etc/services",
		// By this scanners for known faults know whose packages these are.
		osRelease)
	// Matches and targets, all: a list of a chain has those of others' rules too.
	for _, prefix := range []string{"libxt_", "libipt_", "libip6t_"} {
		found := b.below("usr/lib/" + a.triple + "/xtables/" + prefix)
		if len(found) == 0 {
			return nil, fmt.Errorf("the packages have no extension %s* of iptables", prefix)
		}
		want = append(want, found...)
	}
	for _, name := range want {
		if err := b.take(name); err != nil {
			return nil, err
		}
	}
	return b, errors.Join(b.certificates(), b.copyrights(), b.finish())
}

// below are the paths with a prefix, sorted.
func (b *base) below(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(b.all)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
}

func (b *base) link(name, to string) {
	b.made = append(b.made, oci.File{Path: name, Mode: fs.ModeSymlink | 0o777, Link: to})
}

// merged is the path of a file in a tree where /lib, /sbin and the like are those of
// /usr, as newer packages have it from the start.
func merged(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(aliases(), top) {
		return "usr/" + name
	}
	return name
}

// aliases are the folders that are those of /usr.
func aliases() []string { return []string{"bin", "lib", "lib64", "sbin"} }

// take chooses a file with all that it needs: where a link leads to, the libraries and
// the loader of a program.
func (b *base) take(name string) error {
	if b.chosen[name] != nil {
		return nil
	}
	d := b.all[name]
	if d == nil {
		return fmt.Errorf("no package has /%s", name)
	}
	b.chosen[name] = d
	f := d.files[name]
	if f.Mode.Type() == fs.ModeSymlink {
		to := f.Link
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(name), to)
		}
		return b.take(merged(strings.TrimPrefix(path.Clean(to), "/")))
	}
	needed, err := b.needed(f.Body)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	for _, n := range needed {
		if err := b.take(n); err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
	}
	return nil
}

// needed are the paths of the libraries and the loader that a program needs; none of
// what is no program.
func (b *base) needed(body []byte) (paths []string, err error) {
	if !bytes.HasPrefix(body, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	e, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if e.Machine != b.machine {
		return nil, fmt.Errorf("it is for %s, not for %s", e.Machine, b.machine)
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			loader := make([]byte, p.Filesz)
			if _, err := p.ReadAt(loader, 0); err != nil {
				return nil, err
			}
			paths = append(paths, merged(strings.Trim(string(loader), "/\x00")))
		}
	}
	libraries, err := e.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, l := range libraries {
		paths = append(paths, "usr/lib/"+b.triple+"/"+l)
	}
	return paths, nil
}

// certificates makes the file of all authorities, as the package does where it is
// installed; by it Go's programs know servers of DNS over TLS.
func (b *base) certificates() error {
	var all bytes.Buffer
	for _, name := range b.below("usr/share/ca-certificates/mozilla/") {
		all.Write(bytes.TrimSpace(b.all[name].files[name].Body))
		all.WriteByte('\n')
	}
	if all.Len() == 0 {
		return fmt.Errorf("package %s has no certificates", certificatesPackage)
	}
	b.made = append(b.made, oci.File{Path: certificatesPath, Mode: 0o644, Body: all.Bytes()})
	return nil
}

const (
	osRelease           = "usr/lib/os-release"
	certificatesPackage = "ca-certificates"
	certificatesPath    = "etc/ssl/certs/ca-certificates.crt"
)

// used are the packages that something is from, by name.
func (b *base) used() []*deb {
	seen := make(map[*deb]bool)
	for _, d := range b.all {
		if d.name == certificatesPackage {
			seen[d] = true // its certificates are a file that is made
		}
	}
	for _, d := range b.chosen {
		seen[d] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y *deb) int { return cmp.Compare(x.name, y.name) })
}

// distribution is Debian's release, as in the names of packages across distributions.
func (b *base) distribution() string {
	fields := make(map[string]string)
	if d := b.all[osRelease]; d != nil {
		for line := range strings.Lines(string(d.files[osRelease].Body)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			fields[name] = strings.Trim(value, `"`)
		}
	}
	return fields["ID"] + "-" + fields["VERSION_ID"]
}

// copyrights adds the terms of each package, which go where it goes, and what it says
// about itself, by which scanners for known faults find it: in a folder with a file for
// each, as images without a package manager have it.
func (b *base) copyrights() error {
	for _, d := range b.used() {
		name := "usr/share/doc/" + d.name + "/copyright"
		if err := b.take(name); err != nil {
			return fmt.Errorf("the terms of package %s: %w", d.name, err)
		}
		b.made = append(b.made, oci.File{Path: "var/lib/dpkg/status.d/" + d.name, Mode: 0o644, Body: []byte(d.control)})
	}
	return nil
}

// finish adds what is in no package.
func (b *base) finish() error {
	for _, name := range aliases() {
		used := func(path string) bool { return strings.HasPrefix(path, "usr/"+name+"/") }
		if slices.ContainsFunc(slices.Collect(maps.Keys(b.chosen)), used) {
			b.link(name, "usr/"+name)
		}
	}
	b.link("etc/os-release", "../"+osRelease)
	b.made = append(b.made,
		// The agent asks for no name of a user; programs that show one do.
		oci.File{Path: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0:root:/:/\nnobody:x:65534:65534:nobody:/:/\n")},
		oci.File{Path: "etc/group", Mode: 0o644, Body: []byte("root:x:0:\nnobody:x:65534:\n")},
		// /run/xtables.lock is mounted here.
		oci.File{Path: "run", Mode: fs.ModeDir | 0o755},
		// NodeLocal DNSCache's manifest has its -pidfile here.
		oci.File{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	)
	return nil
}

// layer are all files of it.
func (b *base) layer() oci.Layer {
	files := slices.Clone(b.made)
	for name, d := range b.chosen {
		files = append(files, d.files[name])
	}
	slices.SortFunc(files, func(x, y oci.File) int { return cmp.Compare(x.Path, y.Path) })
	return files
}
