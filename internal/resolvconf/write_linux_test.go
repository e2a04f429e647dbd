package resolvconf_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mountTest is set in the process that has a mount namespace of its own.
const mountTest = "NODENS_TEST_MOUNT"

// TestBindMount: a file that is a mount point, as in a container, is written in place, and so is one in a directory that can't
// be written to.
func TestBindMount(t *testing.T) {
	if os.Getenv(mountTest) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBindMount$", "-test.v")
		cmd.Env = append(os.Environ(), mountTest+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	n := newNode(t, map[string]string{resolvPath: "", "/mounted": "search lan\nnameserver 192.0.2.1\n"})
	if err := syscall.Mount(n.at("/mounted"), n.at(resolvPath), "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(n.at(resolvPath), 0)
	before := n.tree()
	n.install()
	if got := n.read("/mounted"); got != head+"search lan\nnameserver 192.0.2.1\n" {
		t.Errorf("installed:\n%s", got)
	}
	n.remove()
	if diff := cmp.Diff(before, n.tree()); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(n.at("/etc/.nodens*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestOwner: a file of another user stays that user's.
func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a file away")
	}
	n := newNode(t, map[string]string{resolvPath: "nameserver 192.0.2.1\n"})
	if err := os.Chown(n.at(resolvPath), 101, 102); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(){n.install, n.remove} {
		step()
		info, err := os.Stat(n.at(resolvPath))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 101 || st.Gid != 102 {
			t.Errorf("the file belongs to %d:%d", st.Uid, st.Gid)
		}
	}
}
