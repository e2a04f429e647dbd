package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// contained is the name of this program under which it runs the agent in a container.
const contained = "/usr/bin/contained"

// The files of test/kernels that confine the container, and the name of the profile in the second.
const (
	seccompFile     = "/etc/seccomp.json"
	apparmorFile    = "/etc/apparmor-profile"
	apparmorProfile = "cri-containerd.apparmor.d"
)

// containerRoot is where the machine's root is bound for containers.
const containerRoot = "/run/root"

// container: the agent works as the container of the manifest. It writes and restores rules in each mode of kube-proxy, takes
// over from another one, and answers in the kernel if the kernel can.
func container(*node) (string, error) {
	if err := prepareContainers(); err != nil {
		return "", err
	}
	tries := []feature{{"a start", startsAnything}, {"confinement", confined}, {"hand-over", handOver}}
	for _, mode := range []string{testbed.ProxyIptablesNft, testbed.ProxyIptablesLegacy, testbed.ProxyNftables} {
		tries = append(tries, feature{"rules beside " + mode, containedRules(mode)})
	}
	if testbed.KernelPathUsable() == nil {
		tries = append(tries, feature{"kernel path", kernelAnswers})
	}
	for _, f := range tries {
		cell, err := inNetwork(contained, f.try)
		if err != nil {
			return "", fmt.Errorf("in a container, %s: %w", f.name, err)
		}
		if cell != yes {
			return cell, nil
		}
	}
	return yes, nil
}

// containedRules returns a feature: an agent in a container writes rules beside a kube-proxy in that mode.
func containedRules(mode string) func(n *node) (string, error) {
	return func(n *node) (string, error) {
		if err := n.KubeProxy(mode); err != nil {
			return n.withoutProxy(mode, err)
		}
		if mode == testbed.ProxyIptablesLegacy {
			mode = testbed.ProxyIptablesNft // the legacy mode needs NET_RAW, too
		}
		_, _, cell, err := n.keepsRules(mode)
		return cell, err
	}
}

// prepareContainers makes the root of containers, and loads their AppArmor profile.
func prepareContainers() error {
	err := os.Mkdir(containerRoot, 0o755)
	if err == nil {
		err = unix.Mount("/", containerRoot, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("the container's root: %w", err)
	}
	if out, err := exec.Command("apparmor_parser", "--skip-cache", apparmorFile).CombinedOutput(); err != nil {
		return fmt.Errorf("apparmor_parser: %w: %s", err, out)
	}
	return nil
}

// startsAnything: a program starts in a container.
func startsAnything(n *node) (string, error) {
	_, err := n.In(n.Node, contained, "-version")
	if err == nil {
		return yes, nil
	}
	words := oneLine(err.Error())
	if m := runcMessage.FindStringSubmatch(words); m != nil {
		words = m[1]
	}
	return fmt.Sprintf("not run: no program starts in a container: %s", words), nil
}

// runcMessage finds the message of runc's first log line, without the process ID.
var runcMessage = regexp.MustCompile(`msg="(?:nsexec\[\d+\]: )?([^"]+)"`)

// confined: both profiles hold for the agent, which stops without an error.
func confined(n *node) (string, error) {
	p, err := n.start()
	if err != nil {
		return "", err
	}
	if err := n.asked("in a container", testbed.FromAgent.String(), n.Pod, n.Node); err != nil {
		return "", err
	}
	if err := checkProfiles(); err != nil {
		return "", err
	}
	p.Stop()
	return yes, p.Err()
}

// checkProfiles checks that both profiles hold for the one process of the agent's program that is in a container.
func checkProfiles() error {
	agents, err := containedAgents()
	if err != nil || len(agents) != 1 {
		return errors.Join(err, fmt.Errorf("%d agents run in containers, want 1", len(agents)))
	}
	label, labelErr := os.ReadFile(agents[0] + "/attr/current")
	status, err := os.ReadFile(agents[0] + "/status")
	if err := errors.Join(labelErr, err); err != nil {
		return err
	}
	if got, want := strings.Trim(string(label), "\n\x00"), apparmorProfile+" (enforce)"; got != want {
		return fmt.Errorf("the agent's AppArmor profile is %q, want %q", got, want)
	}
	if !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		return fmt.Errorf("the agent has no seccomp filter: %s", status)
	}
	return nil
}

// containedAgents returns the folders in /proc of the agent's processes in other PID namespaces.
func containedAgents() (folders []string, err error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		comm, commErr := os.ReadFile(process + "/comm")
		namespace, nsErr := os.Readlink(process + "/ns/pid")
		if commErr == nil && nsErr == nil && string(comm) == "nodens\n" && namespace != own { // otherwise it is another one, or has ended
			folders = append(folders, process)
		}
	}
	return folders, err
}

// contain replaces this process with runc, which runs the agent with args in a container that has the network of this process. It
// returns only with an error.
func contain(args []string) error {
	// ip netns exec has mounted another /sys.
	if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mounting control groups: %w", err)
	}
	config, err := containerConfig(append([]string{agent}, args...))
	if err != nil {
		return err
	}
	bundle, err := os.MkdirTemp("", "bundle")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600); err != nil {
		return err
	}
	// pivot_root(2) can't leave the root that the kernel has unpacked.
	return unix.Exec("/usr/sbin/runc", []string{"runc", "--root=/run/runc", "run", "--no-pivot", "--bundle=" + bundle, filepath.Base(bundle)}, os.Environ())
}

// manifestCapabilities finds the capabilities in the manifest.
var manifestCapabilities = regexp.MustCompile(`(?m)^ +add: \[(.+)\]$`)

// containerConfig returns the configuration of runc for a container like the one of the manifest with the overlays seccomp and
// kernel-path: https://github.com/opencontainers/runtime-spec/blob/main/config.md.
func containerConfig(args []string) ([]byte, error) {
	added := manifestCapabilities.FindSubmatch(daemonset.Manifest)
	if added == nil {
		return nil, errors.New("the manifest adds no capabilities")
	}
	capabilities := []string{"CAP_BPF", "CAP_PERFMON"}
	for name := range strings.SplitSeq(string(added[1]), ", ") {
		capabilities = append(capabilities, "CAP_"+name)
	}
	text, err := os.ReadFile(seccompFile)
	if err != nil {
		return nil, err
	}
	var seccomp map[string]any
	if err := json.Unmarshal(text, &seccomp); err != nil {
		return nil, fmt.Errorf("%s: %w", seccompFile, err)
	}
	delete(seccomp, "archMap") // container engines replace it
	seccomp["architectures"] = []string{map[string]string{"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[runtime.GOARCH]}
	type object = map[string]any
	mount := func(at, kind, source string, options ...string) object {
		return object{"destination": at, "type": kind, "source": source, "options": options}
	}
	namespaces := []object{}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "cgroup"} {
		namespaces = append(namespaces, object{"type": kind})
	}
	return json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": args, "env": []string{"PATH=/usr/sbin:/usr/bin"},
			"capabilities":    object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
			"noNewPrivileges": true,
			"apparmorProfile": apparmorProfile,
		},
		"root": object{"path": containerRoot, "readonly": true},
		"mounts": []object{
			mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
			mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
			mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
			mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "noexec", "nodev", "ro"),
			// They have the configuration, the folder of the hand-over, and the lock of iptables.
			mount("/tmp", "bind", "/tmp", "bind"),
			mount("/run", "bind", "/run", "bind"),
		},
		"linux": object{
			"namespaces":    namespaces,
			"seccomp":       seccomp,
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			"maskedPaths":   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
		},
	})
}
