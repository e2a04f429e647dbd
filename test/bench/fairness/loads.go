package fairness

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/failover"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/kernel"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/node/testbed"
)

// The rows of the node's CPU time that the target is about.
const (
	socketLimitRow = "limit in the agent"
	kernelLimitRow = "limit in the kernel"
)

// loadServers are the agents that one pod floods with hits.
func loadServers() []harness.Server {
	s := harness.Server{Program: "nodens", Conf: "deployed"}
	socket, limited, inKernel, limitedInKernel := s, s, s, s
	socket.Name = "no limit, answers from the agent"
	limited.Name, limited.Flags = socketLimitRow, limitFlag()
	inKernel.Name, inKernel.Flags = "no limit, answers from the kernel", []string{"-kernel-path", "on"}
	limitedInKernel.Name, limitedInKernel.Flags = kernelLimitRow, append(limitFlag(), "-kernel-path", "on")
	return []harness.Server{socket, limited, inKernel, limitedInKernel}
}

// loadName is what the pod asks for, at the rate.
var (
	loadNames = harness.QuerySet{Name: "one name from a pod", Names: []string{"name-1." + testbed.Zone + "."}, Edns: true, Qtype: dns.TypeA}
	loadShape = harness.LoadShape{Name: "flood", Tool: harness.FromPod, Rate: 100_000}
)

// loadResult is what a flood cost the machine in one round.
type loadResult struct {
	sent uint64
	// busy is what all cores spent, agent what the agent's process spent of it, and floor what they spend on as many packets that
	// the node drops as it gets them.
	busy, agent, floor time.Duration
	elapsed            time.Duration
	answered           uint64
}

// perPacket is a time for a packet of the flood, in microseconds.
func (r loadResult) perPacket(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(r.sent, 1))
}

// node is what the node spends on a packet, without what the pod spends on it.
func (r loadResult) node() float64 { return r.perPacket(r.busy - r.floor) }

func (r loadResult) own() float64 { return r.perPacket(r.agent) }

// core is the part of one core that the node spends on the flood.
func (r loadResult) core() float64 { return (r.busy - r.floor).Seconds() / r.elapsed.Seconds() }

// measureLoads measures what a pod's flood of hits costs the node, with the limit in the agent and in the kernel.
func (b *run) measureLoads(ctx context.Context) error {
	if len(b.loadServers) == 0 || !b.Only.MatchesName("cpu") {
		return nil
	}
	if err := testbed.KernelPathUsable(); err != nil {
		b.note("The limit in the kernel is not measured: %v.", err)
		return nil
	}
	d, err := kernel.NewPodBench(ctx, failover.NewRun(b.Run, 0), loadNames)
	if err != nil {
		return err
	}
	defer d.Close()
	for n := range b.rounds() {
		floor, err := b.floor(ctx, d)
		if err != nil {
			return err
		}
		for _, s := range slices.Clone(b.loadServers) {
			r, err := b.load(ctx, d, s)
			if err != nil {
				if err := b.leaveOut(ctx, s, err); err != nil {
					return err
				}
				b.loadServers = slices.DeleteFunc(b.loadServers, func(o harness.Server) bool { return o.Name == s.Name })
				continue
			}
			r.floor = time.Duration(floor.Busy.Seconds() / float64(floor.Sent) * float64(r.sent) * float64(time.Second))
			b.out.loads[s.Name] = append(b.out.loads[s.Name], r)
			fmt.Fprintf(b.Progress, "round %d of %d, CPU, %s: %.2f µs of the node and %.2f µs of the agent per packet, %d of %d answered\n", n+1, b.rounds(), s.Name, r.node(), r.own(), r.answered, r.sent)
		}
	}
	return nil
}

// load measures a new agent.
func (b *run) load(ctx context.Context, d *kernel.PodBench, s harness.Server) (r loadResult, err error) {
	p, err := d.Start(ctx, s)
	if p != nil {
		defer p.Stop()
	}
	if err != nil {
		return r, err
	}
	before, err := machine.CPUClock(p.PID())
	if err != nil {
		return r, err
	}
	got, err := d.AskBusy(ctx, b.loadShape(), b.Length)
	if err != nil {
		return r, err
	}
	after, err := machine.CPUClock(p.PID())
	return loadResult{sent: got.Sent, busy: got.Busy, agent: after - before, elapsed: b.Length, answered: got.Completed}, err
}

func (b *run) loadShape() harness.LoadShape {
	s := loadShape
	s.Rate = b.Rate(s.Rate)
	return s
}

// wrongMAC is an Ethernet address that no interface has: the node drops packets to it as it gets them.
const wrongMAC = "02:00:00:00:00:01"

// floor measures the pod's own part: the same packets, which the node drops before it looks at their addresses.
func (b *run) floor(ctx context.Context, d *kernel.PodBench) (got harness.Sample, err error) {
	pod := d.Network().Pod
	if _, err := d.Network().In(pod, "ip", "neigh", "replace", testbed.NodeIP4, "lladdr", wrongMAC, "dev", "eth0", "nud", "permanent"); err != nil {
		return got, err
	}
	if got, err = d.AskBusy(ctx, b.loadShape(), b.Length); err != nil {
		return got, err
	}
	_, err = d.Network().In(pod, "ip", "neigh", "delete", testbed.NodeIP4, "dev", "eth0")
	return got, err
}
