// Command guest is the first process of a machine that test/kernels boots, which has
// nothing but the kernel, this program and the tests. It mounts what they need, loads the
// kernel's modules, makes a pair of links, and shows what it is asked for: that the
// program's package answers on this kernel, or that it refuses and says why. What it has to
// say it writes on the console, "passed: …" last if all is well, and then it ends the
// machine. It must not be run anywhere else, and refuses to.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/server/kernelpath"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest is the first process of a virtual machine: go run ./test/kernels")
		os.Exit(1)
	}
	word, err := show(os.Args[len(os.Args)-1])
	if err != nil {
		fmt.Printf("failed: %v\n", err)
	} else {
		fmt.Printf("passed: %s\n", word)
	}
	unix.Sync()
	fmt.Println(unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// show does what is wanted and says what it has seen.
func show(want string) (string, error) {
	if err := errors.Join(mounts(), modules()); err != nil {
		return "", err
	}
	links, err := pair()
	if err != nil {
		return "", err
	}
	switch want {
	case "answers":
		return answers(links)
	case "refuses":
		return refuses()
	}
	return "", fmt.Errorf("%q is nothing that can be shown", want)
}

func mounts() error {
	var all error
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"}, {"tracefs", "/sys/kernel/tracing"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			all = errors.Join(all, fmt.Errorf("mounting %s: %w", m.at, err))
		}
	}
	return all
}

// modules loads what the kernel has apart, in the order of names.
func modules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("loading %s: %w", file, err)
		}
	}
	return nil
}

// pair makes two ends of a link, and sets them and the loopback up.
func pair() (ends []netlink.Link, err error) {
	err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "node0"}, PeerName: "pod0"})
	if err != nil {
		return nil, fmt.Errorf("making a pair of links: %w", err)
	}
	for _, name := range []string{"node0", "pod0", "lo"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return nil, err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("setting %s up: %w", name, err)
		}
		ends = append(ends, l)
	}
	return ends[:2], nil
}

// answers shows that the program is loaded, that links take it, and that its tests pass.
func answers(links []netlink.Link) (string, error) {
	p, err := kernelpath.Open(kernelpath.Options{})
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if _, err := p.Update(l.Attrs().Index, false); err != nil {
			return "", fmt.Errorf("attaching to %s: %w", l.Attrs().Name, err)
		}
	}
	if n, _ := p.Links(); n != len(links) {
		return "", fmt.Errorf("%d links have the program, not %d", n, len(links))
	}
	if err := p.Close(); err != nil {
		return "", err
	}
	counted, err := tests(".")
	return "loaded, attached; " + counted, errors.Join(err, limited())
}

// limited runs the tests of loading with the rights that it takes and no others. PERFMON is
// one of them: without it the verifier of kernels before 6.17 refuses addresses that vary,
// as they are in every loop, because a processor may guess them.
func limited() error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread never has its rights back
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			if c == unix.CAP_BPF || c == unix.CAP_NET_ADMIN || c == unix.CAP_PERFMON {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				done <- fmt.Errorf("giving up right %d: %w", c, err)
				return
			}
		}
		_, err := tests("^(TestVerifier|TestOpen|TestAnswers)$")
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("with the capabilities BPF, NET_ADMIN and PERFMON only: %w", err)
	}
	return nil
}

// tests runs those tests of the package whose names match.
func tests(names string) (counted string, err error) {
	cmd := exec.Command("/kernelpath.test", "-test.v", "-test.short", "-test.count=1", "-test.run", names)
	cmd.Dir = "/tmp"
	cmd.Env = []string{"PATH=/bin", "TMPDIR=/tmp"}
	text, err := cmd.CombinedOutput()
	fmt.Printf("%s\n", text)
	if err != nil {
		return "", fmt.Errorf("the package's tests: %w", err)
	}
	passed, skipped := strings.Count(string(text), "\n--- PASS"), strings.Count(string(text), "\n--- SKIP")
	if passed == 0 {
		return "", errors.New("none of the package's tests has passed")
	}
	return fmt.Sprintf("%d tests passed, %d skipped", passed, skipped), nil
}

// refuses shows that the package says in plain words that the kernel is too old, although
// its verifier has nothing against the program.
func refuses() (string, error) {
	if _, err := tests("^TestVerifier$"); err != nil {
		return "", err
	}
	if err := limited(); err != nil {
		return "", err
	}
	p, err := kernelpath.Open(kernelpath.Options{})
	if err == nil {
		return "", errors.Join(errors.New("the program was loaded where it should not"), p.Close())
	}
	for _, word := range []string{"tcx", "6.6"} {
		if !errors.Is(err, kernelpath.ErrUnsupported) || !strings.Contains(err.Error(), word) {
			return "", fmt.Errorf("the error is %q: it has to be ErrUnsupported, and name %s", err.Error(), word)
		}
	}
	return "refused: " + err.Error(), nil
}
