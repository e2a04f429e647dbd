package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// feature tries one thing that the agent does. The text is "yes", or has the agent's words about what
// it refuses or replaces; an error says what does not work.
type feature struct {
	name string
	try  func(n *node) (string, error)
}

// yes: the feature works.
const yes = "yes"

// allFeatures are the columns of the table in docs/reference/kernels.md. programs tests the programs of
// the kernel path.
func allFeatures(programs func() error) []feature {
	return []feature{
		{"answers", answersBoth},
		{"dummy interface", dummyInterface},
		{"socket per CPU", socketPerCPU},
		{"read-only root", readOnly},
		{"cgroup v2", memoryGroup},
		{"hand-over", handOver},
		{"iptables-nft", failOpen(testbed.ProxyIptablesNft)},
		{"iptables-legacy", failOpen(testbed.ProxyIptablesLegacy)},
		{"nftables", failOpen(testbed.ProxyNftables)},
		{"owner table", ownerTable},
		{"container", container},
		{"missing modules", missingModules},
		{"kernel path", kernelPath(programs)},
	}
}

// features tries all, each in a network of its own, and writes a line for each. It returns an error if
// one neither works nor is refused.
func features(programs func() error) error {
	var failed []string
	for _, f := range allFeatures(programs) {
		began := time.Now()
		cell, err := inNetwork(agent, f.try)
		if err != nil {
			cell = "no: " + oneLine(err.Error())
			failed = append(failed, f.name)
			fmt.Printf("%s: %v\n", f.name, err)
		}
		fmt.Printf("\nfeature %s: %s\n(%.0f s)\n", f.name, cell, time.Since(began).Seconds())
	}
	if len(failed) > 0 {
		return fmt.Errorf("neither work nor are refused: %s", strings.Join(failed, ", "))
	}
	return nil
}

// agent is the program as a process of the node.
const agent = "/usr/bin/nodens"

// inNetwork calls try in a new network, whose node starts the program as its agent.
func inNetwork(program string, try func(n *node) (string, error)) (string, error) {
	dir, err := os.MkdirTemp("", "f")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	b, err := testbed.New(dir, agent)
	cell := ""
	if err == nil {
		b.Nodens = program
		cell, err = try(&node{b})
	}
	b.Close()
	return cell, err
}

// node is a network whose node has at most a few agents.
type node struct{ *testbed.Network }

// start starts an agent at all addresses and waits until it serves.
func (n *node) start(more ...string) (*peer.Process, error) {
	args, err := n.args(more...)
	if err != nil {
		return nil, err
	}
	return n.StartAgent(args...)
}

func (n *node) args(more ...string) ([]string, error) {
	return n.AgentArgs(testbed.AgentAddrs(), append([]string{"-syncinterval=1s", "-handover-dir=" + n.Dir + "/h", "-handover-compare=0"}, more...)...)
}

// asked reports an error unless all queries from the namespaces to the agent's addresses get an answer of from.
func (n *node) asked(when, from string, askers ...string) error {
	for _, ns := range askers {
		for _, server := range testbed.AgentAddrs() {
			for _, network := range []string{"udp", "tcp"} {
				got, err := n.Ask(ns, network, net.JoinHostPort(server, "53"))
				if err != nil || got != from {
					return fmt.Errorf("%s, %s asks %s over %s: answer %q, want %s; %w", when, role(ns), server, network, got, from, err)
				}
			}
		}
	}
	return nil
}

// role is the part of a namespace's name that says what it is.
func role(ns string) string { return ns[strings.LastIndex(ns, "-")+1:] }

// oneLine replaces line ends.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// logFields finds the message and the error of a log line.
var logFields = regexp.MustCompile(`(?:msg|err)=("(?:[^"\\]|\\.)*"|\S+)`)

// refused returns a cell with the agent's words: the message and the error of the last line of its
// output that has the word, or the line itself if it is not of the log. It fails if there is none.
func refused(output, word string) (string, error) {
	parts, err := agentWords(output, word)
	return "refused: " + randomName.ReplaceAllString(oneLine(strings.Join(parts, ": ")), "nodens-host-…"), err
}

// agentWords returns the parts of that line, the message first.
func agentWords(output, word string) (parts []string, err error) {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	slices.Reverse(lines)
	i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, word) })
	if i < 0 {
		return nil, fmt.Errorf("no line of the agent has %q; it wrote: %s", word, output)
	}
	for _, m := range logFields.FindAllStringSubmatch(lines[i], -1) {
		text, err := strconv.Unquote(m[1])
		if err != nil {
			text = m[1] // not quoted
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		parts = []string{lines[i]}
	}
	return parts, nil
}

// randomName is the name of an owner table.
var randomName = regexp.MustCompile(`nodens-host-[a-z2-7]+`)

// answersBoth: an agent answers at its addresses of both families over UDP and TCP.
func answersBoth(n *node) (string, error) {
	if _, err := n.start(); err != nil {
		return "", err
	}
	return yes, n.asked("with an agent", testbed.FromAgent.String(), n.Pod, n.Node)
}

// dummyInterface: the addresses are on an interface of kind dummy.
func dummyInterface(n *node) (string, error) {
	p, err := n.start()
	if err != nil {
		return "", err
	}
	out, err := n.In(n.Node, "ip", "-details", "address", "show", "dev", "nodelocaldns")
	if err == nil && strings.Contains(out, "dummy") && strings.Contains(out, testbed.Local4) {
		return yes, nil
	}
	return refused(p.Tail(), "dummy")
}

// socketPerCPU: the kernel shares the UDP packets for an address among the agent's sockets.
func socketPerCPU(n *node) (string, error) {
	p, err := n.start()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/udp", p.PID()))
	if err != nil {
		return "", err
	}
	const local = "0A14FEA9:0035" // 169.254.20.10, port 53
	if count := strings.Count(string(text), local); count < 2 {
		return "", fmt.Errorf("%d sockets at the address", count)
	}
	return yes, n.asked("with several sockets", testbed.FromAgent.String(), n.Pod)
}

// readOnly: an agent serves, hands over and ends where the root is read-only.
func readOnly(n *node) (string, error) {
	if err := os.WriteFile("/file", nil, 0o600); !errors.Is(err, unix.EROFS) {
		return "", fmt.Errorf("the root is not read-only: %w", err)
	}
	p, err := n.start()
	if err != nil {
		return "", err
	}
	if err := n.asked("with a read-only root", testbed.FromAgent.String(), n.Pod); err != nil {
		return "", err
	}
	p.Stop()
	return yes, p.Err()
}

// memoryLimit is what the manifest gives the agent.
const memoryLimit = 256 << 20

// memoryGroup: an agent serves in a control group of version 2 with the manifest's limit of memory.
func memoryGroup(n *node) (string, error) {
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		return "", err
	}
	group, err := n.NewMemoryGroup(memoryLimit)
	if err != nil {
		return "", err
	}
	args, err := n.args()
	if err != nil {
		return "", err
	}
	// Inside the namespace there is another /sys, so the group comes first. Busybox's shell has an ip of its own.
	inside := group.Inside(append([]string{"/usr/bin/ip", "netns", "exec", n.Node, n.Nodens}, args...)...)
	p, err := peer.Spawn(peer.Command{Name: "grouped", Path: inside[0], Args: inside[1:], Dir: n.Dir})
	if err != nil {
		return "", err
	}
	n.Cleanup(p.Stop)
	if err := p.Await(context.Background(), "the agent to serve", testbed.LogContains(p, "msg=serving")); err != nil {
		return "", err
	}
	if err := n.asked("in a control group", testbed.FromAgent.String(), n.Pod); err != nil {
		return "", err
	}
	usage, err := group.Usage()
	if err == nil && (usage.Used == 0 || usage.Kills > 0) {
		err = fmt.Errorf("the group uses %d bytes and has %d kills", usage.Used, usage.Kills)
	}
	return yes, err
}

// kernelPath: the kernel answers repeated queries of pods, or the agent does not start; and the tests of
// the programs pass.
func kernelPath(programs func() error) func(n *node) (string, error) {
	return func(n *node) (string, error) {
		cell, err := kernelAnswers(n)
		if err != nil {
			return "", err
		}
		return cell, programs()
	}
}

func kernelAnswers(n *node) (string, error) {
	args, err := n.args(testbed.KernelPathFlag)
	if err != nil {
		return "", err
	}
	p, err := n.Spawn(n.Node, nil, append([]string{n.Nodens}, args...)...)
	if err != nil {
		return "", err
	}
	if err := p.Await(context.Background(), "the agent to serve", testbed.LogContains(p, "msg=serving")); err != nil {
		if testbed.KernelPathUsable() == nil {
			return "", err
		}
		return refused(p.Tail(), "tcx")
	}
	return yes, peer.Await(context.Background(), "answers of the kernel", func(context.Context) error {
		if err := n.asked("with the kernel path", testbed.FromAgent.String(), n.Pod); err != nil {
			return err
		}
		m, err := n.Metrics()
		if err == nil && m.Sum("nodens_kernel_path_queries_total", `result="answered"`) == 0 {
			err = errors.New("the kernel has answered no query")
		}
		return err
	})
}
