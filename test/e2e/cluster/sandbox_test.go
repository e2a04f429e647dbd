package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == PauseArg {
		if err := Pause(os.Stdin, os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// newSandbox makes a sandbox that is closed at the test's end at the latest, in a cluster that
// has nothing else.
func newSandbox(t *testing.T, flags uintptr) (*Cluster, *sandbox) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces take root")
	}
	c := &Cluster{options: Options{Dir: t.TempDir()}, cgroup: cgroupName(os.Getpid(), clusterCount.Add(1))}
	if err := os.Mkdir(c.path("logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.initialState, err = readHostState(); err != nil {
		t.Fatal(err)
	}
	if c.control, err = c.openSandbox(flags, pauseConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	return c, c.control
}

// TestDial: a connection is made in the sandbox, and this process stays where it is.
func TestDial(t *testing.T) {
	c, r := newSandbox(t, syscall.CLONE_NEWNET)
	if err := r.runIP(t.Context(), "link set lo up", "addr add 192.0.2.7/32 dev lo"); err != nil {
		t.Fatal(err)
	}
	// The address exists only inside, without a listener: the kernel refuses the connection.
	_, err := c.Dial(t.Context(), "tcp", "192.0.2.7:9")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing inside: %v", err)
	}
	links, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range links {
		if strings.HasPrefix(a.String(), "192.0.2.7/") {
			t.Error("the sandbox's address is this process's too")
		}
	}
	if _, err := c.Dial(t.Context(), "tcp", "localhost:9"); err == nil {
		t.Error("a name was dialed")
	}
}

// TestSandboxClose: processes in a sandbox with a process namespace end with it, and are seen until
// then.
func TestSandboxClose(t *testing.T) {
	c, r := newSandbox(t, syscall.CLONE_NEWNET|syscall.CLONE_NEWPID)
	argv := r.nsenterArgs([]string{"net", "pid"}, "sleep", "600")
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err := peer.Await(t.Context(), "sleep", func(context.Context) error {
		left, err := c.remainingProcesses()
		if err == nil && !slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, "(sleep)") }) {
			err = fmt.Errorf("only %q", left)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	if len(c.leftProcesses) > 0 {
		t.Errorf("%q is left", c.leftProcesses)
	}
}

// TestHostStateDiff: what is new, other or gone is named, and nothing else.
func TestHostStateDiff(t *testing.T) {
	was := hostState{"link lo": "up", "link a": "up", "setting": "0", "rules": ""}
	got := was.diff(hostState{"link lo": "up", "link b": "up", "setting": "1", "rules": ""})
	if want := []string{"link a is gone", "link b", "setting"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	now, err := readHostState()
	if err != nil || now["link lo"] == "" || now["setting kernel/panic"] == "" {
		t.Errorf("this machine is %v, %v", now, err)
	}
}

// TestLeftovers: a process that joined the sandbox's network from elsewhere is still there when the
// sandbox is closed, and is named.
func TestLeftovers(t *testing.T) {
	c, r := newSandbox(t, syscall.CLONE_NEWNET)
	argv := r.nsenterArgs([]string{"net"}, "cat")
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "up\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("process %d (cat) in a net namespace", cmd.Process.Pid)
	if !slices.Equal(c.leftProcesses, []string{want}) {
		t.Errorf("%q is left, want %q", c.leftProcesses, want)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSignalChild: a signal reaches the program and not only the nsenter before it.
func TestSignalChild(t *testing.T) {
	_, r := newSandbox(t, syscall.CLONE_NEWPID)
	argv := r.nsenterArgs([]string{"pid"}, "sh", "-c", "trap 'echo told; exit 7' TERM; echo up; while :; do sleep 0.05; done")
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	if err := signalChild(cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	if err != nil || string(text) != "told\n" {
		t.Errorf("it says %q, %v", text, err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ends with %v, want 7", err)
	}
	if err := signalChild(cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Errorf("telling nobody: %v", err)
	}
}

// TestCommandCancel: the end of the context ends a program on a node, with what waits for it.
func TestCommandCancel(t *testing.T) {
	c, r := newSandbox(t, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET|syscall.CLONE_NEWUTS|syscall.CLONE_NEWIPC|syscall.CLONE_NEWPID)
	n := &Node{cluster: c, sandbox: r}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := n.Command(ctx, "sh", "-c", "echo up; exec sleep 600")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("it has ended by itself")
	}
	err = peer.Await(t.Context(), "the end of sleep", func(context.Context) error {
		left, err := c.remainingProcesses()
		if err == nil && slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, "(sleep)") }) {
			err = errors.New("it is there")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCgroups: groups are made with what processes in them need, and removed with all
// below them; those of a process that is gone are swept, and no others.
func TestCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("control groups take root")
	}
	own := cgroupName(os.Getpid(), clusterCount.Add(1))
	if err := createCgroup(own + "/node/pod"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeCgroup(context.Background(), own); err != nil {
			t.Error(err)
		}
	})
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	orphan := cgroupName(gone.Process.Pid, 1)
	if err := createCgroup(orphan + "/node"); err != nil {
		t.Fatal(err)
	}
	if err := removeStaleCgroups(); err != nil {
		t.Fatal(err)
	}
	roots, err := cgroupHierarchies()
	if err != nil || len(roots) == 0 {
		t.Fatal(roots, err)
	}
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, orphan)); err == nil {
			t.Errorf("%s/%s is not swept", root, orphan)
		}
		cpus, err := os.ReadFile(filepath.Join(root, own, "node", "pod", "cpuset.cpus"))
		if err == nil && strings.TrimSpace(string(cpus)) == "" {
			t.Errorf("%s/%s has no processors", root, own)
		}
	}
	c := &Cluster{cgroup: own}
	if left, err := c.leftCgroups(); err != nil || len(left) != len(roots) {
		t.Errorf("groups left: %q, %v", left, err)
	}
}

// TestParallel: one that fails ends the others.
func TestParallel(t *testing.T) {
	want := errors.New("no")
	began := time.Now()
	err := parallel(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		func(context.Context) error { return want },
	)
	if !errors.Is(err, want) {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

// TestOptions: what can't be is refused by name.
func TestOptions(t *testing.T) {
	good := Options{Dir: "/tmp/x", Nodes: 2, Proxy: "iptables"}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Options){
		"from the root":        func(o *Options) { o.Dir = "x" },
		"outside of /var/lib/": func(o *Options) { o.Dir = "/var/lib/x" },
		"27 nodes":             func(o *Options) { o.Nodes = 27 },
		`"ipvs"`:               func(o *Options) { o.Proxy = "ipvs" },
	} {
		o := good
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %s", err, want)
		}
	}
}
