// These tests use openOwnerTable, attrText and minOwnerFD, which are not exported.

package netsetup

// Inside the package: owner tables are not exported.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// hostLocals are the addresses that the tests' agent answers at.
func hostLocals() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")}
}

func needProgram(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
}

func TestOwnerTable(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		needProgram(t, "nft")
		o, err := (&kernelNode{}).openOwnerTable(hostLocals(), 53)
		check.NoError(t, err)
		const want = `table inet nodens-host-X {
	flags owner

	chain output {
		type filter hook output priority raw; policy accept;
		ip daddr 169.254.20.10 udp dport 53 notrack
		ip daddr 169.254.20.10 tcp dport 53 notrack
		ip6 daddr fd00:20::10 udp dport 53 notrack
		ip6 daddr fd00:20::10 tcp dport 53 notrack
	}
}
`
		random := regexp.MustCompile(`-[a-z2-7]{8} \{.*`) // nft says behind the name which program it is
		check.Equal(t, want, random.ReplaceAllString(run(t, "nft", "list", "ruleset"), "-X {"), "it differs")
		run(t, "nft", "flush", "ruleset") // which passes it by
		second, err := (&kernelNode{}).openOwnerTable(nil, 53)
		if err != nil {
			t.Fatal("beside another one:", err)
		}
		left := 2
		for _, o := range []io.Closer{second, o} {
			if got := strings.Count(run(t, "nft", "list", "tables"), ownerTablePrefix); got != left {
				t.Errorf("%d tables, want %d", got, left)
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
			left--
		}
		if got := run(t, "nft", "list", "ruleset"); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	})
}

// TestOwnerTableFewDescriptors: a process that may not have a descriptor as high as we like.
func TestOwnerTableFewDescriptors(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		few := &unix.Rlimit{Cur: minOwnerFD / 2, Max: minOwnerFD / 2}
		check.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, few))
		o, err := (&kernelNode{}).openOwnerTable(hostLocals(), 53)
		check.NoError(t, err)
		o.Close()
	})
}

func TestOwnerTablePermission(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		withoutNetAdmin(t, func() {
			_, err := (&kernelNode{}).openOwnerTable(hostLocals(), 53)
			if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrNoOwner) {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestOwnerTableErrors(t *testing.T) {
	for errno, want := range map[unix.Errno]error{
		unix.EOPNOTSUPP:      ErrNoOwner,
		unix.EINVAL:          ErrNoOwner,
		unix.ENOENT:          ErrNoOwner,
		unix.EPROTONOSUPPORT: ErrNoOwner,
		unix.EPERM:           fs.ErrPermission,
		unix.ENOBUFS:         unix.ENOBUFS,
	} {
		err := ownerTableError("doing", fmt.Errorf("x: %w", errno))
		lacks := errors.Is(err, ErrNoOwner)
		if !errors.Is(err, want) || !errors.Is(err, errno) || lacks != errors.Is(want, ErrNoOwner) {
			t.Errorf("%v: got %v", errno, err)
		}
	}
}

// TestOwnerTableAck has the kernel refuse the last message of a batch, and so all of it.
func TestOwnerTableAck(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		needProgram(t, "nft")
		socket, err := openNetfilter()
		check.NoError(t, err)
		defer socket.Close()
		batch := append(ownerTableBatch("some", hostLocals(), 53), nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWRULE, unix.NLM_F_APPEND|unix.NLM_F_ACK,
			attrText(unix.NFTA_RULE_TABLE, "some"), attrText(unix.NFTA_RULE_CHAIN, "none")))
		if err := sendBatch(socket, batch); !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v", err)
		}
		if got := run(t, "nft", "list", "tables"); got != "" {
			t.Errorf("left behind: %s", got)
		}
	})
}

// TestOwnerTableDiesWithProcess kills agents while processes of the node ask them without a pause. While
// an agent lives, it answers, and no query is in the table of connections; when it is dead
// the cluster DNS answers the next query; and no query ever meets a closed port.
func TestOwnerTableDiesWithProcess(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		needProgram(t, "conntrack", "nft")
		setUpHost(t)
		wantAnswers(t, "cluster")
		for range 3 {
			agent := startSubprocess(t, "agent")
			run(t, "conntrack", "-F")
			wantAnswers(t, "agent")
			for _, family := range []string{"ipv4", "ipv6"} {
				if got := run(t, "conntrack", "-f", family, "-L"); strings.Contains(got, "dport=53 ") {
					t.Errorf("tracked:\n%s", got)
				}
			}
			var clients sync.WaitGroup
			answered := make(chan struct{}, 1)
			for _, l := range hostLocals() {
				clients.Go(func() { sendQueries(t, l, answered) })
			}
			<-answered
			agent.kill(t)
			clients.Wait()
			wantAnswers(t, "cluster")
		}
	})
}

// TestOwnerTableNotInherited kills an agent that has started a program, which lives on.
func TestOwnerTableNotInherited(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		needProgram(t, "nft")
		agent := startSubprocess(t, "parent")
		if got := strings.Count(run(t, "nft", "list", "tables"), ownerTablePrefix); got != 1 {
			t.Fatalf("%d tables while the process lives", got)
		}
		agent.kill(t)
		if got := run(t, "nft", "list", "tables"); got != "" {
			t.Errorf("left by a dead process: %s", got)
		}
	})
}
