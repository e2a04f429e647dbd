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
	"slices"
	"strings"
	"testing/fstest"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// architecture is a processor architecture that images are built for.
type architecture struct {
	// name is the same in Go and in Debian.
	name string
	// triple names the directory of Debian's libraries.
	triple  string
	machine elf.Machine
}

// architectures lists them by name.
var architectures = map[string]architecture{
	"amd64": {name: "amd64", triple: "x86_64-linux-gnu", machine: elf.EM_X86_64},
	"arm64": {name: "arm64", triple: "aarch64-linux-gnu", machine: elf.EM_AARCH64},
}

// wanted are the packages to fetch; their dependencies come with them. base-files says
// which Debian release they belong to.
func wanted() []string { return []string{"base-files", "iptables", certificatesPackage} }

// maxPackage limits what is unpacked from one package. The largest, libc6, has 13 MB.
const maxPackage = 64 << 20

// packages fetches the Debian packages that the image is built from.
func (a architecture) packages(ctx context.Context, update bool) ([]*debian.Package, error) {
	return debian.Archive{Arch: a.name, Names: wanted(), Limit: maxPackage}.Packages(ctx, update)
}

// base is the image's first layer: everything below the agent.
type base struct {
	architecture
	all    map[string]*debian.Package // the package of each file there is, by path
	chosen map[string]*debian.Package // the same, for files that are in the image
	layer  fstest.MapFS               // the image's files
	files  debian.Chooser
}

// base chooses the files that the agent needs: package netsetup runs iptables in both
// modes.
func (a architecture) base(debs []*debian.Package) (*base, error) {
	b := &base{architecture: a, all: make(map[string]*debian.Package), chosen: make(map[string]*debian.Package), layer: make(fstest.MapFS)}
	b.files = debian.Chooser{Find: b.find, Add: b.add, Triple: a.triple, Machine: a.machine}
	for _, d := range debs {
		for name := range d.Files {
			b.all[name] = d
		}
	}
	var want []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-restore", "-save"} {
			want = append(want, "usr/sbin/"+family+"-nft"+does, "usr/sbin/"+family+"-legacy"+does)
			// The plain name points to the nft mode, as Debian's alternatives do.
			b.link("usr/sbin/"+family+does, family+"-nft"+does)
		}
	}
	want = append(want,
		// Other programs' rules may use names of protocols and ports.
		"etc/protocols", "etc/services",
		// Vulnerability scanners look here for the distribution.
		osRelease)
	// All matches and targets: listing a chain needs the matches of other programs' rules, too.
	for _, prefix := range []string{"libxt_", "libipt_", "libip6t_"} {
		found := b.withPrefix("usr/lib/" + a.triple + "/xtables/" + prefix)
		if len(found) == 0 {
			return nil, fmt.Errorf("no package has an iptables extension %s*", prefix)
		}
		want = append(want, found...)
	}
	for _, name := range want {
		if err := b.files.Choose(name); err != nil {
			return nil, err
		}
	}
	err := errors.Join(b.certificates(), b.copyrights())
	b.finish()
	return b, err
}

// withPrefix returns the paths that start with prefix, sorted.
func (b *base) withPrefix(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(b.all)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
}

func (b *base) link(name, to string) {
	b.layer[name] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
}

// add adds a file that is chosen.
func (b *base) add(name string, f debian.File) {
	b.chosen[name] = b.all[name]
	if f.Mode.Type() == fs.ModeSymlink {
		b.link(name, f.Link)
		return
	}
	b.layer[name] = &fstest.MapFile{Mode: f.Mode, Data: f.Body}
}

// find returns the file at a path, if a package has one.
func (b *base) find(name string) (f debian.File, ok bool) {
	if d := b.all[name]; d != nil {
		return d.Files[name], true
	}
	return f, false
}

// certificates generates the bundle of root certificates, as the package's installation
// script does. The agent verifies DNS-over-TLS upstreams with it.
func (b *base) certificates() error {
	var all bytes.Buffer
	for _, name := range b.withPrefix("usr/share/ca-certificates/mozilla/") {
		all.Write(bytes.TrimSpace(b.all[name].Files[name].Body))
		all.WriteByte('\n')
	}
	if all.Len() == 0 {
		return fmt.Errorf("package %s contains no certificates", certificatesPackage)
	}
	b.layer[certificatesPath] = &fstest.MapFile{Mode: 0o644, Data: all.Bytes()}
	return nil
}

const (
	osRelease           = "usr/lib/os-release"
	certificatesPackage = "ca-certificates"
	certificatesPath    = "etc/ssl/certs/ca-certificates.crt"
)

// usedPackages returns the packages that files of the image come from, sorted by name.
func (b *base) usedPackages() []*debian.Package {
	seen := make(map[*debian.Package]bool)
	for _, d := range b.all {
		if d.Name == certificatesPackage {
			seen[d] = true // the generated bundle comes from it
		}
	}
	for _, d := range b.chosen {
		seen[d] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y *debian.Package) int { return cmp.Compare(x.Name, y.Name) })
}

// distribution is the Debian release in the form that package URLs use: debian-13.
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

// copyrights adds the license text of each package and its control file. Images without
// a package manager have the latter in status.d, where vulnerability scanners look.
func (b *base) copyrights() error {
	for _, d := range b.usedPackages() {
		name := "usr/share/doc/" + d.Name + "/copyright"
		if err := b.files.Choose(name); err != nil {
			return fmt.Errorf("the license of package %s: %w", d.Name, err)
		}
		b.layer["var/lib/dpkg/status.d/"+d.Name] = &fstest.MapFile{Mode: 0o644, Data: []byte(d.Control)}
	}
	return nil
}

// finish adds the files that are in no package.
func (b *base) finish() {
	for _, name := range debian.MergedDirs() {
		used := func(path string) bool { return strings.HasPrefix(path, "usr/"+name+"/") }
		if slices.ContainsFunc(slices.Collect(maps.Keys(b.chosen)), used) {
			b.link(name, "usr/"+name)
		}
	}
	b.link("etc/os-release", "../"+osRelease)
	maps.Copy(b.layer, fstest.MapFS{
		// The agent needs no user names; programs that print one do.
		"etc/passwd": {Mode: 0o644, Data: []byte("root:x:0:0:root:/:/\nnobody:x:65534:65534:nobody:/:/\n")},
		"etc/group":  {Mode: 0o644, Data: []byte("root:x:0:\nnobody:x:65534:\n")},
		// Manifests mount /run/xtables.lock here.
		"run": {Mode: fs.ModeDir | 0o755},
		// NodeLocal DNSCache's manifest puts its -pidfile here.
		"tmp": {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	})
}
