// Command kernels tests the agent on the kernels of Debian's releases. It boots each in a virtual
// machine, and test/kernels/guest, which is the first process there, tries the agent's features: sockets,
// rules in each mode, hand-over, and answers from inside the kernel. It also runs the tests of
// server/kernelpath, including the verifier's and the fuzzer's:
//
//	go run ./test/kernels
//
// On a kernel that lacks something the agent must say what is missing. With -out the results go into
// the table of a document. The machines are fully emulated, so that they also run inside virtual
// machines and for other processors; a kernel takes some minutes. The kernels are Debian packages,
// identified by version and hash, and the programs that change rules are Debian's, too. All are
// downloaded once and kept in the tests' cache (package daemonset/debian). The command needs
// qemu-system-x86, qemu-system-arm and xz-utils.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("kernels", flag.ContinueOnError)
	fs.SetOutput(stderr)
	only := fs.String("kernel", "", "the `version` of the only kernel to try, such as 6.12 (default all)")
	out := fs.String("out", "", "the `document` in which to write the table; rows of kernels that are not tried stay")
	talk := fs.Bool("v", false, "show all that the machines write, while they do")
	if err := fs.Parse(args); err != nil {
		return err
	}
	chosen := slices.DeleteFunc(kernels(), func(k kernel) bool { return !k.of(*only) })
	if len(chosen) == 0 {
		return fmt.Errorf("-kernel %q is the version of none; there are %s", *only, releases())
	}
	if err := usable(chosen); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodens-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := trial{dir: dir, document: *out, stdout: stdout, follow: io.Discard, files: make(map[string][]entry)}
	if *talk {
		t.follow = stdout
	}
	var failed error
	for _, k := range chosen {
		if err := t.kernel(ctx, k); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", k.release, err))
		}
	}
	fmt.Fprint(stdout, "\n"+table(t.rows))
	return failed
}

// trial is a run of several kernels.
type trial struct {
	dir            string
	document       string // that gets the table; "" for none
	stdout, follow io.Writer
	files          map[string][]entry // of machines, by architecture
	rows           []row
}

// kernel tries one, and writes its row if there is anything in it and the run is not interrupted.
func (t *trial) kernel(ctx context.Context, k kernel) (err error) {
	if t.files[k.arch] == nil {
		if t.files[k.arch], err = build(ctx, t.dir, k.arch); err != nil {
			return err
		}
	}
	began := time.Now()
	said, err := k.try(ctx, t.dir, t.files[k.arch], t.follow)
	switch {
	case err == nil:
		fmt.Fprintf(t.stdout, "%-28s %s (%.0f s)\n", k.release, passed(said), time.Since(began).Seconds())
	case t.follow == io.Discard:
		fmt.Fprintf(t.stdout, "%s\n", said)
	}
	cells := parseFeatures(said)
	if len(cells) == 0 || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	r := row{k.version(), k.arch, cells}
	t.rows = append(t.rows, r)
	if t.document != "" {
		err = errors.Join(err, writeTable(t.document, []row{r}))
	}
	return err
}

func releases() string {
	var all []string
	for _, k := range kernels() {
		all = append(all, k.release)
	}
	return strings.Join(all, ", ")
}

// usable says what this machine lacks; nil if nothing.
func usable(chosen []kernel) error {
	wanted := []string{"xz", "apt-get", "dpkg-deb"}
	for _, k := range chosen {
		wanted = append(wanted, machines()[k.arch].emulator)
	}
	for _, program := range wanted {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w; on Debian, as root: sh test/install.sh qemu-system-x86_64 qemu-system-aarch64 xz", err)
		}
	}
	return nil
}

// profiles returns what confines the agent's container: the repository's seccomp profile, and containerd's AppArmor profile.
func profiles(ctx context.Context, root string) ([]entry, error) {
	seccomp, err := os.ReadFile(filepath.Join(root, "daemonset/seccomp/nodens.json"))
	if err != nil {
		return nil, err
	}
	program, _, err := peer.Tool(ctx, "apparmor-profile")
	if err != nil {
		return nil, err
	}
	apparmor, err := exec.CommandContext(ctx, program).Output()
	if err != nil {
		return nil, fmt.Errorf("containerd's AppArmor profile: %w", err)
	}
	return []entry{{name: "etc/seccomp.json", body: seccomp}, {name: "etc/apparmor-profile", body: apparmor}}, nil
}

// build returns what runs in the machines of an architecture.
func build(ctx context.Context, dir, arch string) ([]entry, error) {
	root, err := peer.Root()
	if err != nil {
		return nil, err
	}
	entries, err := programs(ctx, arch)
	if err != nil {
		return nil, err
	}
	confining, err := profiles(ctx, root)
	if err != nil {
		return nil, err
	}
	entries = append(append(entries, confining...), entry{name: "usr/bin/contained", link: "/init"})
	for _, b := range []struct {
		name string
		args []string
	}{
		{"init", []string{"build", "-ldflags=-s -w", "./test/kernels/guest"}},
		{"usr/bin/nodens", []string{"build", "-ldflags=-s -w", "./cmd/nodens"}},
		{"kernelpath.test", []string{"test", "-ldflags=-s -w", "-c", "./server/kernelpath"}},
	} {
		out := filepath.Join(dir, arch+"-"+filepath.Base(b.name))
		args := slices.Insert(slices.Clone(b.args), 1, "-o", out)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = root
		// The architecture may be another one than this machine's, which has no C compiler for it.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=off", "GOOS=linux", "GOARCH="+arch)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text)
		}
		body, err := os.ReadFile(out)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: b.name, body: body})
	}
	return entries, nil
}
