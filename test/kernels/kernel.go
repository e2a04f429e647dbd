package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"unicode"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// kernel is one of Debian's.
type kernel struct {
	// release is what the kernel calls itself, and the package's name ends with.
	release string
	// suites are where Debian has the package.
	suites []string
	// sum is the package's SHA-256.
	sum string
	// want is what the machine is asked to show: that it answers, or that it refuses.
	want string
}

// kernels are those that are tried. Debian drops packages when newer ones come: then apt-get
// says that it has none of that name, and the next is to be named here.
func kernels() []kernel {
	return []kernel{
		// Before tcx: it has to be refused in plain words.
		{"6.1.0-50-cloud-amd64", []string{"bookworm"}, "efe19f605b6f54a8352e68d85a629abb2d30b72a085faef603a9152590baa791", "refuses"},
		// The oldest since tcx (6.6) that Debian still has.
		{"6.12.43+deb12-cloud-amd64", []string{"bookworm-backports"}, "e23bf6c82d71843946784a7fec8a20f642f3f712ac8f7e00d07f92fce33d8da7", "answers"},
	}
}

// of reports whether the kernel is of a version, such as 6.1; all are of "".
func (k kernel) of(version string) bool {
	rest, ok := strings.CutPrefix(k.release, version)
	return ok && (version == "" || rest == "" || !unicode.IsDigit(rune(rest[0])))
}

// maxKernel bounds what is unpacked of a package: with all its modules a kernel for virtual
// machines has some 100 MB.
const maxKernel = 512 << 20

// modules are what the tests need of the kernel that Debian builds apart, in this order.
func modules() []string { return []string{"drivers/net/veth"} }

// try boots the kernel with files, and reports what the machine has written, and why that
// is not what is wanted. It blocks for minutes, and for a download the first time.
func (k kernel) try(ctx context.Context, dir string, files map[string]string) (said []byte, err error) {
	pack, err := k.fetch(ctx)
	if err != nil {
		return nil, err
	}
	image, err := os.CreateTemp(dir, "vmlinuz-")
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if _, err := image.Write(pack.Files["boot/vmlinuz-"+k.release].Body); err != nil {
		return nil, err
	}
	initramfs, err := os.CreateTemp(dir, "initramfs-")
	if err != nil {
		return nil, err
	}
	defer initramfs.Close()
	if err := k.pack(ctx, initramfs, pack, files); err != nil {
		return nil, err
	}
	said, err = boot(ctx, image.Name(), initramfs.Name(), k.want)
	if err != nil {
		return said, err
	}
	return said, verdict(said)
}

// fetch gives the kernel's package.
func (k kernel) fetch(ctx context.Context) (*debian.Package, error) {
	packs, err := debian.Archive{Arch: "amd64", Names: []string{"linux-image-" + k.release}, WithoutDependencies: true, Suites: k.suites, Limit: maxKernel}.Packages(ctx, false)
	if err != nil {
		return nil, err
	}
	if len(packs) != 1 || packs[0].Sum != k.sum {
		return nil, fmt.Errorf("the package is not the one with the hash %s", k.sum)
	}
	return packs[0], nil
}

// pack writes what the machine starts with.
func (k kernel) pack(ctx context.Context, w io.Writer, pack *debian.Package, files map[string]string) error {
	a := archive{w: w}
	for _, name := range []string{"dev", "proc", "sys", "tmp", "run"} {
		a.folder(name)
	}
	for i, m := range modules() {
		name := path.Join("usr/lib/modules", k.release, "kernel", m+".ko")
		body := pack.Files[name].Body
		if packed, ok := pack.Files[name+".xz"]; ok {
			var err error
			if body, err = unxz(ctx, packed.Body); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if len(body) == 0 {
			return fmt.Errorf("the package has no %s", name)
		}
		a.file(fmt.Sprintf("modules/%02d-%s.ko", i, path.Base(m)), body)
	}
	for name, from := range files {
		body, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		a.file(name, body)
	}
	return a.end()
}

func unxz(ctx context.Context, packed []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout")
	cmd.Stdin = bytes.NewReader(packed)
	return cmd.Output()
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
