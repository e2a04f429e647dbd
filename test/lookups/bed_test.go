package lookups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// node is a node of the test bed with the programs of a release in a root folder of its own.
type node struct {
	*testbed.Network
	t      *testing.T
	dir    string // with the node's /run, at the same path inside
	rootfs string
	holder *peer.Process
	number string // of the release
	events context.Context

	mu       sync.Mutex
	resolved *peer.Process // nil: it does not run
}

// enterScript makes the root folder in a mount namespace of its own, which lasts as long as its processes. NetworkManager
// does not wait for udev if /sys is read-only.
const enterScript = `
root=$0 view=$1 dir=$2 agent=$3
mount -t tmpfs nodens-view "$view"
mkdir "$view/up" "$view/work" "$view/root"
mount -t overlay -o "lowerdir=$root,upperdir=$view/up,workdir=$view/work" nodens-view "$view/root"
cd "$view/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
mount --bind "$dir/run" run
ln -sfn /run var/run
mkdir -p ".$dir" usr/local/bin
mount --bind "$dir" ".$dir"
touch usr/local/bin/nodens
mount --bind "$agent" usr/local/bin/nodens
mkdir -p run/dbus run/systemd/resolve
chown 101:101 run/systemd/resolve
echo ready
exec sleep infinity
`

// newNode returns a node with the programs of a release, or skips the test if they can't be had.
func newNode(t *testing.T, r release) *node {
	t.Helper()
	if err := testbed.Usable(); err != nil {
		t.Skip(err)
	}
	root, err := r.root(t.Context())
	if errors.Is(err, errAbsent) {
		t.Skip(err)
	}
	check.NoError(t, err)
	top, err := os.MkdirTemp("", "lookups-") // short, for sockets, and without commas, for mount
	check.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	dir, view := filepath.Join(top, "d"), filepath.Join(top, "v")
	n := &node{t: t, dir: dir, number: r.number, events: t.Context()}
	n.Network = testbed.ForTest(t, "")
	n.Dir = dir
	check.NoError(t, errors.Join(os.MkdirAll(filepath.Join(dir, "run"), 0o755), os.Mkdir(view, 0o755)))
	n.rootfs = filepath.Join(view, "root")
	n.holder, err = n.Spawn(n.Node, nil, "sh", "-euc", enterScript, root, view, dir, n.Nodens)
	check.NoError(t, err)
	n.holder.Must(t, "the root folder", testbed.LogContains(n.holder, "ready"))
	return n
}

// command returns the arguments that run args in the node's root folder.
func (n *node) command(args ...string) []string {
	return append([]string{"nsenter", fmt.Sprintf("--target=%d", n.holder.PID()), "--mount", "--net", "chroot", n.rootfs}, args...)
}

// try runs a script in the node and returns its output.
func (n *node) try(script string) (string, error) {
	args := n.command("/bin/sh", "-euc", script)
	cmd := exec.CommandContext(n.events, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return string(out), err
}

// sh is try for a script that must not fail.
func (n *node) sh(script string) string {
	n.t.Helper()
	out, err := n.try(script)
	check.NoError(n.t, err)
	return out
}

// start starts a program in the node, which ends with the test.
func (n *node) start(name string, args ...string) *peer.Process {
	n.t.Helper()
	command := n.command(args...)
	p, err := peer.Spawn(peer.Command{Name: name, Path: command[0], Args: command[1:], Dir: n.dir, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}})
	check.NoError(n.t, err)
	n.Cleanup(p.Kill)
	return p
}

// startBus starts the message bus, and a substitute for systemd on it.
func (n *node) startBus() {
	n.t.Helper()
	bus := n.start("dbus-daemon", "dbus-daemon", "--system", "--nofork", "--nopidfile")
	socket := filepath.Join(n.dir, "run", "dbus", "system_bus_socket")
	var conn *dbus.Conn
	bus.Must(n.t, "the message bus", func(context.Context) (err error) {
		conn, err = dbus.Connect("unix:path=" + dbus.EscapeBusAddressValue(socket))
		return err
	})
	n.Cleanup(func() { conn.Close() })
	const name = "org.freedesktop.systemd1"
	check.NoError(n.t, conn.Export(systemd{n}, "/org/freedesktop/systemd1", name+".Manager"))
	reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		n.t.Fatalf("no %s on the bus: %v, %v", name, reply, err)
	}
}

// systemd is the part of systemd's manager that the agent calls.
type systemd struct{ n *node }

// ReloadOrRestartUnit does what systemd does: systemd-resolved reads its files again on SIGHUP from version 255 on, and is
// restarted before.
func (s systemd) ReloadOrRestartUnit(unit, mode string) (dbus.ObjectPath, *dbus.Error) {
	if unit != "systemd-resolved.service" || mode != "replace" {
		return "", dbus.MakeFailedError(fmt.Errorf("%s, %s", unit, mode))
	}
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	if s.n.number == "12" {
		s.n.resolved.Stop()
		s.n.resolved = s.n.start("systemd-resolved", "/usr/lib/systemd/systemd-resolved")
	} else if err := s.n.resolved.Signal(syscall.SIGHUP); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	return "/org/freedesktop/systemd1/job/1", nil
}

// files are the files that say where look-ups go, with their mode and links; a missing file has no line.
func (n *node) files() string {
	n.t.Helper()
	return n.sh(`for f in /etc/resolv.conf /run/systemd/resolve/resolv.conf /run/systemd/resolve/stub-resolv.conf /run/systemd/resolved.conf.d /run/systemd/resolved.conf.d/* \
		/run/NetworkManager/resolv.conf /run/NetworkManager/conf.d /run/NetworkManager/conf.d/* /etc/.* ; do
	case $f in /etc/.|/etc/..) continue;; esac
	[ -e "$f" ] || [ -L "$f" ] || continue
	stat -c "%n %A %U %G" "$f"; readlink "$f" || :; [ -d "$f" ] || cat "$f"
done`)
}

// lookups counts the names of lookUp, none of which was asked before.
var lookups struct {
	sync.Mutex
	n int
}

// lookUp returns the address of a new name below a zone, as a program on the node gets it from the C library.
func (n *node) lookUp(zone string) (string, error) {
	lookups.Lock()
	lookups.n++
	name := fmt.Sprintf("n%d.%s", lookups.n, zone)
	lookups.Unlock()
	out, err := n.try("getent ahostsv4 " + name)
	return strings.Join(strings.Fields(out)[:min(1, len(strings.Fields(out)))], ""), err
}

// looksUp returns a probe that succeeds when a new name below the zone has the address.
func (n *node) looksUp(zone, want string) peer.Probe {
	return func(context.Context) error {
		got, err := n.lookUp(zone)
		if err == nil && got != want {
			err = fmt.Errorf("a name below %s is %s, want %s", zone, got, want)
		}
		return err
	}
}
