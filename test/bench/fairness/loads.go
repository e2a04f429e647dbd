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
	"github.com/nodens-dns/nodens/test/rig/testbed"
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
	sent, answered uint64
	// busy is what all cores spent on a packet in microseconds, client and agent what these processes spent of it.
	busy, client, agent float64
	// floorBusy and floorClient are the same for packets that the node drops as it gets them.
	floorBusy, floorClient float64
}

// node is what the node spends on a packet in microseconds, without what the pod spends on it.
func (r loadResult) node() float64 { return r.busy - r.floorBusy }

// byClocks is the same by the CPU clocks of the client and the agent: less than node by what runs in neither, and right
// on a busy machine, too. The kernel charges its work for a packet to the sender.
func (r loadResult) byClocks() float64 { return r.client + r.agent - r.floorClient }

func (r loadResult) own() float64 { return r.agent }

// answers is the part of the packets that were answered.
func (r loadResult) answers() float64 { return float64(r.answered) / float64(max(r.sent, 1)) }

// perPacket is a time in microseconds for each packet that was sent.
func perPacket(d time.Duration, s harness.Sample) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(s.Sent, 1))
}

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
			r.floorBusy, r.floorClient = perPacket(floor.Busy, floor), perPacket(floor.Client, floor)
			at := harness.Cell{Server: s.Name}
			b.out.loads[at] = append(b.out.loads[at], r)
			fmt.Fprintf(b.Progress, "round %d of %d, CPU, %s: %.2f µs of the node per packet, %.2f µs by the clocks, %.2f µs of the agent, %d of %d answered\n", n+1, b.rounds(), s.Name, r.node(), r.byClocks(), r.own(), r.answered, r.sent)
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
	if err != nil {
		return r, err
	}
	r = loadResult{sent: got.Sent, answered: got.Completed, busy: perPacket(got.Busy, got), client: perPacket(got.Client, got), agent: perPacket(after-before, got)}
	if limited := s.Name == socketLimitRow || s.Name == kernelLimitRow; limited && !b.Short && r.answers() > maxLimited {
		return r, fmt.Errorf("of %d packets %d are answered in spite of the limit", r.sent, r.answered)
	}
	return r, nil
}

// maxLimited is the part of a flood that may be answered with a limit, which allows a hundredth of the flood's rate and a burst.
const maxLimited = 0.2

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
