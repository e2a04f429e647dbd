// These tests use kernelNode, recheck and loopback, which are not exported.

package netsetup

// Inside the package: the tests use kernelNode and helpers that are not exported.

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// dualStack is a whole Config for the namespaces of these tests.
func dualStack() Config {
	return Config{
		Addresses:      []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")},
		DNSPort:        53,
		HealthPort:     8080,
		SetupInterface: true,
		SetupIptables:  true,
	}
}

// newSetup returns a Setup whose Teardown may take as long as it needs: on a busy machine the programs
// that write rules take longer than in production. It logs to the test's output unless c has a logger.
func newSetup(t *testing.T, c Config, node Node) *Setup {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := New(c, node)
	check.NoError(t, err)
	s.teardownBudget = waitLimit
	return s
}

// servers are the cluster DNS of these tests, in the order of a Setup.
var servers = []netip.AddrPort{
	netip.MustParseAddrPort("10.1.1.1:53"),
	netip.MustParseAddrPort("10.1.1.2:5353"),
	netip.MustParseAddrPort("[fd00:1::1]:53"),
}

// tearDown removes everything.
func tearDown(t *testing.T, s *Setup) {
	t.Helper()
	if err := s.Teardown(0, nil); err != nil {
		t.Error("Teardown:", err)
	}
}

// apply runs the steps of a start.
func apply(t *testing.T, s *Setup) {
	t.Helper()
	if err := s.EnsureInterface(t.Context()); err != nil {
		t.Fatal("Links:", err)
	}
	if err := s.Divert(t.Context(), servers); err != nil {
		t.Fatal("Divert:", err)
	}
	if err := s.EnsureRules(t.Context()); err != nil {
		t.Fatal("Rules:", err)
	}
}

// addressLink returns the link an address is on.
func addressLink(t *testing.T, p netip.Prefix) string {
	t.Helper()
	addrs, err := (&kernelNode{}).Addrs()
	check.NoError(t, err)
	for _, a := range addrs {
		if a.Prefix == p {
			return a.Interface
		}
	}
	t.Fatalf("%v is on no link", p)
	return ""
}

func TestKernelAddressesBindAtOnce(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		// lo is down here, as in every new namespace.
		s := newSetup(t, dualStack(), nil)
		check.NoError(t, s.EnsureInterface(t.Context()))
		for _, a := range s.Plan().Addresses {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Addr(), 53)))
			if err != nil {
				t.Errorf("binding %v: %v", a.Addr(), err)
				continue
			}
			conn.Close()
		}
	})
}

// noDummy is a kernel which is known not to have the driver.
type noDummy struct{ *kernelNode }

func (noDummy) AddDummy(string) error { return ErrNoDummy }

// bridgeAsDummy is a kernel whose links of kind dummy are really bridges: all that a
// dummy link goes through, on kernels without the driver too. A bridge does
// duplicate address detection, which a dummy does not.
type bridgeAsDummy struct{ *kernelNode }

func (s bridgeAsDummy) AddDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlinkError(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
}

func (s bridgeAsDummy) Interface(name string) (Interface, error) {
	l, err := s.kernelNode.Interface(name)
	if l.Kind == "bridge" {
		l.Kind = kindDummy
	}
	return l, err
}

// TestKernelInterface: the addresses are on a link of the agent's own, which it makes again, sets up, and removes, but not
// with an address of a stranger's; or on lo, with a warning, if the kernel has no dummy driver.
func TestKernelInterface(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		before := dumpNode(t)
		for _, c := range []struct {
			name, home string
			node       Node
		}{
			{"dummy", DefaultInterfaceName, &kernelNode{}},
			{"bridge", DefaultInterfaceName, bridgeAsDummy{&kernelNode{}}},
			{"lo", loopback, noDummy{&kernelNode{}}},
		} {
			t.Run(c.name, func(t *testing.T) {
				if c.home != loopback && !hasLinks(t, c.node) {
					return
				}
				if c.name == "dummy" { // as NodeLocal DNSCache leaves it
					run(t, "ip", "link", "add", DefaultInterfaceName, "type", "dummy")
					run(t, "ip", "addr", "add", "169.254.20.10/32", "dev", DefaultInterfaceName)
				}
				var log strings.Builder
				config := dualStack()
				config.Logger = slog.New(slog.NewTextHandler(&log, nil))
				s := newSetup(t, config, c.node)
				apply(t, s)
				wantAddressesOn(t, s, c.home)
				if warns := strings.Contains(log.String(), "level=WARN msg=\"the kernel has no dummy driver"); warns != (c.home == loopback) {
					t.Errorf("a warning: %v; log:\n%s", warns, log.String())
				}
				if c.home != loopback {
					wantOwnLinkKept(t, s, c.node)
				}
				tearDown(t, s)
				check.Equal(t, before, dumpNode(t), "before and after")
			})
		}
	})
}

// wantAddressesOn checks on which link the addresses are.
func wantAddressesOn(t *testing.T, s *Setup, link string) {
	t.Helper()
	for _, a := range s.Plan().Addresses {
		if at := addressLink(t, a); at != link {
			t.Errorf("%v is on %s, want %s", a, at, link)
		}
	}
}

// hasLinks reports whether the kernel has links of the node's kind, and checks what is said about one that is there or not.
// It does not skip the test, because what a child process skips its parent does.
func hasLinks(t *testing.T, node Node) bool {
	t.Helper()
	err := node.AddDummy("probe")
	if errors.Is(err, ErrNoDummy) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Log("this machine's kernel has no such links:", err)
		return false
	}
	check.NoError(t, err)
	if err := node.AddDummy("probe"); !errors.Is(err, ErrExists) {
		t.Errorf("adding it twice: %v, want ErrExists", err)
	}
	check.NoError(t, node.DeleteInterface("probe"))
	if err := node.DeleteInterface("probe"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleting it twice: %v, want ErrNotFound", err)
	}
	return true
}

// wantOwnLinkKept takes the agent's link away, and sets it down, and has another program use it during a teardown.
func wantOwnLinkKept(t *testing.T, s *Setup, node Node) {
	t.Helper()
	if got := run(t, "ip", "-6", "addr", "show", "dev", DefaultInterfaceName); !strings.Contains(got, "fd00::a/128 scope global nodad") {
		t.Errorf("the IPv6 address waits for duplicate address detection:\n%s", got)
	}
	applied := dumpRules(t, IPv4) + dumpRules(t, IPv6)
	run(t, "ip", "link", "del", DefaultInterfaceName)
	s.recheck(t.Context())
	wantAddressesOn(t, s, DefaultInterfaceName)
	if diff := cmp.Diff(applied, dumpRules(t, IPv4)+dumpRules(t, IPv6)); diff != "" {
		t.Errorf("the re-check changed rules:\n%s", diff)
	}
	run(t, "ip", "link", "set", DefaultInterfaceName, "down")
	s.recheck(t.Context())
	if l, err := node.Interface(DefaultInterfaceName); err != nil || !l.Up {
		t.Errorf("after the re-check the link is %+v, %v", l, err)
	}
	run(t, "ip", "addr", "add", "192.0.2.9/32", "dev", DefaultInterfaceName)
	tearDown(t, s)
	if at := addressLink(t, netip.MustParsePrefix("192.0.2.9/32")); at != DefaultInterfaceName {
		t.Errorf("the stranger's address is on %s", at)
	}
	run(t, "ip", "addr", "del", "192.0.2.9/32", "dev", DefaultInterfaceName)
}

func TestKernelRefusesLinksAndAddressesOfOthers(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		run(t, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
		run(t, "ip", "addr", "add", "169.254.20.10/16", "dev", "veth0")
		before := dumpNode(t)

		err := newSetup(t, dualStack(), nil).EnsureInterface(t.Context())
		wantError(t, err, InterfaceCheck, "in use on veth0", "-localip", "-setupinterface=false")

		c := dualStack()
		c.Addresses = c.Addresses[1:]
		c.InterfaceName = "veth1"
		s := newSetup(t, c, nil)
		wantError(t, s.EnsureInterface(t.Context()), InterfaceCheck, "veth1", "not a dummy interface", `"veth"`, "--interfacename")
		tearDown(t, s)
		check.Equal(t, before, dumpNode(t), "a refused set-up changed the node")
	})
}

// wantError checks the type of an error and that it says certain things.
func wantError(t *testing.T, err error, typ ErrorType, parts ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v is no *Error", err)
	}
	if e.Type != typ {
		t.Errorf("error type %q, want %q: %v", e.Type, typ, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error lacks %q: %v", p, err)
		}
	}
}

func TestKernelSaysThatIPv6IsDisabled(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		for _, which := range []string{"all", "default"} {
			path := "/proc/sys/net/ipv6/conf/" + which + "/disable_ipv6"
			if err := os.WriteFile(path, []byte("1"), 0); err != nil {
				t.Skip("cannot turn IPv6 off in a namespace:", err)
			}
		}
		s := newSetup(t, dualStack(), noDummy{&kernelNode{}})
		err := s.EnsureInterface(t.Context())
		wantError(t, err, InterfaceAdd, "fd00::a", "IPv6 is disabled", "-localip", "disable_ipv6", "-setupinterface=false")
		if !errors.Is(err, ErrNoIPv6) {
			t.Errorf("%v is not ErrNoIPv6", err)
		}
		if at := addressLink(t, s.Plan().Addresses[0]); at != loopback {
			t.Errorf("the IPv4 address is on %q; it should be in place all the same", at)
		}
	})
}

func TestKernelSaysWhichPermissionIsMissing(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		if os.Getenv(unprivilegedEnv) == "" {
			run(t, "ip", "link", "set", "lo", "up")
		}
		withoutNetAdmin(t, func() {
			s := newSetup(t, dualStack(), noDummy{&kernelNode{}})
			err := s.EnsureInterface(t.Context())
			wantError(t, err, InterfaceAdd, "NET_ADMIN", "-setupinterface=false")
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%v is not fs.ErrPermission", err)
			}
			err = s.EnsureRules(t.Context())
			wantError(t, err, Iptables, "NET_ADMIN", "-setupiptables=false")
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%v is not fs.ErrPermission", err)
			}
			if got := s.Stats().Errors[Iptables]; got != 2 {
				t.Errorf("%d iptables errors counted, want one for each family", got)
			}
		})
	})
}

// TestKernelWithoutPrograms: without iptables the agent uses nf_tables, which needs no program.
func TestKernelWithoutPrograms(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		s := newSetup(t, dualStack(), nil)
		check.NoError(t, s.EnsureRules(t.Context()))
		if got := s.Stats(); got.Backend != "nftables" || !got.RulesInPlace || got.BackendReason != "iptables is not installed" {
			t.Errorf("%+v", got)
		}
		c := dualStack()
		c.Netfilter = NetfilterIptables
		err := newSetup(t, c, nil).EnsureRules(t.Context())
		wantError(t, err, Iptables, "iptables: program not found", "install the iptables package", "-setupiptables=false")
		if !errors.Is(err, ErrNoTool) {
			t.Errorf("%v is not ErrNoTool", err)
		}
	})
}

func TestKernelGivesUpOnAHeldLock(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		path := os.Getenv("XTABLES_LOCKFILE")
		program, err := filepath.EvalSymlinks(filepath.Join(filepath.Dir(path), "iptables"))
		check.NoError(t, err)
		if !strings.Contains(program, "legacy") {
			t.Skip("this build of iptables has no lock")
		}
		lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		check.NoError(t, err)
		defer lock.Close()
		c := dualStack()
		c.Addresses = c.Addresses[:1]
		s := newSetup(t, c, nil)
		apply(t, s)
		check.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		// A look counts as locked out, not as broken.
		if _, err = execute(t.Context(), "", "iptables", "-w", "1", "-t", "raw", "-S"); !errors.Is(err, ErrLocked) {
			t.Errorf("a look under a held lock returned %v", err)
		}
		// Teardown ends, says so, and still takes the addresses away.
		err = s.Teardown(0, nil)
		if !errors.Is(err, ErrLocked) {
			t.Errorf("Teardown under a held lock returned %v", err)
		}
		if got := run(t, "ip", "addr"); strings.Contains(got, "169.254.20.10") {
			t.Errorf("the address is still there:\n%s", got)
		}
		check.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
		tearDown(t, s)
		if got := dumpRules(t, IPv4); strings.Contains(got, "-A ") {
			t.Errorf("rules are left:\n%s", got)
		}
	})
}
