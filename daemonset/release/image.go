package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/nodens-dns/nodens/daemonset/debian"
	"github.com/nodens-dns/nodens/daemonset/release/oci"
)

// imageSettings are the flags of image.
type imageSettings struct {
	source
	out, root, name string
	arch            []string
	update          bool
}

// runImage makes the agent's container image, for linux on amd64 and arm64, as one file in the
// layout of the OCI image specification, with a bill of materials (SPDX 2.3) in the image and
// beside the file.
//
// It compiles the agent and takes iptables, with the libraries that it needs, from Debian
// packages. The image has no shell and no package manager. apt-get downloads the packages from
// the machine's own sources and checks their signatures; they are kept outside of the
// repository, so later builds need no network. -update looks for newer ones.
func runImage(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parseImage(args, stderr)
	if err != nil {
		return err
	}
	if err := s.complete(ctx); err != nil {
		return err
	}
	start := time.Now()
	var images []oci.Image
	for i, arch := range s.arch {
		fmt.Fprintf(stderr, "image: %s, %d of %d: compiling nodens and adding Debian packages; the first time takes minutes\n", arch, i+1, len(s.arch))
		image, sbom, err := s.image(ctx, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		images = append(images, image)
		fmt.Fprintf(stdout, "%s: %s\n", arch, sbom.summary())
		if s.root != "" {
			return writeRoot(s.root, image.Layers)
		}
		beside := strings.TrimSuffix(s.out, ".tar") + "." + arch + ".spdx.json"
		if err := write(beside, sbom.write); err != nil {
			return err
		}
	}
	err = write(s.out, func(w io.Writer) error {
		_, err := oci.Write(w, s.name, s.now, images...)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "image: wrote %s to %s in %s; next: docs/how-to/install.md#build-the-image says how to bring it to your nodes\n",
		s.name, s.out, time.Since(start).Round(time.Second))
	return nil
}

func parseImage(args []string, stderr io.Writer) (*imageSettings, error) {
	s := &imageSettings{}
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.out, "out", "", "`file` to write the image to")
	fs.StringVar(&s.root, "root", "", "instead of -out: `directory` to write the image's files to, for one architecture")
	fs.StringVar(&s.name, "name", "nodens:0.1.0", "`name` of the image, with a tag")
	arch := fs.String("arch", "amd64,arm64", "comma-separated `architectures`")
	fs.StringVar(&s.version, "version", "", "`version` that the agent reports (default: the tag of -name)")
	fs.StringVar(&s.revision, "revision", "", "source `revision` that the agent reports (default: git's)")
	fs.BoolVar(&s.update, "update", false, "look for newer Debian packages than the cached ones")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; flags begin with a dash", fs.Arg(0))
	}
	s.arch = strings.Split(*arch, ",")
	_, tag, _ := strings.Cut(path.Base(s.name), ":")
	s.version = cmp.Or(s.version, tag)
	return s, s.validate(tag)
}

// validate returns an error for flags that contradict each other.
func (s *imageSettings) validate(tag string) error {
	for i, a := range s.arch {
		if _, ok := architectures[a]; !ok {
			return fmt.Errorf("-arch %q is unknown; give amd64, arm64, or both separated by a comma", a)
		}
		if slices.Contains(s.arch[:i], a) {
			return fmt.Errorf("-arch names %s twice", a)
		}
	}
	switch {
	case (s.out == "") == (s.root == ""):
		return errors.New("give either -out FILE for an image, or -root DIRECTORY for its files")
	case s.root != "" && len(s.arch) > 1:
		return errors.New("-root writes the files of one architecture; give -arch amd64 or -arch arm64")
	case tag == "":
		return fmt.Errorf("-name %q has no tag; give it one, such as nodens:0.1.0", s.name)
	}
	for flag, value := range map[string]string{"version": s.version, "revision": s.revision} {
		if !linkerValue.MatchString(value) {
			return fmt.Errorf("-%s %q may only have letters, digits and the characters .-_+", flag, value)
		}
	}
	return nil
}

// image makes the image for one architecture from scratch.
func (s *imageSettings) image(ctx context.Context, arch string) (oci.Image, *sbom, error) {
	debs, err := architectures[arch].packages(ctx, s.update)
	if err != nil {
		return oci.Image{}, nil, err
	}
	p, err := s.compile(ctx, "linux", arch)
	if err != nil {
		return oci.Image{}, nil, err
	}
	return s.assemble(p, debs)
}

// searchPath is where the agent finds iptables.
const searchPath = "/usr/local/bin:/usr/sbin:/usr/bin"

// assemble makes an image of a program and Debian packages for the same architecture, and its
// bill of materials, which is also a file in it. The image has two layers: while the Debian
// packages stay the same, an upgrade downloads only the second, the agent.
func (s source) assemble(p *program, debs []*debian.Package) (oci.Image, *sbom, error) {
	base, err := architectures[p.arch].base(debs)
	if err != nil {
		return oci.Image{}, nil, err
	}
	agent := p.layer()
	b, err := s.imageSBOM(base, p, agent)
	if err != nil {
		return oci.Image{}, nil, err
	}
	var text bytes.Buffer
	if err := b.write(&text); err != nil {
		return oci.Image{}, nil, err
	}
	agent[sbomPath] = &fstest.MapFile{Mode: 0o644, Data: text.Bytes()}
	return oci.Image{
		Architecture: p.arch,
		Layers:       []fs.FS{base.layer, agent},
		Entrypoint:   []string{"/" + agentPath},
		Env:          []string{"PATH=" + searchPath},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "nodens",
			"org.opencontainers.image.description": "Node-local DNS agent for Kubernetes",
			"org.opencontainers.image.source":      home,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     s.version,
			"org.opencontainers.image.revision":    s.revision,
		},
	}, b, nil
}

// writeRoot writes an image's files to the directory root, which must be empty or not exist
// yet. The files belong to the user who runs the command.
func writeRoot(root string, layers []fs.FS) error {
	if entries, err := os.ReadDir(root); err == nil && len(entries) > 0 {
		return fmt.Errorf("-root %s is not empty; give an empty directory, or one that does not exist", root)
	}
	for _, files := range layers {
		if err := os.CopyFS(root, files); err != nil {
			return err
		}
	}
	return nil
}

// runPack makes an image, for the architecture of this machine, of the files in a directory. The
// layer is not compressed.
func runPack(_ context.Context, args []string, _, stderr io.Writer) error {
	fset := flag.NewFlagSet("pack", flag.ContinueOnError)
	fset.SetOutput(stderr)
	root := fset.String("root", "", "`directory` with the files")
	name := fset.String("name", "", "`name` of the image, with a tag")
	out := fset.String("out", "", "`file` to write the image to")
	entrypoint := fset.String("entrypoint", "", "entry point: `words` separated by spaces")
	command := fset.String("command", "", "arguments after the entry point: `words` separated by spaces")
	env := fset.String("env", "", "environment: `NAME=value` words separated by spaces")
	if err := fset.Parse(args); err != nil {
		return err
	}
	if *root == "" || *out == "" {
		return errors.New("give -root and -out")
	}
	return write(*out, func(w io.Writer) error {
		_, err := oci.Write(w, *name, time.Unix(0, 0), oci.Image{
			Architecture: runtime.GOARCH,
			Layers:       []fs.FS{os.DirFS(*root)},
			Entrypoint:   strings.Fields(*entrypoint),
			Command:      strings.Fields(*command),
			Env:          strings.Fields(*env),
			Uncompressed: true,
		})
		return err
	})
}
