// Command image makes the agent's container image for linux on amd64 and arm64, as one
// file in the layout of the OCI image specification, without a container engine, a
// registry or emulation. It is a module of its own, so that the agent's go.mod has none of
// its dependencies; `make image` runs it:
//
//	go -C daemonset/image run . -out "$PWD/bin/nodens-image.tar"
//
// It compiles the agent and takes iptables, with the libraries that it needs,
// from Debian packages. The image has no shell and no package manager. A bill of
// materials (SPDX 2.3) is in the image and beside the file.
//
// The same source and the same packages give the same bytes. apt-get downloads the
// packages from the machine's own sources and checks their signatures; they are kept
// outside of the repository, so later builds need no network. -update looks for newer ones.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	out, root         string
	name              string
	version, revision string
	arch              []string
	update            bool
	now               time.Time
	// top is the root directory of the repository.
	top string
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
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
		image, sbom, err := s.image(ctx, architectures[arch])
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		images = append(images, image)
		fmt.Fprintf(stdout, "%s: %s\n", arch, sbom.summary())
		if s.root != "" {
			return writeRoot(s.root, image.Layers)
		}
		beside := strings.TrimSuffix(s.out, ".tar") + "." + arch + ".spdx.json"
		if err := write(beside, func(w io.Writer) error { return sbom.write(w) }); err != nil {
			return err
		}
	}
	if err := write(s.out, func(w io.Writer) error { return oci.Write(w, s.name, s.now, images...) }); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "image: wrote %s to %s in %s; next: docs/how-to/install.md#build-the-image says how to bring it to your nodes\n",
		s.name, s.out, time.Since(start).Round(time.Second))
	return nil
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{}
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
func (s *settings) validate(tag string) error {
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
	// Both are linker flags, where a space would start another flag.
	for flag, value := range map[string]string{"version": s.version, "revision": s.revision} {
		if !linkerValue.MatchString(value) {
			return fmt.Errorf("-%s %q may only have letters, digits and the characters .-_+", flag, value)
		}
	}
	return nil
}

// linkerValue matches versions and revisions.
var linkerValue = regexp.MustCompile(`^[\w.+-]*$`)

// complete determines what the flags leave open: the repository's root, its revision and
// the creation time, which is $SOURCE_DATE_EPOCH, or the commit's time, or 1970.
func (s *settings) complete(ctx context.Context) error {
	top, err := firstLine(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}", agentModule)
	if err != nil {
		return fmt.Errorf("%w; run it in the directory daemonset/image", err)
	}
	s.top = top
	// Without git, as in a container that builds, neither is known.
	commit, err := firstLine(ctx, s.top, "git", "log", "-1", "--format=%H %ct")
	revision, seconds := "unknown", "0"
	if err == nil {
		revision, seconds, _ = strings.Cut(commit, " ")
		if changed, err := firstLine(ctx, s.top, "git", "status", "--porcelain", "--untracked-files=no"); err == nil && changed != "" {
			revision += "-changed"
		}
	}
	s.revision = cmp.Or(s.revision, revision)
	setting := "the commit's time"
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		setting, seconds = "SOURCE_DATE_EPOCH", epoch
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || at < 0 {
		return fmt.Errorf("%s is %q; give seconds since 1970", setting, seconds)
	}
	s.now = time.Unix(at, 0).UTC()
	return nil
}

// agentModule is the agent's module, which this one replaces by the directory above.
const agentModule = "github.com/nodens-dns/nodens"

// searchPath is where the agent finds iptables.
const searchPath = "/usr/local/bin:/usr/sbin:/usr/bin"

// image makes the image for one architecture and its bill of materials, which is also a
// file in it. The image has two layers: while the Debian packages stay the same, an upgrade
// downloads only the second, the agent.
func (s *settings) image(ctx context.Context, a architecture) (oci.Image, *sbom, error) {
	debs, err := a.packages(ctx, s.update)
	if err != nil {
		return oci.Image{}, nil, err
	}
	base, err := a.base(debs)
	if err != nil {
		return oci.Image{}, nil, err
	}
	agent, modules, err := s.compile(ctx, a)
	if err != nil {
		return oci.Image{}, nil, err
	}
	b, err := s.sbom(a, base, agent, modules)
	if err != nil {
		return oci.Image{}, nil, err
	}
	var text bytes.Buffer
	if err := b.write(&text); err != nil {
		return oci.Image{}, nil, err
	}
	agent = append(agent, oci.File{Path: sbomPath, Mode: 0o644, Body: text.Bytes()})
	return oci.Image{
		Architecture: a.name,
		Layers:       []oci.Layer{base.layer(), agent},
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

// write creates the file, or replaces it, only after all of it is written.
func write(path string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.Rename(part, path)
}

// output runs a program and returns its standard output. A nil env is this process's own
// environment, an empty dir its working directory.
func output(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(text), nil
}

// firstLine returns the first line of output.
func firstLine(ctx context.Context, dir, program string, args ...string) (string, error) {
	text, err := output(ctx, dir, nil, program, args...)
	line, _, _ := strings.Cut(text, "\n")
	return line, err
}
