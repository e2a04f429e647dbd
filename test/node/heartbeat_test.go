package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// heartbeatTimeout is how long the kernel answers after the agent's last heartbeat.
const heartbeatTimeout = 2 * time.Second

// TestKernelHangs: the kernel answers for an agent that hangs for at most two seconds, and again when
// the agent continues.
func TestKernelHangs(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	a := newComparer(t, l, p, local4)
	a.pod.t = t
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	a.askUntilKernelAnswers(query)
	check.NoError(t, p.Signal(syscall.SIGSTOP))
	defer p.Signal(syscall.SIGCONT)
	// A process with several threads takes a moment to stop.
	p.Must(t, "the agent to hang", func(context.Context) error { return checkStopped(p.PID()) })
	hung := time.Now()
	answers, last := 0, hung
	for id := uint16(1); time.Since(hung) < heartbeatTimeout+extraTime; id++ {
		asked := time.Now()
		if came := a.pod.try(query, id, replyWait, nil); !came.IsZero() {
			answers, last = answers+1, asked
		}
	}
	t.Logf("%d answers, the last to a query of %v after the stop", answers, last.Sub(hung))
	if answers == 0 || last.Sub(hung) > heartbeatTimeout {
		t.Errorf("%d answers, the last to a query of %v after the stop; some are wanted, of the first %v", answers, last.Sub(hung), heartbeatTimeout)
	}
	check.NoError(t, p.Signal(syscall.SIGCONT))
	before := l.kernelAnswers()
	p.Must(t, "the kernel to answer again", func(context.Context) error {
		a.pod.try(query, 1, replyWait, nil)
		if l.kernelAnswers() == before {
			return errors.New("the agent answers")
		}
		return nil
	})
}

// checkStopped returns nil if all threads of a process are stopped.
func checkStopped(pid int) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return fmt.Errorf("no threads: %w", err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return err
		}
		if state := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]; state != "T" {
			return fmt.Errorf("a thread is in state %s", state)
		}
	}
	return nil
}

// TestKernelUpgrades: agents with the kernel path take over from one another under load. No query
// is lost, none goes to the cluster DNS, and the kernel answers for each agent.
func TestKernelUpgrades(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	args := l.allAddrArgs(testbed.KernelPathFlag)
	p := l.startAgentWith(args...)
	stop := l.startLoad(podLoad())
	l.waitForKernelAnswers(p)
	upgrades := soak.Choose(4, 20)
	for n := range upgrades {
		p = l.upgrade(p, n, args)
		l.waitForKernelAnswers(p)
	}
	r := stop()
	if all := r.All(); all.Asked == 0 || all.Local != all.Asked {
		t.Errorf("after %d upgrades: %+v", upgrades, all)
	}
}

// enoughKernelAnswers is how many answers prove that the kernel answers; the load makes that many in a
// quarter of a second.
const enoughKernelAnswers = 500

// waitForKernelAnswers waits until the kernel has answered for the agent.
func (l *network) waitForKernelAnswers(p *peer.Process) {
	l.t.Helper()
	before := -1
	p.Must(l.t, "answers from the kernel", func(context.Context) error {
		m, err := l.Metrics()
		if err != nil {
			return err
		}
		n := int(m[`nodens_kernel_path_queries_total{result="answered"}`])
		if before < 0 || n < before { // the counter of another agent
			before = n
		}
		if n-before < enoughKernelAnswers {
			return fmt.Errorf("%d so far", n-before)
		}
		return nil
	})
}

// stopAttempts is how many agents TestKernelStops stops at most.
const stopAttempts = 8

// TestKernelStops: after a regular stop the kernel no longer answers; the cluster DNS does, through the
// rules that are left. A query that passes them just before the socket closes is lost: at most one on
// each CPU. More are lost if the kernel runs another process between the agent's last read and the close,
// which happens on a busy machine, so one agent of several has to lose no more.
func TestKernelStops(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	l.addKubeProxy(testbed.ProxyIptablesNft)
	args := l.allAddrArgs(testbed.KernelPathFlag, "-skipteardown")
	var lost []int
	for range stopAttempts {
		n := l.stopUnderLoad(args)
		if n <= runtime.NumCPU() {
			return
		}
		lost = append(lost, n)
	}
	t.Errorf("%d queries were lost while agents ended, want %d at most once", lost, runtime.NumCPU())
}

// stopUnderLoad starts an agent, stops it under load, and returns how many queries were lost meanwhile.
func (l *network) stopUnderLoad(args []string) (lost int) {
	l.t.Helper()
	p := l.startAgentWith(args...)
	stop := l.startLoad(podPackets())
	l.waitForLookups(p, testbed.CacheStats{}) // until all names are cached
	l.waitForKernelAnswers(p)
	ending := time.Now()
	p.Stop()
	gone := time.Now()
	if err := p.Err(); err != nil {
		l.t.Errorf("the agent ended with %v", err)
	}
	if got := l.ingressPrograms("vpod"); len(got) > 0 {
		l.t.Errorf("the agent leaves programs: %q", got)
	}
	if err := peer.Await(l.t.Context(), "the cluster's DNS to answer", l.Answers(l.pod, testbed.FromCluster, "udp", net.JoinHostPort(local4, "53"))); err != nil {
		l.t.Fatal(err)
	}
	r := stop()
	if without := r.Between(gone, r.End); without.Asked == 0 || without.Cluster != without.Asked {
		l.t.Errorf("without an agent: %+v", without)
	}
	return int(r.Between(ending, gone).Failed())
}
