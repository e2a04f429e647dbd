package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// lapse is for how long the kernel answers after the last sign of life of the agent's.
const lapse = 2 * time.Second

// TestKernelHangs: the kernel answers for an agent that hangs, but for no longer than two
// seconds, and again when it goes on.
func TestKernelHangs(t *testing.T) {
	l := newKernelLab(t)
	p := l.startInKernel()
	a := newAsker(t, l, p, local4)
	a.pod.t = t
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	a.known(query)
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer p.Signal(syscall.SIGCONT)
	// The signal is sent, and a process of several threads stops within moments.
	p.Must(t, "the agent to hang", func(context.Context) error { return stopped(p.Pid()) })
	hung := time.Now()
	answers, last := 0, hung
	for id := uint16(1); time.Since(hung) < lapse+beyond; id++ {
		asked := time.Now()
		if came := a.pod.try(query, id, usual, nil); !came.IsZero() {
			answers, last = answers+1, asked
		}
	}
	t.Logf("%d answers, the last to a query of %v after the stop", answers, last.Sub(hung))
	if answers == 0 || last.Sub(hung) > lapse {
		t.Errorf("%d answers, the last to a query of %v after the stop; some are wanted, of the first %v", answers, last.Sub(hung), lapse)
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := l.answered()
	p.Must(t, "the kernel to answer again", func(context.Context) error {
		a.pod.try(query, 1, usual, nil)
		if l.answered() == before {
			return errors.New("the agent answers")
		}
		return nil
	})
}

// stopped holds for a process that is stopped.
func stopped(pid int) error {
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

// TestKernelUpgrades: twenty agents in a row that answer inside of the kernel, each of which
// takes over from the one before it, under load: not a question is lost, none goes to the
// cluster's DNS, and the kernel answers for each of them.
func TestKernelUpgrades(t *testing.T) {
	upgrades := 20
	if testing.Short() {
		upgrades = 2
	}
	l := newKernelLab(t)
	l.proxied(testbed.Iptables)
	args := l.everywhere(testbed.InKernel)
	p := l.run(args...)
	job := testbed.Load(local4, testbed.Service4)
	stop := l.load(job)
	l.busy(p)
	for n := range upgrades {
		next := l.run(args...)
		if n%2 == 0 { // kubelet's way; an agent that is nobody's pod ends by itself
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Err(); err != nil {
			t.Fatalf("agent %d ended with %v and wrote:\n%s", n, err, p.Tail())
		}
		p = next
		l.busy(p)
	}
	r := stop()
	if all := r.All(); all.Asked == 0 || all.Local != all.Asked {
		t.Errorf("after %d upgrades: %+v", upgrades, all)
	}
}

// some is how many answers of the kernel say that it answers: so many come within a tenth of
// a second of the load.
const some = 500

// busy waits until the kernel has answered for the agent.
func (l *lab) busy(p *peer.Process) {
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
		if n-before < some {
			return fmt.Errorf("%d so far", n-before)
		}
		return nil
	})
}

// TestKernelStops: an agent that ends in an orderly way leaves nothing of its answers in the
// kernel: the cluster's DNS answers, by the rules that are left. As these stay, a question that
// has passed them when the socket closes finds nobody, one on each processor at most.
func TestKernelStops(t *testing.T) {
	l := newKernelLab(t)
	l.proxied(testbed.Iptables)
	args := l.everywhere(testbed.InKernel, "-skipteardown")
	p := l.run(args...)
	job := testbed.Load(local4, testbed.Service4)
	job.Streams, job.Shots = 0, 0 // a connection ends with its process
	stop := l.load(job)
	l.over(p, testbed.Tally{}) // all names are known
	l.busy(p)
	ending := time.Now()
	p.Stop()
	gone := time.Now()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if got := l.chain("vpod"); len(got) > 0 {
		t.Errorf("the agent leaves programs: %q", got)
	}
	if err := peer.Await(t.Context(), "the cluster's DNS to answer", l.Answers(l.pod, testbed.FromCluster, "@"+local4)); err != nil {
		t.Fatal(err)
	}
	r := stop()
	if without := r.Between(gone, r.Ended); without.Asked == 0 || without.Cluster != without.Asked {
		t.Errorf("without an agent: %+v", without)
	}
	if while := r.Between(ending, gone); int(while.Failed()) > runtime.NumCPU() {
		t.Errorf("while it ended: %+v", while)
	}
}
