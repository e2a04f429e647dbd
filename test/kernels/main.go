// Command kernels tests answers from inside the kernel on the kernels of Debian's releases. It boots
// each in a virtual machine, loads the product's program, attaches it to an interface, and runs the
// tests of server/kernelpath, those of the verifier and the fuzzer among them:
//
//	go run ./test/kernels
//
// On a kernel that is too old the agent must say what is missing. The machine is fully emulated, so
// that it also runs inside virtual machines; a kernel takes a minute. The kernels are Debian
// packages, identified by version and hash, downloaded once (30 MB each) and kept in the tests' cache
// (package daemonset/debian). The command needs qemu-system-x86, xz-utils and amd64.
package main

import (
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
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
	talk := fs.Bool("v", false, "show all that the machines write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	chosen := slices.DeleteFunc(kernels(), func(k kernel) bool { return !k.of(*only) })
	if len(chosen) == 0 {
		return fmt.Errorf("-kernel %q is the version of none; there are %s", *only, releases())
	}
	if err := usable(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodens-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := build(ctx, dir)
	if err != nil {
		return err
	}
	var failed error
	for _, k := range chosen {
		began := time.Now()
		said, err := k.try(ctx, dir, files)
		if *talk || err != nil {
			fmt.Fprintf(stdout, "%s\n", said)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", k.release, err))
			continue
		}
		fmt.Fprintf(stdout, "%-28s %s (%.0f s)\n", k.release, passed(said), time.Since(began).Seconds())
	}
	return failed
}

func releases() string {
	var all []string
	for _, k := range kernels() {
		all = append(all, k.release)
	}
	return strings.Join(all, ", ")
}

// usable says what this machine lacks; nil if nothing.
func usable() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the kernels are amd64's, and this is %s", runtime.GOARCH)
	}
	for _, program := range []string{emulator, "xz", "ip", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w; on Debian, as root: sh test/install.sh %s xz ip", err, emulator)
		}
	}
	return nil
}

// build makes what runs in the machines, and gives it by its path there.
func build(ctx context.Context, dir string) (map[string]string, error) {
	root, err := peer.Root()
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"init":            filepath.Join(dir, "init"),
		"kernelpath.test": filepath.Join(dir, "kernelpath.test"),
	}
	for _, args := range [][]string{
		{"build", "-o", files["init"], "./test/kernels/guest"},
		{"test", "-c", "-o", files["kernelpath.test"], "./server/kernelpath"},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = root
		// Nothing else is there to run: no C library.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=off")
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text)
		}
	}
	return files, program(files, "ip")
}

// program adds a program of this machine to files, with the libraries that it needs.
func program(files map[string]string, name string) error {
	found, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	files["bin/"+name] = found
	return libraries(files, found)
}

// libraries adds those that the program or library at file needs, where Debian has them.
func libraries(files map[string]string, file string) error {
	e, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer e.Close()
	needed, err := e.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, library := range needed {
		name := "lib/x86_64-linux-gnu/" + library
		if strings.HasPrefix(library, "ld-linux") {
			name = "lib64/" + library
		}
		if _, there := files[name]; there {
			continue
		}
		files[name] = "/" + name
		if err := libraries(files, "/"+name); err != nil {
			return err
		}
	}
	return nil
}
