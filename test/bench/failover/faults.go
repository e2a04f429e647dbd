package failover

import (
	"context"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// Fault is a fault that is injected into an agent.
type Fault struct {
	Name, what string
	// unsupported is a program that the fault does not apply to.
	unsupported string
	run         func(ctx context.Context, s *node, h *Result) error
}

// The faults' names.
const (
	upgraded         = "upgrade"
	upgradedLong     = "twenty upgrades in a row"
	restarted        = "stop and start"
	Killed           = "kill -9"
	outOfMemory      = "out of memory"
	crashed          = "crash"
	Hung             = "hang for five seconds"
	dirFull          = "no space in the hand-over directory"
	cacheCorrupted   = "broken saved cache"
	rulesFlushed     = "all rules flushed"
	interfaceDeleted = "interface deleted"
)

// Faults are all of them.
var Faults = []Fault{
	{Name: upgraded, run: upgradeOnce, what: "nodens: a new agent takes over from the running one, which then gets SIGTERM, as with `maxSurge: 1`. " +
		"CoreDNS: SIGTERM, NodeLocal DNSCache's teardown of interface and rules, and a start after two seconds, as with `maxUnavailable`."},
	{Name: upgradedLong, run: upgradeRepeatedly, unsupported: "coredns", what: "The same, twenty times in a row."},
	{Name: restarted, run: func(ctx context.Context, s *node, h *Result) error { return s.restart(ctx, h) },
		what: "SIGTERM without a successor, and a start after two seconds. nodens runs with `--skipteardown`, as in its manifest."},
	{Name: Killed, run: killWith(syscall.SIGKILL), what: "SIGKILL, and a start after two seconds."},
	{Name: outOfMemory, run: exhaustMemory, what: "The process has used up the memory of its control group and the kernel kills it; a start after two seconds."},
	{Name: crashed, run: killWith(syscall.SIGABRT), what: "SIGABRT, which ends a Go program in the same way as an unrecoverable error; a start after two seconds."},
	{Name: Hung, run: hang, what: "SIGSTOP, and SIGCONT five seconds later: a process that hangs with its sockets open. It is not restarted, because a liveness probe takes longer than that to fail."},
	{Name: dirFull, run: fillHandoverDir, unsupported: "coredns", what: "The file system of `--handover-dir` is full: an upgrade, and then a stop and a start."},
	{Name: cacheCorrupted, run: corruptCache, unsupported: "coredns", what: "The agent stops, its saved cache is overwritten with noise, and it starts after two seconds."},
	{Name: rulesFlushed, run: flushRules, what: "`iptables -F` in all tables and both families, or `nft flush ruleset`. kube-proxy's rules are removed as well and stay removed."},
	{Name: interfaceDeleted, run: deleteInterface, what: "`ip link delete` of the interface with the addresses. NodeLocal DNSCache checks it every minute, which is later than the end of this measurement. " +
		"If the kernel has no dummy driver, the addresses are deleted from the loopback interface, one after the other."},
}

// upgradeOnce is one upgrade, with what it does to the cache.
func upgradeOnce(ctx context.Context, s *node, h *Result) error {
	then, err := s.CacheStats()
	if err != nil {
		return err
	}
	before, err := s.awaitLookups(ctx, then)
	if err != nil {
		return err
	}
	if err := s.upgrade(ctx, h); err != nil {
		return err
	}
	// The next process counts from zero.
	after, err := s.awaitLookups(ctx, testbed.CacheStats{})
	h.hitChange = max(h.hitChange, math.Abs(after.Ratio()-before.Ratio()))
	return err
}

// UpgradesInARow is what the agent has to stand.
const UpgradesInARow = 20

func upgradeRepeatedly(ctx context.Context, s *node, h *Result) error {
	for range s.upgrades {
		if err := upgradeOnce(ctx, s, h); err != nil {
			return err
		}
	}
	return nil
}

// killWith is the end of a process by a signal that it can't handle.
func killWith(sig syscall.Signal) func(context.Context, *node, *Result) error {
	return func(ctx context.Context, s *node, h *Result) error {
		if err := s.server.Signal(sig); err != nil {
			return err
		}
		<-s.server.Done()
		return s.replace(ctx, h)
	}
}

const (
	// groupMemory is the memory of the control group, several times what a server takes, and
	// stuffing the size of a file system in memory that does not fit into it.
	groupMemory, tmpfsSize = 256 << 20, 300 << 20
)

// exhaustMemory fills the control group of the process with the pages of a file in memory. Of
// those in the group the server is the largest, and so the one that goes.
func exhaustMemory(ctx context.Context, s *node, h *Result) error {
	g, err := s.NewMemoryGroup(groupMemory)
	if err != nil {
		return err
	}
	if err := g.Add(s.server.PID()); err != nil {
		return err
	}
	dir, err := s.Tmpfs("stuffing", tmpfsSize)
	if err != nil {
		return err
	}
	// The shell waits for a line, and so for its place in the group.
	eater, err := s.Spawn(s.Node, nil, "sh", "-c", fmt.Sprintf("until [ -e %s/go ]; do sleep 0.01; done; exec dd if=/dev/zero of=%s/file bs=64k", dir, dir))
	if err != nil {
		return err
	}
	defer eater.Kill()
	if err := g.Add(eater.PID()); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		return err
	}
	select {
	case <-s.server.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	eater.Kill()
	return s.replace(ctx, h)
}

// hangTime is how long the process hangs.
const hangTime = 5 * time.Second

func hang(ctx context.Context, s *node, _ *Result) error {
	if err := s.server.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := harness.Sleep(ctx, s.plan.Wait(hangTime))
	if stopped := s.server.Signal(syscall.SIGCONT); stopped != nil {
		return stopped
	}
	return err
}

func fillHandoverDir(ctx context.Context, s *node, h *Result) error {
	if err := testbed.FillFilesystem(s.handoverDir); err != nil {
		return err
	}
	if err := upgradeOnce(ctx, s, h); err != nil {
		return err
	}
	if err := s.restart(ctx, h); err != nil {
		return err
	}
	return testbed.EmptyFilesystem(s.handoverDir)
}

func corruptCache(ctx context.Context, s *node, h *Result) error {
	if err := s.stop(); err != nil {
		return err
	}
	if info, err := os.Stat(s.cacheFile()); err != nil || info.Size() == 0 {
		return fmt.Errorf("the agent has saved no cache: %w", err)
	}
	if err := os.WriteFile(s.cacheFile(), make([]byte, 1<<16), 0o600); err != nil {
		return err
	}
	return s.replace(ctx, h)
}

func flushRules(_ context.Context, s *node, _ *Result) error {
	if s.proxyMode == testbed.ProxyNftables {
		_, err := s.In(s.Node, "nft", "flush", "ruleset")
		return err
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			if _, err := s.In(s.Node, tool, "-w", "-t", table, "-F"); err != nil {
				return err
			}
		}
	}
	return nil
}

func deleteInterface(_ context.Context, s *node, _ *Result) error {
	if s.SetNodeLocalInterface(false) == nil {
		s.nodeLocalUp = false
		return nil
	}
	// A kernel without the driver of dummy links has the addresses on the loopback link.
	for _, a := range []string{testbed.Local4 + "/32", testbed.Local6 + "/128", testbed.Service4 + "/32", testbed.Service6 + "/128"} {
		if _, err := s.In(s.Node, "ip", "addr", "delete", a, "dev", "lo"); err != nil {
			return err
		}
	}
	return nil
}
