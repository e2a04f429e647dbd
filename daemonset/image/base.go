package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/daemonset/image/debian"
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

// wanted are the packages that are asked for; those that they need come with them. The
// first says which release of Debian they are of.
func wanted() []string { return []string{"base-files", "iptables", "nftables", certificatesPackage} }

// maxPackage bounds what is unpacked of one package. The largest, libc6, is 13 MB; what
// is five times that is no library.
const maxPackage = 64 << 20

// packages are those that the image is made of.
func (a architecture) packages(ctx context.Context, update bool) ([]*debian.Package, error) {
	return debian.Archive{Arch: a.name, Wanted: wanted(), Limit: maxPackage}.Packages(ctx, update)
}

// base is what the agent stands on: files, and the package that each is from, nil of
// those that are from none.
type base struct {
	architecture
	all    map[string]*debian.Package
	chosen map[string]*debian.Package
	made   oci.Layer
}

// base chooses what the agent needs of the packages: netsetup calls iptables, of both
// flavours, and nft.
func (a architecture) base(debs []*debian.Package) (*base, error) {
	b := &base{architecture: a, all: make(map[string]*debian.Package), chosen: make(map[string]*debian.Package)}
	for _, d := range debs {
		for name := range d.Files {
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
	f := d.Files[name]
	if f.Mode.Type() == fs.ModeSymlink {
		to := f.Link
		if !path.IsAbs(to) {
			to = path.Join("/", path.Dir(name), to)
		}
		return b.take(debian.Merged(strings.TrimPrefix(path.Clean(to), "/")))
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
			paths = append(paths, debian.Merged(strings.Trim(string(loader), "/\x00")))
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
		all.Write(bytes.TrimSpace(b.all[name].Files[name].Body))
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
func (b *base) used() []*debian.Package {
	seen := make(map[*debian.Package]bool)
	for _, d := range b.all {
		if d.Name == certificatesPackage {
			seen[d] = true // its certificates are a file that is made
		}
	}
	for _, d := range b.chosen {
		seen[d] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y *debian.Package) int { return cmp.Compare(x.Name, y.Name) })
}

// distribution is Debian's release, as in the names of packages across distributions.
func (b *base) distribution() string {
	fields := make(map[string]string)
	if d := b.all[osRelease]; d != nil {
		for line := range strings.Lines(string(d.Files[osRelease].Body)) {
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
		name := "usr/share/doc/" + d.Name + "/copyright"
		if err := b.take(name); err != nil {
			return fmt.Errorf("the terms of package %s: %w", d.Name, err)
		}
		b.made = append(b.made, oci.File{Path: "var/lib/dpkg/status.d/" + d.Name, Mode: 0o644, Body: []byte(d.Control)})
	}
	return nil
}

// finish adds what is in no package.
func (b *base) finish() error {
	for _, name := range debian.Aliases() {
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
		files = append(files, d.Files[name])
	}
	slices.SortFunc(files, func(x, y oci.File) int { return cmp.Compare(x.Path, y.Path) })
	return files
}
