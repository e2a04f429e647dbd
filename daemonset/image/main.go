// Command image makes the agent's container image for linux on amd64 and arm64, as one
// file in the layout of the OCI image specification, without a container engine, a
// registry or a program of another architecture being run:
//
//	go run ./daemonset/image -out bin/nodens-image.tar
//
// It compiles the agent, and takes iptables and nft, with the libraries that they need
// and nothing else, out of Debian's packages. There is no shell in the image, and no
// package manager. What is in it stands in a bill of materials (SPDX 2.3), which is in
// the image and beside the file.
//
// The same source and the same packages give the same bytes. Packages come by apt-get,
// which checks their signatures, from where this machine gets its own, and are kept
// outside of the tree: later images need no network, and -update looks for newer ones.
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
	// top is the tree's folder.
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
	var images []oci.Image
	for _, arch := range s.arch {
		image, bill, err := s.image(ctx, architectures[arch])
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		images = append(images, image)
		fmt.Fprintf(stdout, "%s: %s\n", arch, bill.summary())
		if s.root != "" {
			return lay(s.root, image.Layers)
		}
		beside := strings.TrimSuffix(s.out, ".tar") + "." + arch + ".spdx.json"
		if err := write(beside, func(w io.Writer) error { return bill.write(w) }); err != nil {
			return err
		}
	}
	return write(s.out, func(w io.Writer) error { return oci.Write(w, s.name, s.now, images...) })
}

func parse(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{}
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.out, "out", "", "`file` to write the image to")
	fs.StringVar(&s.root, "root", "", "in place of -out: `folder` to lay the image's files out in, of one architecture")
	fs.StringVar(&s.name, "name", "nodens:0.1.0", "`name` of the image, with a tag")
	arch := fs.String("arch", "amd64,arm64", "comma-separated `architectures`")
	fs.StringVar(&s.version, "version", "", "`version` that the agent tells (default the name's tag)")
	fs.StringVar(&s.revision, "revision", "", "source `revision` that the agent tells (default git's)")
	fs.BoolVar(&s.update, "update", false, "look for newer Debian packages than those that are kept")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; flags begin with a dash", fs.Arg(0))
	}
	s.arch = strings.Split(*arch, ",")
	_, tag, _ := strings.Cut(path.Base(s.name), ":")
	s.version = cmp.Or(s.version, tag)
	return s, s.valid(tag)
}

// valid is an error for flags that don't go together.
func (s *settings) valid(tag string) error {
	for i, a := range s.arch {
		if _, ok := architectures[a]; !ok {
			return fmt.Errorf("-arch %q is not known; give amd64, arm64 or both with a comma", a)
		}
		if slices.Contains(s.arch[:i], a) {
			return fmt.Errorf("-arch names %s twice; each image is of one architecture", a)
		}
	}
	switch {
	case (s.out == "") == (s.root == ""):
		return errors.New("give either -out FILE for an image, or -root FOLDER for its files")
	case s.root != "" && len(s.arch) > 1:
		return errors.New("-root takes the files of one architecture; give -arch amd64 or -arch arm64")
	case tag == "":
		return fmt.Errorf("-name %q has no tag; give it one, such as nodens:0.1.0", s.name)
	}
	// They go to the linker, by which a blank begins another setting.
	for flag, value := range map[string]string{"version": s.version, "revision": s.revision} {
		if !word.MatchString(value) {
			return fmt.Errorf("-%s %q has something other than letters, digits and .-_+ in it", flag, value)
		}
	}
	return nil
}

// word is what a version or a revision is made of.
var word = regexp.MustCompile(`^[\w.+-]*$`)

// complete finds out what was not given: the tree, its revision and the time, which is
// $SOURCE_DATE_EPOCH, else the commit's, else 1970.
func (s *settings) complete(ctx context.Context) error {
	mod, err := first(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return err
	}
	if mod == "" || mod == os.DevNull {
		return errors.New("there is no go.mod above the working directory; run it in nodens' tree")
	}
	s.top = filepath.Dir(mod)
	// A tree without git, as in a container that builds, has neither.
	commit, err := first(ctx, s.top, "git", "log", "-1", "--format=%H %ct")
	revision, seconds := "unknown", "0"
	if err == nil {
		revision, seconds, _ = strings.Cut(commit, " ")
		if changed, err := first(ctx, s.top, "git", "status", "--porcelain", "--untracked-files=no"); err == nil && changed != "" {
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
		return fmt.Errorf("%s is %q; it has to be seconds since 1970", setting, seconds)
	}
	s.now = time.Unix(at, 0).UTC()
	return nil
}

// searchPath is where the agent's programs are.
const searchPath = "/usr/local/bin:/usr/sbin:/usr/bin"

// image makes the image for one architecture, with its bill of materials, which is a
// file of it too. There are two layers: the second, which is the agent, is all that a
// node fetches in an upgrade while Debian's packages stay the same.
func (s *settings) image(ctx context.Context, a architecture) (oci.Image, *bill, error) {
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
	b := s.bill(a, base, agent, modules)
	var text bytes.Buffer
	if err := b.write(&text); err != nil {
		return oci.Image{}, nil, err
	}
	agent = append(agent, oci.File{Path: billPath, Mode: 0o644, Body: text.Bytes()})
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

// write makes a file under its name only when all of it is there.
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

// output runs a program to its end and returns what it writes. A nil env is this
// process's own, an empty dir its working directory.
func output(ctx context.Context, dir string, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, env
	var said bytes.Buffer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return string(text), nil
}

// first is the first line of output.
func first(ctx context.Context, dir, program string, args ...string) (string, error) {
	text, err := output(ctx, dir, nil, program, args...)
	line, _, _ := strings.Cut(text, "\n")
	return line, err
}
