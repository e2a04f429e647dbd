// These tests use openOwnerTable and notify, which are not exported.

package netsetup

// Inside the package: the subprocess uses owner tables, which are not exported.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// roleEnv marks a process of this test binary that plays a part in a test of another one.
const roleEnv = "NODENS_TEST_NETSETUP_ROLE"

// subprocess is a process that runs TestSubprocess.
type subprocess struct{ cmd *exec.Cmd }

// startSubprocess starts a process and waits until it is ready. It ends when the test does.
func startSubprocess(t *testing.T, name string) subprocess {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSubprocess$", "-test.count=1")
	cmd.Env = append(os.Environ(), roleEnv+"="+name)
	cmd.Stderr = os.Stderr
	if name == "cluster" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	lives, life, err := os.Pipe() // for what the process starts, and for itself
	check.NoError(t, err)
	cmd.Stdin = lives
	stdout, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	lives.Close()
	t.Cleanup(func() {
		life.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the %s says %q, %v", name, line, err)
	}
	return subprocess{cmd}
}

// kill ends the process by SIGKILL, and returns when it is gone with all its files.
func (r subprocess) kill(t *testing.T) {
	t.Helper()
	check.NoError(t, r.cmd.Process.Kill())
	_ = r.cmd.Wait() // killed, it says
}

// TestSubprocess is no test but the processes of others.
func TestSubprocess(t *testing.T) {
	own := func() {
		if _, err := (&kernelNode{}).openOwnerTable(hostLocals(), 53); err != nil {
			t.Fatal(err)
		}
	}
	switch os.Getenv(roleEnv) {
	case "":
		t.Skip("is for other tests")
	case "agent":
		for _, l := range hostLocals() {
			serve(t, netip.AddrPortFrom(l, 53), "agent")
		}
		own()
	case "parent":
		own()
		child := exec.Command("cat") // lives as long as the test
		child.Stdin = os.Stdin
		check.NoError(t, child.Start())
	case "cluster":
		runLines(t, fmt.Sprintf(`ip link add v1 type veth peer name v0 netns %d
			ip link set lo up
			ip addr add 10.0.0.2/24 dev v1
			ip addr add 10.0.0.3/24 dev v1
			ip -6 addr add fd10::2/64 dev v1 nodad
			ip link set v1 up`, os.Getppid()))
		serve(t, netip.MustParseAddrPort("10.0.0.2:53"), "cluster")
		serve(t, netip.MustParseAddrPort("10.0.0.3:53"), "host")
		serve(t, netip.MustParseAddrPort("[fd10::2]:53"), "cluster")
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// setUpHost gives the namespace the agent's addresses, a link to the cluster DNS, which
// runs in a namespace of its own, and the rules of netfilter that stand there always. The
// reverse path is checked as strictly as can be.
func setUpHost(t *testing.T) {
	t.Helper()
	startSubprocess(t, "cluster")
	runLines(t, `ip link set lo up
		ip addr add 10.0.0.1/24 dev v0
		ip -6 addr add fd10::1/64 dev v0 nodad
		ip link set v0 up
		ip link add nodelocaldns type bridge
		ip link set nodelocaldns up
		ip addr add 169.254.20.10/32 dev nodelocaldns
		ip -6 addr add fd00:20::10/128 dev nodelocaldns nodad
		for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done
		rules() {
			for proto in udp tcp; do
				$1 -w -t raw -A OUTPUT -s $2 -p $proto --sport 53 -j NOTRACK
				$1 -w -t nat -A OUTPUT -d $2 -p $proto --dport 53 -j DNAT --to-destination $4
				$1 -w -t nat -A POSTROUTING -s $2 -d $3 ! -o lo -p $proto --dport 53 -j MASQUERADE
			done
		}
		rules iptables 169.254.20.10 10.0.0.2 10.0.0.2:53
		rules ip6tables fd00:20::10 fd10::2 [fd10::2]:53`)
}

// wantAnswers asks all local addresses over both protocols once each.
func wantAnswers(t *testing.T, want string) {
	t.Helper()
	for _, l := range hostLocals() {
		for _, network := range []string{"udp", "tcp"} {
			if got := ask(network, netip.AddrPortFrom(l, 53)); got != want {
				t.Fatalf("%v over %s: %q, want %q", l, network, got, want)
			}
		}
	}
}

// sendQueries asks a local address over UDP, again and again from one socket, until the cluster
// DNS answers, and fails the test if a port is closed at any time. It sends on answered
// when an agent has answered.
func sendQueries(t *testing.T, l netip.Addr, answered chan<- struct{}) {
	conn, err := net.Dial("udp", netip.AddrPortFrom(l, 53).String())
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	go func() {
		for { // so slowly that no buffer on the way is ever full
			time.Sleep(50 * time.Microsecond)
			if _, err := conn.Write([]byte("?")); errors.Is(err, net.ErrClosed) {
				return
			} else if errors.Is(err, unix.ECONNREFUSED) {
				t.Error("a port is closed")
			}
		}
	}()
	for b := make([]byte, 16); ; {
		n, err := conn.Read(b)
		if errors.Is(err, unix.ECONNREFUSED) {
			t.Error("a port is closed")
		}
		switch string(b[:n]) {
		case "agent":
			notify(answered)
		case "cluster":
			return
		}
	}
}
