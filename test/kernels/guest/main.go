// Command guest is the first process of a machine that test/kernels boots, which has
// nothing but the kernel, this program, the agent, the tests of server/kernelpath, and programs for
// rules. It mounts what they need, loads the kernel's modules, and makes the root read-only.
// Then it tries each feature of the agent in package test/rig/testbed's network, and writes a line
// for each on the console: "feature NAME: yes", "feature NAME: refused: LINE" or "replaced: LINE" with
// what the agent says, or "feature NAME: no: REASON". The last is the kernel path, about which it shows what it is
// asked for: that the program's package answers on this kernel, or that it refuses and says why. It
// writes "passed: …" last if all is well, and then it ends the machine. It must not be run anywhere
// else, and refuses to. Under the name contained it runs an agent in a container, for the feature of that name.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func main() {
	if os.Args[0] == contained {
		fmt.Fprintln(os.Stderr, "contained:", contain(os.Args[1:]))
		os.Exit(1)
	}
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
	if err := errors.Join(environment(), mounts(), modules(), readOnlyRoot()); err != nil {
		return "", err
	}
	links, err := pair()
	if err != nil {
		return "", err
	}
	word := ""
	err = features(func() (err error) {
		word, err = showKernelPath(want, links)
		return err
	})
	return word, err
}

// showKernelPath shows what is wanted of the kernel path.
func showKernelPath(want string, links []netlink.Link) (string, error) {
	switch want {
	case "answers":
		return answers(links)
	case "refuses":
		return refuses(true)
	case "lacks":
		return refuses(false)
	}
	return "", fmt.Errorf("%q is nothing that can be shown", want)
}

// environment is what the programs that this one starts get.
func environment() error {
	return errors.Join(os.Setenv("PATH", "/usr/sbin:/usr/bin"), os.Setenv("TMPDIR", "/tmp"))
}

// readOnlyRoot makes the root read-only, as the agent's container has it. /tmp and /run stay writable.
func readOnlyRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("making the root read-only: %w", err)
	}
	return nil
}

func mounts() error {
	var all error
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"}, {"tracefs", "/sys/kernel/tracing"}, {"cgroup2", "/sys/fs/cgroup"}, {"securityfs", "/sys/kernel/security"},
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
		if err != nil && !errors.Is(err, unix.EEXIST) {
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
