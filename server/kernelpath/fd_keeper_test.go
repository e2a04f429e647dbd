package kernelpath

// Inside the package: it needs the objects that Open has loaded.

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// childEnv is set in the process that TestKilledProcess starts and kills.
const childEnv = "NODENS_TEST_DOOMED"

// linkCount is how many links the killed process has. Closing one takes the kernel about ten
// milliseconds, so that the first check afterwards still finds most of them.
const linkCount = 48

// patience ends a test that would hang; no test depends on it.
const patience = 30 * time.Second

// TestKilledProcess checks that the sockets of a killed agent close first, so that nothing
// is sent to them any more, and that the kernel then detaches the programs.
func TestKilledProcess(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		attachAndWait(t)
	}
	openProgram(t)
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("a network of its own: ", err)
	}
	runCommand(t, "ip", "link", "set", "lo", "up")
	for i := range linkCount {
		runCommand(t, "ip", "link", "add", fmt.Sprintf("pod%d", i), "type", "veth", "peer", "name", fmt.Sprintf("in%d", i))
	}
	victim := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	victim.Env = append(os.Environ(), childEnv+"=1")
	out, err := victim.StdoutPipe()
	if err == nil {
		err = victim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Process.Kill() }()
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(at, err)
	}
	if n := countAttached(t); n != linkCount {
		t.Fatalf("%d links have the program, want %d", n, linkCount)
	}
	client, err := net.Dial("udp4", at[:len(at)-1])
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; {
		attached := countAttached(t) // before the socket, so that a delay between the two cannot look like the fault
		if isRefused(client) {
			break
		}
		if attached == 0 {
			t.Fatal("the socket has outlived all links: until it closes packets go to nobody")
		}
		if time.Since(start) > patience {
			t.Fatal("the socket of a process that was killed is still there")
		}
	}
	_ = victim.Wait()
	for start := time.Now(); countAttached(t) > 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%d links still have the program", countAttached(t))
		}
	}
}

// attachAndWait listens, attaches the programs to all interfaces, and waits to be killed.
func attachAndWait(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := openProgram(t)
	for i := range linkCount {
		l, err := net.InterfaceByName(fmt.Sprintf("pod%d", i))
		if err == nil {
			_, err = p.Update(l.Index, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println(c.LocalAddr())
	time.Sleep(patience)
	os.Exit(0)
}

// isRefused reports whether no socket receives what c sends.
func isRefused(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Write([]byte{0}); errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, syscall.ECONNREFUSED)
}

// countAttached returns the number of interfaces that have a program on the ingress.
func countAttached(t *testing.T) (n int) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		list, err := link.QueryPrograms(link.QueryOptions{Target: l.Index, Attach: ebpf.AttachTCXIngress})
		if err == nil && len(list.Programs) > 0 {
			n++
		}
	}
	return n
}

func runCommand(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
