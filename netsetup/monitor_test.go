// These tests use monitorSource, isInterfaceRemoval and open, which are not exported.

package netsetup

// Inside the package: the netlink monitor is not exported.

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/check"
)

// testWatchSpec is what the tests of events look out for.
func testWatchSpec() watchSpec {
	return watchSpec{
		iface: DefaultInterfaceName,
		addrs: []netip.Prefix{netip.MustParsePrefix("169.254.20.10/32"), netip.MustParsePrefix("fd00:20::10/128")},
		rules: true,
	}
}

// setUpMonitored makes the link, the addresses and the rules that may be lost.
func setUpMonitored(t *testing.T) {
	t.Helper()
	runLines(t, `ip link set lo up
		ip link add nodelocaldns type veth peer name peer
		ip link set nodelocaldns up
		ip addr add 169.254.20.10/32 dev nodelocaldns
		ip -6 addr add fd00:20::10/128 dev nodelocaldns nodad
		ip addr add 169.254.20.10/32 dev lo
		ip link add other type bridge
		ip addr add 192.0.2.1/32 dev other
		nft add table inet nodens
		nft add set inet nodens local '{ type ipv4_addr; elements = { 169.254.20.10 }; }'
		nft add chain inet nodens raw '{ type filter hook output priority raw; }'
		nft add rule inet nodens raw udp dport 53 notrack
		iptables -w -t raw -N NODENS-OUTPUT
		iptables -w -t raw -A NODENS-OUTPUT -p udp --dport 53 -j NOTRACK
		iptables -w -t raw -I OUTPUT -m comment --comment 'nodens: DNS of this node' -j NODENS-OUTPUT
		iptables -w -I INPUT -p udp --dport 53 -m comment --comment 'nodens: DNS' -j ACCEPT
		iptables -w -t raw -I OUTPUT -p udp --dport 4789 -j NOTRACK
		nft add table inet fw
		nft add chain inet fw in '{ type filter hook input priority filter; }'
		nft add rule inet fw in udp dport 53 accept comment '"nodens: DNS"'
		nft add rule inet fw in tcp dport 22 accept`)
}

// runLines runs lines as a script that ends with the first failure.
func runLines(t *testing.T, lines string) {
	t.Helper()
	run(t, "sh", "-ec", lines)
}

// isLegacy reports whether the namespace's iptables keeps its rules where no events are.
func isLegacy(t *testing.T) bool {
	return strings.Contains(run(t, "iptables", "--version"), "legacy")
}

func TestMonitorRemovals(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		setUpMonitored(t)
		for _, loss := range []string{
			"ip addr del 169.254.20.10/32 dev lo",
			"ip -6 addr del fd00:20::10/128 dev nodelocaldns",
			"ip link set nodelocaldns down",
			"ip link del nodelocaldns",
			"nft delete element inet nodens local '{ 169.254.20.10 }'",
			"nft flush chain inet nodens raw",
			"nft delete chain inet nodens raw",
			"nft delete table inet nodens",
			"nft flush chain inet fw in",
			"nft add chain inet fw more '{ type filter hook input priority 10; policy drop; }'",
			"iptables -w -F INPUT",
			"iptables -w -t raw -F OUTPUT",
			"iptables -w -t raw -F NODENS-OUTPUT",
			"iptables -w -t raw -X NODENS-OUTPUT",
			"iptables -w -P INPUT DROP",
			"iptables -w -I INPUT -p tcp --dport 22 -j DROP", // comes before ours
		} {
			if strings.HasPrefix(loss, "iptables") && isLegacy(t) {
				continue
			}
			ctx, cancel := context.WithCancel(t.Context())
			signals := watchRemovals(ctx, testWatchSpec())
			runLines(t, loss)
			if _, open := <-signals; !open {
				t.Fatal("closed")
			}
			t.Log("seen:", loss)
			cancel()
			for range signals {
			}
		}
	})
}

// TestMonitorIgnoresForeignChanges changes much that is none of our business, and then, as the end,
// something that is: no message before that is taken for a loss.
func TestMonitorIgnoresForeignChanges(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		setUpMonitored(t)
		var churn strings.Builder
		churn.WriteString("add table ip kube-proxy\nadd chain ip kube-proxy svc\nadd table ip foreign\nadd chain ip foreign KUBE-SVC\n")
		for i := range 250 {
			fmt.Fprintf(&churn, "add rule ip kube-proxy svc udp dport %d accept comment \"kube-system/nodens: DNS\"\n", i)
			fmt.Fprintf(&churn, "add rule ip foreign KUBE-SVC udp dport %d accept comment \"kube-system/nodens: DNS\"\n", i)
		}
		churn.WriteString("flush chain ip kube-proxy svc\nflush chain ip foreign KUBE-SVC\ndelete table ip kube-proxy\n")
		wantNoSignal(t, monitorSource{unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, isRuleRemoval}, "nodens\x00", 1000, func() {
			nft := exec.Command("nft", "-f", "-")
			nft.Stdin = strings.NewReader(churn.String())
			if out, err := nft.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			runLines(t, `iptables -w -D OUTPUT -t raw -p udp --dport 4789 -j NOTRACK
				iptables -w -A FORWARD -p tcp --dport 22 -j DROP
				iptables -w -A INPUT -p tcp --dport 22 -m comment --comment 'nodens: DNS' -j DROP
				iptables -w -D FORWARD -p tcp --dport 22 -j DROP
				iptables -w -t nat -N KUBE-SERVICES
				iptables -w -t nat -A KUBE-SERVICES -m comment --comment 'kube-system/nodens: DNS' -j RETURN
				iptables -w -t nat -F KUBE-SERVICES
				iptables -w -t nat -X KUBE-SERVICES
				nft delete rule inet fw in handle $(nft -a list chain inet fw in | sed -n 's/.*dport 22 accept # handle //p')
				nft delete table inet nodens`)
		})
		source := monitorSource{unix.NETLINK_ROUTE, []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}, testWatchSpec().isInterfaceRemoval}
		wantNoSignal(t, source, "\xa9\xfe\x14\x0a", 10, func() {
			runLines(t, `ip addr del 192.0.2.1/32 dev other
				ip addr add 169.254.20.11/32 dev nodelocaldns
				ip addr del 169.254.20.11/32 dev nodelocaldns
				ip link set nodelocaldns master other
				ip link set nodelocaldns nomaster
				ip link set other down
				ip link del other
				ip link set nodelocaldns mtu 1400
				ip addr del 169.254.20.10/32 dev nodelocaldns`)
		})
	})
}

// wantNoSignal runs others, which ends with a loss whose messages have end in them, and fails the
// test if any other message is taken for a loss, or if there were too few.
func wantNoSignal(t *testing.T, s monitorSource, end string, atLeast int, others func()) {
	t.Helper()
	socket, err := s.open()
	check.NoError(t, err)
	loss, seen := s.isRemoval, 0
	var wrong []string
	s.isRemoval = func(m syscall.NetlinkMessage) bool {
		seen++
		lost := loss(m)
		if lost && !bytes.Contains(m.Data, []byte(end)) {
			wrong = append(wrong, fmt.Sprintf("%#x %q", m.Header.Type, m.Data))
			return false
		}
		return lost
	}
	others()
	ctx, cancel := context.WithCancel(t.Context())
	found, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		s.monitor(ctx, socket, nil, found)
	}()
	<-found
	cancel()
	<-ended
	if len(wrong) > 0 {
		t.Errorf("taken for losses:\n%s", strings.Join(wrong, "\n"))
	}
	if seen < atLeast {
		t.Errorf("saw %d messages, want at least %d", seen, atLeast)
	}
}

// TestMonitorDroppedMessages has the kernel throw events away.
func TestMonitorDroppedMessages(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		runLines(t, "ip link set lo up")
		s := monitorSource{unix.NETLINK_ROUTE, []int{unix.RTNLGRP_IPV4_IFADDR}, testWatchSpec().isInterfaceRemoval}
		socket, err := s.open()
		check.NoError(t, err)
		if err := socket.SetReceiveBufferSize(0, false); err != nil { // the least there is
			t.Fatal(err)
		}
		runLines(t, "for i in $(seq 20); do ip addr add 192.0.2.$i/32 dev lo; done")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		losses, ended := make(chan struct{}, 1), make(chan struct{})
		go func() {
			defer close(ended)
			s.monitor(ctx, socket, nil, losses)
		}()
		<-losses
		cancel()
		<-ended
	})
}

// TestMonitorReopensSocket has the socket break: it is opened again, and whatever may have
// been missed is a loss.
func TestMonitorReopensSocket(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		setUpMonitored(t)
		s := monitorSource{unix.NETLINK_ROUTE, []int{unix.RTNLGRP_IPV4_IFADDR}, testWatchSpec().isInterfaceRemoval}
		socket, err := s.open()
		check.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		losses, ended := make(chan struct{}, 1), make(chan struct{})
		go func() {
			defer close(ended)
			s.monitor(ctx, socket, nil, losses)
		}()
		socket.Close()
		<-losses
		runLines(t, "ip addr del 169.254.20.10/32 dev lo")
		<-losses
		cancel()
		<-ended
	})
}

// TestMonitorEndsWithContext looks for what is left when the context is done: no goroutine, no socket.
func TestMonitorEndsWithContext(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		socket, err := monitorSource{protocol: unix.NETLINK_ROUTE}.open() // opens Go's poller, too
		check.NoError(t, err)
		socket.Close()
		before := openFiles(t)
		ctx, cancel := context.WithCancel(t.Context())
		signals := watchRemovals(ctx, testWatchSpec())
		if now := openFiles(t); now != before+2 {
			t.Fatalf("%d file descriptors before, %d now", before, now)
		}
		cancel()
		for range signals {
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d file descriptors before, %d after", before, now)
		}
		for { // the goroutine that closed the channel may be at its very end
			var stacks strings.Builder
			check.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 2))
			if !strings.Contains(stacks.String(), "netsetup/monitor_linux.go") {
				return
			}
			runtime.Gosched()
		}
	})
}

// TestMonitorTriggersRepair takes away what a Setup has made: it is put back long before the
// interval ends.
func TestMonitorTriggersRepair(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		addForeignObjects(t)
		losses := map[Netfilter][]string{
			NetfilterIptables: {"ip addr del 169.254.20.10/32 dev lo", "iptables -w -t raw -F OUTPUT", "ip6tables -w -F"},
			NetfilterNftables: {"ip addr del fd00::a/128 dev lo", "nft flush ruleset", "nft delete table inet nodens"},
		}
		if isLegacy(t) {
			losses[NetfilterIptables] = losses[NetfilterIptables][:1]
			delete(losses, NetfilterNftables) // iptables' builds don't matter to nft
		}
		for filter, commands := range losses {
			c := dualStack()
			c.Netfilter, c.Interval, c.SetupInterface = filter, 24*time.Hour, true
			s := newSetup(t, c, withoutDummy{&kernelNode{}})
			apply(t, s)
			before := netlinkGroups(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				s.Run(ctx)
			}()
			for netlinkGroups(t) < before+2 { // until Run watches
				time.Sleep(time.Millisecond)
			}
			for _, command := range commands {
				before := s.Stats().Repairs
				runLines(t, command)
				for s.Stats().Repairs == before {
					time.Sleep(time.Millisecond)
				}
			}
			cancel()
			<-ended
			tearDown(t, s)
		}
	})
}

// withoutDummy is a kernel that puts the addresses on lo.
type withoutDummy struct{ *kernelNode }

func (withoutDummy) AddDummy(string) error { return ErrNoDummy }

// netlinkGroups counts the netlink sockets of the namespace that are in groups.
func netlinkGroups(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/netlink")
	check.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		const groups = 3 // the column
		if words := strings.Fields(line); len(words) > groups && strings.Trim(words[groups], "0") != "" {
			n++
		}
	}
	return n
}

// openFiles counts the file descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check.NoError(t, err)
	return len(entries)
}

// TestDebounce has losses come alone, in bursts and without an end.
func TestDebounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		losses, signals := make(chan struct{}, 1), make(chan struct{}, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			debounce(ctx, losses, signals)
		}()
		start := time.Now()
		var at []time.Duration // of signals
		go func() {
			for range signals {
				at = append(at, time.Since(start))
			}
		}()
		lose := func(times int, pause time.Duration) {
			for range times {
				notify(losses)
				time.Sleep(pause)
			}
		}
		const ms = time.Millisecond
		lose(1, 1000*ms) // one alone: at once
		lose(10, 10*ms)  // a burst: at once, and once more for the rest
		time.Sleep(5 * time.Second)
		lose(900, 10*ms) // a quarrel: ever less often
		time.Sleep(5 * time.Second)
		lose(1, 1000*ms) // it is over
		cancel()
		<-ended
		close(signals)
		synctest.Wait()
		want := []time.Duration{0, 1000 * ms, 1100 * ms,
			6100 * ms, 6200 * ms, 6400 * ms, 6800 * ms, 7600 * ms, 9200 * ms, 10800 * ms, 12400 * ms, 14000 * ms, 15600 * ms,
			20100 * ms}
		check.Equal(t, want, at, "it differs")
	})
}

// FuzzMonitorMessages has any bytes come as messages: none may break the reader.
func FuzzMonitorMessages(f *testing.F) {
	f.Add(nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_DELRULE, 0, attrText(unix.NFTA_RULE_TABLE, "raw"), attrText(unix.NFTA_RULE_CHAIN, "NODENS-OUTPUT")))
	f.Add(nftMessage(unix.NFPROTO_INET, unix.NFT_MSG_NEWCHAIN, 0, attrNest(unix.NFTA_CHAIN_HOOK, attrNumber(unix.NFTA_HOOK_HOOKNUM, 1))))
	f.Add(batchMark(unix.RTM_DELADDR))
	f.Add([]byte("\x12\x00\x00\x000\n00000000000000")) // of nf_tables, shorter than its header
	f.Add([]byte("\x10\x00\x00\x00\x11\x00\x00\x00________\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, _ := syscall.ParseNetlinkMessage(b) // as the library does
		for _, m := range messages {
			testWatchSpec().isInterfaceRemoval(m)
			isRuleRemoval(m)
		}
	})
}
