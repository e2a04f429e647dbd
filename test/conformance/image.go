package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// coreDNSRef is the image of the cluster's DNS in test/e2e/testdata/coredns.yaml.
const coreDNSRef = "coredns:e2e"

// registry is where the tests expect their images. The nodes have the images before the tests
// start, so nothing is pulled.
const registry = "registry.k8s.io/e2e-test-images/"

// testImages are the images that the DNS tests start, as regular expressions without the tags. Before Kubernetes 1.35, the
// second one is jessie-dnsutils.
var testImages = []string{"agnhost", "(glibc-dns-testing|jessie-dnsutils)"}

// writeImages writes the images of a release's cluster to dir and returns the files.
func (s *suite) writeImages(ctx context.Context, r *release, dir string) ([]string, error) {
	files := []string{s.agentImage}
	write := func(image cluster.Image) error {
		file := filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(image.Name)+".tar")
		files = append(files, file)
		return image.Write(ctx, file)
	}
	root := filepath.Join(dir, "coredns")
	if err := cluster.CopyFile(root, "coredns", s.coreDNS); err != nil {
		return nil, err
	}
	if err := write(cluster.Image{Name: coreDNSRef, Root: root, Entrypoint: []string{"/coredns"}}); err != nil {
		return nil, err
	}
	refs, err := r.imageRefs(ctx)
	if err != nil {
		return nil, err
	}
	// agnhost and the image with the DNS utilities have the same files: both are asked to run
	// the same commands.
	if root, err = s.writeUtilities(ctx, r, filepath.Join(dir, "utilities")); err != nil {
		return nil, err
	}
	for _, ref := range refs {
		image := cluster.Image{Name: ref, Root: root, Env: []string{"PATH=/bin"}, Entrypoint: []string{"/agnhost"}, Command: []string{"pause"}}
		if err := write(image); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// imageRefs returns the names and tags under which the release's test binary expects testImages.
func (r *release) imageRefs(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, r.tests, "-list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the images of the tests: %w", err)
	}
	var refs []string
	for _, name := range testImages {
		pattern := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(registry) + name + ":.*$")
		found := pattern.FindAllString(string(out), -1)
		if found == nil {
			return nil, fmt.Errorf("the tests name no image like %s%s:\n%s", registry, name, out)
		}
		refs = append(refs, found...)
	}
	return refs, nil
}

// writeUtilities writes the files of the test images below root: agnhost, CoreDNS, busybox, and
// this machine's dig, nslookup, host and getent, which are Debian's.
func (s *suite) writeUtilities(ctx context.Context, r *release, root string) (string, error) {
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "tmp"), 0o755),
		os.Chmod(filepath.Join(root, "tmp"), fs.ModeSticky|0o777),
		os.MkdirAll(filepath.Join(root, "etc"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/nsswitch.conf"), []byte("hosts: files dns\n"), 0o644),
	); err != nil {
		return "", err
	}
	agnhost, err := peer.Binary(ctx, peer.InRelease("agnhost", r.name), s.dir)
	if err != nil {
		return "", err
	}
	if err := errors.Join(cluster.CopyFile(root, "agnhost", agnhost), cluster.CopyFile(root, "coredns", s.coreDNS)); err != nil {
		return "", err
	}
	for _, name := range []string{"dig", "nslookup", "host", "getent"} {
		if err := addProgram(ctx, root, name); err != nil {
			return "", err
		}
	}
	return root, addShell(ctx, root)
}

// library is a line of ldd's output with a file: NAME => FILE (ADDRESS), or FILE (ADDRESS).
var library = regexp.MustCompile(`(?m)^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$`)

// addProgram adds a program of this machine to the folder bin below root, with its libraries.
func addProgram(ctx context.Context, root, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%w: run make conformance, which installs it on Debian", err)
	}
	if err := cluster.CopyFile(root, "bin/"+name, path); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("listing the libraries of %s: %w\n%s", name, err, out)
	}
	for _, line := range library.FindAllStringSubmatch(string(out), -1) {
		// The loader and the paths that it searches are the same in the image.
		if err := cluster.CopyFile(root, line[1], line[1]); err != nil {
			return err
		}
	}
	return nil
}

// addShell adds busybox under each of its names that is not there yet.
func addShell(ctx context.Context, root string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w: run make conformance, which installs it on Debian", err)
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("listing busybox's names: %w", err)
	}
	if err := cluster.CopyFile(root, "bin/busybox", busybox); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		err := os.Symlink("busybox", filepath.Join(root, "bin", name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
