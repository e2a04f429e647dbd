package node

import (
	"os"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestMain runs a load client if the first argument says so.
func TestMain(m *testing.M) {
	os.Exit(load.Main(func() int {
		testbed.RaisePriority()
		testbed.AllowParallel()
		return m.Run()
	}))
}

const (
	local4, local6 = testbed.Local4, testbed.Local6
	upstreamIP     = testbed.UpstreamIP
)

// network is a testbed.Network whose errors fail the test.
type network struct {
	*testbed.Network
	t                   *testing.T
	pod, node, upstream string
	nodens, dir         string
	handoverPath        string // see handoverDir
}

// newNetwork creates a network, or skips the test if the machine can't have one.
func newNetwork(t *testing.T) *network {
	t.Helper()
	b := testbed.ForTest(t, "")
	return &network{Network: b, t: t, pod: b.Pod, node: b.Node, upstream: b.Upstream, nodens: b.Nodens, dir: b.Dir}
}

// in runs a command inside a namespace.
func (l *network) in(ns string, args ...string) string {
	l.t.Helper()
	out, err := l.In(ns, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// start runs nodens in a namespace.
func (l *network) start(ns string, env []string, args ...string) *peer.Process {
	l.t.Helper()
	return peer.Start(l.t, peer.Command{
		Name: "nodens-" + ns, Path: "ip", Env: env,
		Args: append([]string{"netns", "exec", ns, l.nodens}, args...),
	})
}

func (l *network) file(name, text string) string {
	l.t.Helper()
	path, err := l.File(name, text)
	if err != nil {
		l.t.Fatal(err)
	}
	return path
}

// script writes a shell script with one command, and returns its path.
func (l *network) script(name, command string) string {
	l.t.Helper()
	path := l.file(name, "#!/bin/sh\n"+command+"\n")
	if err := os.Chmod(path, 0o755); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// agentArgs returns the arguments of an agent at the link-local addresses that re-checks its rules
// every second.
func (l *network) agentArgs(more ...string) []string {
	l.t.Helper()
	args, err := l.AgentArgs([]string{local4, local6}, append([]string{"-syncinterval=1s"}, more...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return args
}

// startAgent starts the agent in the node and waits until it is ready. It answers before its rules
// are in place, so an answer is not enough.
func (l *network) startAgent(more ...string) *peer.Process {
	l.t.Helper()
	return l.startAgentWith(l.agentArgs(more...)...)
}

// startAgentWith starts an agent in the node with these arguments and waits until it is ready.
func (l *network) startAgentWith(args ...string) *peer.Process {
	l.t.Helper()
	p := l.start(l.node, nil, args...)
	p.Must(l.t, "the agent to log that it serves", testbed.LogContains(p, "msg=serving"))
	return p
}

// dig runs dig +short in a namespace and returns its output.
func (l *network) dig(ns string, args ...string) (string, error) { return l.Dig(ns, args...) }

// tracked returns the node's tracked connections of port 53.
func (l *network) tracked() string {
	l.t.Helper()
	lines, err := l.Tracked()
	if err != nil {
		l.t.Fatal(err)
	}
	return lines
}

// ruleList returns the node's rules and added chains, one a line, with their tables. Empty tables,
// which exist from the first rule on, look like missing ones.
func (l *network) ruleList() string {
	l.t.Helper()
	var lines []string
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		table := ""
		for line := range strings.Lines(l.in(l.node, tool)) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = line
			case strings.HasPrefix(line, "-A"), strings.HasPrefix(line, ":") && !strings.Contains(line, " ACCEPT "):
				lines = append(lines, tool+" "+table+" "+line)
			}
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// addresses returns the node's addresses, one a line.
func (l *network) addresses() string {
	l.t.Helper()
	return l.in(l.node, "ip", "-o", "-br", "addr")
}
