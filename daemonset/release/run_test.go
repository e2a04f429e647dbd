package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// container is where an image's files are all there is: its folder is the root of the
// programs that are run, with a network of their own.
type container struct {
	t    *testing.T
	root string
	uid  uint32
}

// bindNull gives a container's root directory the file /dev/null, as every runtime does.
func bindNull(root string) error {
	null := filepath.Join(root, "dev", "null")
	return errors.Join(
		os.MkdirAll(filepath.Dir(null), 0o755),
		os.WriteFile(null, nil, 0o644),
		unix.Mount("/dev/null", null, "", unix.MS_BIND, ""),
	)
}

// inContainer runs body on a thread with a network and mounts of its own, whose programs
// get these capabilities and no others. What is left there goes with the thread.
func inContainer(t *testing.T, root string, capabilities []uintptr, body func(c container)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		proc := filepath.Join(root, "proc")
		err := errors.Join(
			unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			os.MkdirAll(proc, 0o755),
			unix.Mount("proc", proc, "proc", 0, ""),
			bindNull(root),
			exec.Command("ip", "link", "set", "lo", "up").Run(),
			unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		)
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			dropped := true
			for _, kept := range capabilities {
				dropped = dropped && c != kept
			}
			if dropped {
				err = errors.Join(err, unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0))
			}
		}
		if err != nil {
			t.Errorf("making a container: %v", err)
			return
		}
		body(container{t: t, root: root})
	}()
	<-done
}

func (c container) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + searchPath}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root, Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
	return cmd
}

// run is what a program writes.
func (c container) run(program string, args ...string) string {
	out, err := c.command(program, args...).CombinedOutput()
	if err != nil {
		c.t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// agent runs the agent while body runs, once it serves.
func (c container) agent(body func(), args ...string) {
	cmd := c.command("/"+agentPath, append([]string{"-conf", "/etc/Corefile", "-metrics-listen-address="}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Error(err)
		return
	}
	// A bound on the wait: an agent that does not get as far is killed, which ends its log.
	bound := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer bound.Stop()
	var log strings.Builder
	serves := false
	for lines := bufio.NewScanner(stderr); !serves && lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		serves = strings.Contains(lines.Text(), "msg=serving")
	}
	if serves {
		body()
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(&log, stderr)
	if err := cmd.Wait(); err != nil || !serves {
		c.t.Errorf("the agent served: %v; its end: %v; its log:\n%s", serves, err, &log)
	}
}

// checkRuns: the agent does its work with nothing but the image's files around it, with
// the rights of its pods.
func checkRuns(t *testing.T, root string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	const corefile = ".:53 {\n  bind 169.254.20.10\n  health 169.254.20.10:8080\n  cache 30\n  forward . 127.0.0.1:5300\n}\n"
	if err := os.WriteFile(filepath.Join(root, "etc", "Corefile"), []byte(corefile), 0o644); err != nil {
		t.Fatal(err)
	}
	pods := []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE}
	tests := []struct {
		name         string
		capabilities []uintptr
		args         []string // of the agent
		before, look []string // programs
		want         string   // in what look writes, while the agent runs
	}{
		{"iptables-nft", pods, []string{"-netfilter=iptables"}, nil, []string{"iptables-nft-save"}, "NODENS-PREROUTING"},
		// Whoever manages the node's rules leaves such a chain, for others to see how. The
		// legacy flavour takes one capability more.
		{"iptables-legacy", append([]uintptr{unix.CAP_NET_RAW}, pods...), []string{"-netfilter=iptables"},
			[]string{"iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"}, []string{"iptables-legacy-save"}, "NODENS-PREROUTING"},
		{"nftables", pods, []string{"-netfilter=nftables"}, nil, nil, "table inet nodens"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inContainer(t, root, tt.capabilities, func(c container) {
				if tt.before != nil {
					c.run("/usr/sbin/"+tt.before[0], tt.before[1:]...)
				}
				look := func() string {
					if tt.look != nil {
						return c.run("/usr/sbin/"+tt.look[0], tt.look[1:]...)
					}
					out, err := exec.Command("nft", "list", "ruleset").CombinedOutput() // the machine's: the image has none
					if err != nil {
						t.Error(err)
					}
					return string(out)
				}
				c.agent(func() {
					if got := look(); !strings.Contains(got, tt.want) {
						t.Errorf("%q is not among the rules:\n%s", tt.want, got)
					}
				}, append(tt.args, "-localip", "169.254.20.10")...)
				if got := look(); strings.Contains(got, tt.want) {
					t.Errorf("the agent has left its rules behind:\n%s", got)
				}
			})
		})
	}
	t.Run("check", func(t *testing.T) {
		inContainer(t, root, nil, func(c container) {
			c.uid = 65534
			if got := c.run("/"+agentPath, "check", "-localip", "169.254.20.10", "-conf", "/etc/Corefile"); !strings.Contains(got, "169.254.20.10") {
				t.Errorf("it says\n%s", got)
			}
			if got := c.run("/"+agentPath, "-version"); !strings.Contains(got, "nodens-0.1.0") || !strings.Contains(got, "abc123") {
				t.Errorf("it says it is %s", got)
			}
		})
	})
	// As in the overlay cilium: an address of its own, and no rights at all.
	t.Run("nobody", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(root, "etc", "Corefile"), []byte(".:53 {\n  forward . 127.0.0.1:5300\n}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		inContainer(t, root, nil, func(c container) {
			c.uid = 65534
			// The kernel takes it as of the network of the thread that writes.
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("53"), 0); err != nil {
				t.Error(err)
				return
			}
			c.agent(func() {}, "-setupinterface=false", "-netfilter=none")
		})
	})
}
