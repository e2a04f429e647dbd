package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// kernel is one of Debian's.
type kernel struct {
	// release is what the kernel calls itself.
	release string
	// arch is the processor, as Go and Debian call it.
	arch string
	// suite is the Debian release that has the packages.
	suite string
	// packages are the SHA-256 of the packages with the image and the modules, by name.
	packages map[string]string
	// want is what the machine is asked to show of the kernel path.
	want string
}

// What a machine shows of the kernel path.
const (
	// wantAnswers: it answers, and its tests pass.
	wantAnswers = "answers"
	// wantRefuses: the verifier accepts the programs, and the agent refuses in plain words.
	wantRefuses = "refuses"
	// wantLacks: only the agent's words count, because the verifier is older than the programs.
	wantLacks = "lacks"
)

// kernels are those that are tried. Debian drops packages when newer ones come: then apt-get
// says that it has none of that name, and the next is to be named here.
func kernels() []kernel {
	return []kernel{
		// The oldest that Debian still maintains.
		{"5.10.0-32-cloud-amd64", "amd64", "bullseye", map[string]string{
			"linux-image-5.10.0-32-cloud-amd64": "fb4a1229952d892138532c1d9f40a7fd0bd408e4dcf969c12e4524b6a89fdcb8",
		}, wantLacks},
		// The last long-term kernel before tcx.
		{"6.1.0-50-cloud-amd64", "amd64", "bookworm", map[string]string{
			"linux-image-6.1.0-50-cloud-amd64": "efe19f605b6f54a8352e68d85a629abb2d30b72a085faef603a9152590baa791",
		}, wantRefuses},
		// The oldest since tcx (6.6) that Debian still has.
		{"6.12.43+deb12-cloud-amd64", "amd64", "bookworm-backports", map[string]string{
			"linux-image-6.12.43+deb12-cloud-amd64": "e23bf6c82d71843946784a7fec8a20f642f3f712ac8f7e00d07f92fce33d8da7",
		}, wantAnswers},
		// The newest.
		{"7.3.4+deb13-cloud-amd64", "amd64", "trixie-backports", map[string]string{
			"linux-binary-7.3.4+deb13-cloud-amd64":  "c4fbc8e404958693b28825474c20742d70594d65ca58aea7be6a279c81eb6fa0",
			"linux-modules-7.3.4+deb13-cloud-amd64": "359f04c363b7d3c5f9ce999ccb7351e00cc8eec0a30d6bc1cda37734987fc43d",
		}, wantAnswers},
		{"6.12.43+deb12-cloud-arm64", "arm64", "bookworm-backports", map[string]string{
			"linux-image-6.12.43+deb12-cloud-arm64": "9a2b784a8af0992142096ceba29a3d88c92372a2866efd1ebbe3268c340e19fe",
		}, wantAnswers},
	}
}

// of reports whether the kernel is of a version, such as 6.1; all are of "".
func (k kernel) of(version string) bool {
	rest, ok := strings.CutPrefix(k.release, version)
	return ok && (version == "" || rest == "" || !unicode.IsDigit(rune(rest[0])))
}

// version is the release without the name of Debian's build.
func (k kernel) version() string {
	version, _, _ := strings.Cut(k.release, "-cloud-")
	return version
}

// maxKernel bounds what is unpacked of a package: with all its modules a kernel for virtual
// machines has some 100 MB.
const maxKernel = 512 << 20

// try boots the kernel with files, and reports what the machine has written, and why that
// is not what is wanted. What it writes also goes to follow. It blocks for minutes, and for a
// download the first time.
func (k kernel) try(ctx context.Context, dir string, files []entry, follow io.Writer) (said []byte, err error) {
	all, err := k.fetch(ctx)
	if err != nil {
		return nil, err
	}
	body, err := k.image(all)
	if err != nil {
		return nil, err
	}
	image, err := os.CreateTemp(dir, "vmlinuz-")
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if _, err := image.Write(body); err != nil {
		return nil, err
	}
	initramfs, err := os.CreateTemp(dir, "initramfs-")
	if err != nil {
		return nil, err
	}
	defer initramfs.Close()
	if err := k.pack(ctx, initramfs, all, files); err != nil {
		return nil, err
	}
	said, err = k.boot(ctx, image.Name(), initramfs.Name(), follow)
	if err != nil {
		return said, err
	}
	return said, verdict(said)
}

// image returns the kernel itself, which is in one of two places.
func (k kernel) image(all map[string]debian.File) ([]byte, error) {
	for _, name := range []string{"boot/vmlinuz-" + k.release, path.Join("usr/lib/modules", k.release, "vmlinuz")} {
		if f, ok := all[name]; ok && len(f.Body) > 0 {
			return f.Body, nil
		}
	}
	return nil, errors.New("the packages have no vmlinuz")
}

// fetch gives the files of the kernel's packages.
func (k kernel) fetch(ctx context.Context) (map[string]debian.File, error) {
	names := slices.Sorted(maps.Keys(k.packages))
	packs, err := debian.Archive{Arch: k.arch, Names: names, WithoutDependencies: true, Suites: []string{k.suite}, Limit: maxKernel}.Packages(ctx, false)
	if err != nil {
		return nil, err
	}
	if len(packs) != len(names) {
		return nil, fmt.Errorf("there are %d packages, not %d", len(packs), len(names))
	}
	all := make(map[string]debian.File)
	for _, p := range packs {
		if p.Sum != k.packages[p.Name] {
			return nil, fmt.Errorf("the package %s has the hash %s, want %q", p.Name, p.Sum, k.packages[p.Name])
		}
		maps.Copy(all, p.Files)
	}
	return all, nil
}

// pack writes what the machine starts with.
func (k kernel) pack(ctx context.Context, w io.Writer, all map[string]debian.File, files []entry) error {
	a := archive{w: w}
	for _, name := range []string{"dev", "proc", "sys", "tmp", "run"} {
		a.folder(name)
	}
	for _, name := range debian.MergedDirs() {
		a.folder("usr/" + name)
		a.link(name, "usr/"+name)
	}
	modules, err := findModules(ctx, all, path.Join("usr/lib/modules", k.release), wantedModules())
	if err != nil {
		return err
	}
	for i, m := range modules {
		a.file(fmt.Sprintf("modules/%03d-%s.ko", i, m.name), m.body)
	}
	for _, f := range files {
		if f.link != "" {
			a.link(f.name, f.link)
			continue
		}
		a.file(f.name, f.body)
	}
	return a.end()
}

// passed is the machine's good word, "" if there is none.
func passed(said []byte) string {
	for line := range strings.Lines(string(said)) {
		if word, ok := strings.CutPrefix(strings.TrimSpace(line), "passed: "); ok {
			return word
		}
	}
	return ""
}

// verdict is nil if the machine has said that all is well.
func verdict(said []byte) error {
	if passed(said) == "" {
		return errors.New("the machine ended without a good word")
	}
	return nil
}
