package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// BenchmarkClientLimit measures the node's CPU time for a query of a pod that floods one cached name, of which the limit
// lets one in a thousand pass: the agent's CPU clock and that of the pod's thread, which the kernel also charges with its
// own work for a packet (the soft interrupt of the veth pair, the programs, the rules, the socket's queue), less what
// sending takes on an interface that discards all packets. It needs a kernel without CONFIG_IRQ_TIME_ACCOUNTING.
func BenchmarkClientLimit(b *testing.B) {
	if err := testbed.KernelPathUsable(); err != nil {
		b.Skip(err)
	}
	const limit = "-client-limit=50 50 drop"
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"no limit, socket", nil},
		{"limit, socket", []string{limit}},
		{"limit, kernel", []string{limit, testbed.KernelPathFlag}},
	} {
		l := testbed.ForTest(b, "")
		args, err := l.AgentArgs([]string{local4, local6}, c.flags...)
		check.NoError(b, err)
		p, err := l.StartAgent(args...)
		check.NoError(b, err)
		// A bridge without ports discards all packets.
		commands := "link add sink type bridge\nlink set sink up\nroute add " + sink + " dev sink\nneigh add " + sink + " lladdr 02:00:00:00:00:01 dev sink nud permanent\n"
		if _, err := l.InWithInput(l.Pod, commands, "ip", "-batch", "-"); err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) { measureFlood(b, l, p) })
		l.Close()
	}
}

// sink is an address that a pod reaches on an interface that discards all packets.
const sink = "192.0.2.99"

// perBurst is how many queries a flood sends each millisecond.
const perBurst = 50

// measureFlood sends b.N bursts to the agent, each followed by one to the sink, and reports the node's CPU time.
func measureFlood(b *testing.B, l *testbed.Network, p *peer.Process) {
	began, err := machine.CPUClock(p.PID())
	check.NoError(b, err)
	var pod, own time.Duration
	err = testbed.InNamespace(l.Pod, func() error {
		flood, err := newRawSender(local4)
		if err != nil {
			return err
		}
		defer flood.close()
		nothing, err := newRawSender(sink)
		if err != nil {
			return err
		}
		defer nothing.close()
		for range b.N {
			pod += flood.burst()
			own += nothing.burst()
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	check.NoError(b, err)
	ended, err := machine.CPUClock(p.PID())
	check.NoError(b, err)
	queries := float64(b.N * perBurst)
	perQuery := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / queries }
	b.ReportMetric(perQuery(pod-own+ended-began), "node-ns/query")
	b.ReportMetric(perQuery(ended-began), "agent-ns/query")
	b.ReportMetric(perQuery(own), "pod-ns/query")
	b.ReportMetric(0, "ns/op")
}

// rawSender sends one query again and again, and reads no replies.
type rawSender struct {
	fd    int
	query []byte
}

func newRawSender(addr string) (*rawSender, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s := &rawSender{fd, pack(question("who."+testbed.Zone+".", dns.TypeA))}
	to := &unix.SockaddrInet4{Port: 53}
	if _, err := fmt.Sscanf(addr, "%d.%d.%d.%d", &to.Addr[0], &to.Addr[1], &to.Addr[2], &to.Addr[3]); err != nil {
		return nil, err
	}
	return s, unix.Connect(fd, to)
}

// burst sends queries and returns the thread's CPU time for it. A reply whose socket is full is lost.
func (s *rawSender) burst() time.Duration {
	began := threadClock()
	for range perBurst {
		_, _ = unix.Write(s.fd, s.query)
	}
	return threadClock() - began
}

func (s *rawSender) close() { _ = unix.Close(s.fd) }

// threadClock returns the CPU time of the calling thread.
func threadClock() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
