package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// PauseArg is the first argument when this package starts its own program again. The program must
// then call Pause with the remaining arguments.
const PauseArg = "pause-namespaces"

// readyLine is what Pause writes when the namespaces are set up.
const readyLine = "ready\n"

// pauseConfig configures Pause.
type pauseConfig struct {
	// name is the node's, and dir a folder of its own; without a name, Pause
	// sets up no mounts.
	name, dir string
}

func (h pauseConfig) args() []string {
	if h.name == "" {
		return nil
	}
	return []string{h.name, h.dir}
}

// Pause holds the namespaces that the process was started in. With a node's name and
// folder it first gives it mounts of its own and settings of a router, and is its first
// process. It returns when its standard input ends.
func Pause(stdin io.Reader, stdout io.Writer, args []string) error {
	if len(args) == 2 {
		h := pauseConfig{name: args[0], dir: args[1]}
		if err := errors.Join(unix.Sethostname([]byte(h.name)), h.mountAll(), h.configureRouter()); err != nil {
			return err
		}
		go reapOrphans()
	}
	if _, err := io.WriteString(stdout, readyLine); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, stdin)
	return err
}

// reapOrphans reaps orphaned processes, which become children of the first process.
func reapOrphans() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}

// sysctls are what kubelet wants the whole machine to have. It finds them here, in
// files that lie over the kernel's, and so has nothing to change.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mount is one mount.
type mount struct {
	source, target, kind string
	flags                uintptr
}

func (m mount) mount() error {
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", m.target, err)
	}
	return nil
}

// mountAll gives the node a view of the machine's files of its own: what it writes in
// /etc, /run, /var/lib and /var/log is its own, and so are processes and devices.
func (h pauseConfig) mountAll() error {
	groups := filepath.Join(h.dir, "cgroup")
	list := []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		// sysfs shows the network of who mounts it, without the control groups.
		{cgroupRoot, groups, "", unix.MS_BIND | unix.MS_REC},
		{"sysfs", "/sys", "sysfs", 0},
		{groups, cgroupRoot, "", unix.MS_BIND | unix.MS_REC},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{filepath.Join(h.dir, "lib"), "/var/lib", "", unix.MS_BIND},
		{filepath.Join(h.dir, "log"), "/var/log", "", unix.MS_BIND},
		{filepath.Join(h.dir, "etc"), "/etc", "", unix.MS_BIND},
	}
	for _, dir := range []string{"cgroup", "lib", "log"} {
		if err := os.Mkdir(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	for name, value := range sysctls {
		file := filepath.Join(h.dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		list = append(list, mount{file, filepath.Join("/proc/sys", name), "", unix.MS_BIND})
	}
	// Volumes that kubelet mounts have to be seen by containerd.
	list = append(list, mount{"", "/", "", unix.MS_REC | unix.MS_SHARED})
	for _, m := range list {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return unix.Unmount(groups, unix.MNT_DETACH)
}

// configureRouter lets the node's network pass on packets, and has bridged ones go through the
// rules of kube-proxy.
func (h pauseConfig) configureRouter() error {
	for name, value := range map[string]string{
		"ipv4/ip_forward":                 "1",
		"ipv6/conf/all/forwarding":        "1",
		"ipv6/conf/all/accept_dad":        "0",
		"ipv6/conf/default/accept_dad":    "0",
		"bridge/bridge-nf-call-iptables":  "1",
		"bridge/bridge-nf-call-ip6tables": "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
			return fmt.Errorf("setting up the node's network: %w", err)
		}
	}
	return nil
}
