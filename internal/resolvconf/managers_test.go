package resolvconf_test

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/resolvconf"
)

// fakeBus is a system bus that answers the calls of the agent for one client at a time.
type fakeBus struct {
	// calls are the members that were called, with the arguments.
	calls chan string
	// onCall, unless it is nil, does what the manager does.
	onCall func()
	// err, unless it is "", is the name of the error that calls get.
	err string
}

// nativeOrder is the byte order of messages.
var nativeOrder = binary.LittleEndian

// startBus gives n a system bus.
func (n *node) startBus(onCall func()) *fakeBus {
	n.t.Helper()
	dir, err := os.MkdirTemp("", "bus") // shorter than n.Root, for the socket's path
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { os.RemoveAll(dir) })
	n.write("/run/dbus/x", "")
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "s"), n.at("/run/dbus/system_bus_socket"))
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	n.bus = &fakeBus{calls: make(chan string, 16), onCall: onCall}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.bus.serve(c)
		}
	}()
	return n.bus
}

// serve answers one client until it closes the connection.
func (b *fakeBus) serve(c net.Conn) {
	defer c.Close()
	for line := ""; line != "BEGIN"; { // the handshake
		var err error
		if line, err = readLine(c); err != nil {
			return
		}
		switch {
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			_, _ = c.Write([]byte("OK 0123456789abcdef0123456789abcdef\r\n"))
		case strings.HasPrefix(line, "AUTH"):
			_, _ = c.Write([]byte("REJECTED EXTERNAL\r\n"))
		case line != "BEGIN":
			_, _ = c.Write([]byte("ERROR\r\n"))
		}
	}
	for {
		m, err := dbus.DecodeMessage(c)
		if err != nil {
			return
		}
		member, _ := m.Headers[dbus.FieldMember].Value().(string)
		reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf("")),
		}, Body: []any{":1.1"}}
		if member != "Hello" {
			b.call(member, m, reply)
		}
		if err := encode(c, reply); err != nil {
			return
		}
	}
}

// readLine reads a line of the handshake and nothing beyond it.
func readLine(c net.Conn) (line string, err error) {
	for b := make([]byte, 1); ; line += string(b) {
		if _, err := c.Read(b); err != nil || b[0] == '\n' {
			return strings.Trim(line, "\x00\r"), err
		}
	}
}

// call does what the manager does.
func (b *fakeBus) call(member string, m, reply *dbus.Message) {
	words := []string{member}
	for _, arg := range m.Body {
		words = append(words, strings.Trim(dbus.MakeVariant(arg).String(), `"@u `))
	}
	b.calls <- strings.Join(words, " ")
	if b.err != "" {
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(b.err)
		reply.Body = []any{"because"}
		return
	}
	if b.onCall != nil {
		b.onCall()
	}
}

func encode(c net.Conn, m *dbus.Message) error {
	// The library numbers the messages that it sends on a connection of its own only.
	var b strings.Builder
	if err := m.EncodeTo(&b, nativeOrder); err != nil {
		return err
	}
	text := []byte(b.String())
	nativeOrder.PutUint32(text[8:], 1) // the serial must not be 0
	_, err := c.Write(text)
	return err
}

// resolvedNode is a node with systemd-resolved, which reads its drop-in when it is told.
func resolvedNode(t *testing.T) *node {
	n := newNode(t, map[string]string{resolvPath: "->.." + stubPath, stubPath: stubText, uplinkPath: uplinkText})
	n.startBus(func() {
		text := uplinkText
		if drop, err := os.ReadFile(n.at(resolvedDropIn)); err == nil && strings.Contains(string(drop), "\nDNS="+agent+"\nDomains=~.\n") {
			text = "nameserver " + agent + "\n" + uplinkText
		}
		n.write(uplinkPath, text)
	})
	return n
}

// TestResolved: the drop-in, its effect, a DHCP change, and Remove.
func TestResolved(t *testing.T) {
	n := resolvedNode(t)
	before := n.tree()
	if s := n.state(); s.Manager != resolvconf.Resolved || s.Points || s.Installed || !cmp.Equal(s.Servers, addrs("192.0.2.1", "192.0.2.2"), cmp.Comparer(equalAddr)) {
		t.Errorf("before: %+v", s)
	}
	n.install()
	if call := <-n.bus.calls; call != "ReloadOrRestartUnit systemd-resolved.service replace" {
		t.Errorf("called %q", call)
	}
	n.install()
	if len(n.bus.calls) > 0 {
		t.Errorf("called again: %q", <-n.bus.calls)
	}
	if s := n.state(); !s.Points || !s.Installed || len(s.Servers) != 2 || len(s.Problems) > 0 || s.File != uplinkPath {
		t.Errorf("installed: %+v", s)
	}
	installed := n.read(resolvedDropIn)
	n.write(uplinkPath, "nameserver "+agent+"\nnameserver 198.51.100.1\n") // another link
	if s := n.state(); !s.Points || !cmp.Equal(s.Servers, addrs("198.51.100.1"), cmp.Comparer(equalAddr)) {
		t.Errorf("DHCP: %+v", s)
	}
	n.install()
	if got := n.read(resolvedDropIn); got != installed {
		t.Errorf("the drop-in has changed:\n%s", got)
	}
	n.remove()
	<-n.bus.calls
	if diff := cmp.Diff(before, n.tree()); diff != "" {
		t.Error(diff)
	}
}

// TestResolvedWithoutServers: the built-in servers of systemd-resolved go from its file when it has the agent, and
// the drop-in still has them.
func TestResolvedWithoutServers(t *testing.T) {
	n := resolvedNode(t)
	n.install()
	n.write(uplinkPath, "nameserver "+agent+"\n")
	if s := n.state(); !s.Points || !cmp.Equal(s.Servers, addrs("192.0.2.1", "192.0.2.2"), cmp.Comparer(equalAddr)) {
		t.Errorf("got %+v", s)
	}
}

// TestResolvedGlobal: servers of an administrator's files come behind the agent.
func TestResolvedGlobal(t *testing.T) {
	n := resolvedNode(t)
	n.bus.onCall = func() { n.write(uplinkPath, "nameserver "+agent+"\n"+uplinkText) }
	n.write("/usr/lib/systemd/resolved.conf", "[Resolve]\nDNS=203.0.113.9\n") // /etc's counts
	n.write("/etc/systemd/resolved.conf", "[Resolve]\n#DNS=203.0.113.1\nDNS=203.0.113.2 203.0.113.3#a.test\n[Other]\nDNS=203.0.113.4\n")
	n.write("/usr/lib/systemd/resolved.conf.d/10-a.conf", "[Resolve]\nDNS=203.0.113.9\n")
	n.write("/etc/systemd/resolved.conf.d/10-a.conf", "[Resolve]\n DNS = 203.0.113.5\n")
	n.write("/etc/systemd/resolved.conf.d/90-z.conf", "[Resolve]\nDNS=203.0.113.6\n") // comes later by itself
	n.install()
	if got := n.read(resolvedDropIn); !strings.HasSuffix(got, "\n[Resolve]\nDNS=\nDNS="+agent+" 203.0.113.2 203.0.113.3#a.test 203.0.113.5\nDomains=~.\n") {
		t.Errorf("got\n%s", got)
	}
	n.write("/etc/systemd/resolved.conf.d/20-b.conf", "[Resolve]\nDNS=\nDNS=203.0.113.7\n") // forgets those before
	n.install()
	if got := n.read(resolvedDropIn); !strings.HasSuffix(got, "DNS=\nDNS="+agent+" 203.0.113.7\nDomains=~.\n") {
		t.Errorf("got\n%s", got)
	}
}

// TestNoBus: without a bus, or if it refuses, the files are in place, and the error says what to run.
func TestNoBus(t *testing.T) {
	for name, break_ := range map[string]func(*node){
		"no socket": func(n *node) { _ = os.Remove(n.at("/run/dbus/system_bus_socket")) },
		"refused":   func(n *node) { n.bus.err = "org.freedesktop.DBus.Error.AccessDenied" },
	} {
		t.Run(name, func(t *testing.T) {
			n := resolvedNode(t)
			break_(n)
			_, err := n.Install(t.Context())
			var reload *resolvconf.ReloadError
			if !errors.As(err, &reload) || reload.Manager != resolvconf.Resolved || !strings.Contains(err.Error(), "systemctl restart systemd-resolved") {
				t.Fatal(err)
			}
			if s := n.state(); s.Points || !s.Installed || !strings.Contains(strings.Join(s.Problems, ""), "systemctl restart systemd-resolved") {
				t.Errorf("got %+v", s)
			}
			_, err = n.Remove(t.Context())
			if _, gone := os.Stat(n.at(resolvedDropIn)); !errors.As(err, &reload) || !errors.Is(gone, os.ErrNotExist) {
				t.Errorf("Remove: %v, %v", err, gone)
			}
		})
	}
}

// TestNoEtc: in a container without the node's /etc, systemd-resolved is found by its own files.
func TestNoEtc(t *testing.T) {
	n := resolvedNode(t)
	if err := os.RemoveAll(n.at("/etc")); err != nil {
		t.Fatal(err)
	}
	n.install()
	if s := n.state(); s.Manager != resolvconf.Resolved || !s.Points {
		t.Errorf("got %+v", s)
	}
	n.remove()
}

// TestNetworkManagerFile: NetworkManager writes /etc/resolv.conf itself.
func TestNetworkManagerFile(t *testing.T) {
	n := newNode(t, map[string]string{resolvPath: managerText, managerPath: managerText})
	n.startBus(nil)
	testNetworkManager(t, n)
}

// TestNetworkManagerLink: /etc/resolv.conf is a link to NetworkManager's file, and is one again after Remove.
func TestNetworkManagerLink(t *testing.T) {
	for _, target := range []string{managerPath, "../run/NetworkManager/resolv.conf", "/var/run/NetworkManager/resolv.conf"} {
		n := newNode(t, map[string]string{resolvPath: "->" + target, managerPath: managerText})
		n.startBus(nil)
		testNetworkManager(t, n)
	}
}

func testNetworkManager(t *testing.T, n *node) {
	t.Helper()
	before := n.tree()
	if s := n.state(); s.Manager != resolvconf.NetworkManager || s.Points || s.Installed {
		t.Errorf("before: %+v", s)
	}
	n.install()
	n.install()
	if call := <-n.bus.calls; call != "Reload 0" || len(n.bus.calls) > 0 {
		t.Errorf("called %q and %d more", call, len(n.bus.calls))
	}
	if got := n.read(managerDropIn); !strings.HasSuffix(got, "\n[main]\nrc-manager=unmanaged\n") {
		t.Errorf("drop-in:\n%s", got)
	}
	if got := n.read(resolvPath); !strings.HasSuffix(got, head+managerText) {
		t.Errorf("installed:\n%s", got)
	}
	if got := n.read(managerPath); got != managerText {
		t.Errorf("NetworkManager's own file has changed:\n%s", got)
	}
	if s := n.state(); !s.Points || s.Manager != resolvconf.NetworkManager || !cmp.Equal(s.Servers, addrs("192.0.2.1"), cmp.Comparer(equalAddr)) || len(s.Problems) > 0 {
		t.Errorf("installed: %+v", s)
	}
	changed := strings.Replace(managerText, "192.0.2.1", "198.51.100.1", 1)
	n.write(managerPath, changed)
	if s := n.state(); !cmp.Equal(s.Servers, addrs("198.51.100.1"), cmp.Comparer(equalAddr)) {
		t.Errorf("DHCP: %+v", s)
	}
	n.install()
	if got := n.read(resolvPath); !strings.HasSuffix(got, head+changed) {
		t.Errorf("after a DHCP change:\n%s", got)
	}
	n.write(managerPath, managerText)
	n.install()
	n.remove()
	if diff := cmp.Diff(before, n.tree()); diff != "" {
		t.Error(diff)
	}
}
