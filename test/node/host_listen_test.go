package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// hostAddr is the address for the node's own look-ups.
const hostAddr = "169.254.20.11"

// nodeFiles is a directory with the node's /etc and /run.
type nodeFiles string

func (f nodeFiles) resolvConf() string { return filepath.Join(string(f), "etc", "resolv.conf") }

func (f nodeFiles) write(t *testing.T, text string) {
	t.Helper()
	path := f.resolvConf()
	check.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+"-new", []byte(text), 0o644), os.Rename(path+"-new", path)))
}

// names returns a probe that succeeds when the file names these servers and nothing else.
func (f nodeFiles) names(servers ...string) peer.Probe {
	return func(context.Context) error {
		text, err := os.ReadFile(f.resolvConf())
		var got []string
		for line := range strings.Lines(string(text)) {
			if s, ok := strings.CutPrefix(line, "nameserver "); ok {
				got = append(got, strings.TrimSpace(s))
			}
		}
		if strings.Join(got, " ") != strings.Join(servers, " ") {
			return errors.Join(err, fmt.Errorf("the file names %q, want %q", got, servers))
		}
		return err
	}
}

// startHostAgent starts an agent that answers the node's own look-ups.
func (l *network) startHostAgent(f nodeFiles, more ...string) *peer.Process {
	l.t.Helper()
	return l.startAgent(append([]string{"-host-listen=" + hostAddr, "-host-root=" + string(f), "-host-resolver=auto"}, more...)...)
}

// TestHostListen: look-ups of the node are answered by its own servers through the agent, without names of the
// cluster. The file is kept pointing to the agent, and the servers of a DHCP change are used. When the agent is
// killed, the next query goes to these servers; a restart and a normal end leave the file as it was.
func TestHostListen(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			testHostListen(t, "-netfilter="+backend)
		})
	}
}

func testHostListen(t *testing.T, flag string) {
	l := newNetwork(t)
	files := nodeFiles(filepath.Join(l.dir, "host"))
	original := "# of the node\nsearch lan\nnameserver " + upstreamIP + "\n"
	files.write(t, original)
	at := hostAddr + ":53"
	p := l.startHostAgent(files, flag)
	p.Must(t, "the file to name the agent", files.names(hostAddr, upstreamIP))
	for _, ns := range []string{l.node, l.pod} {
		for _, network := range []string{"udp", "tcp"} {
			if got, err := l.Ask(ns, network, at); err != nil || got != testbed.FromAgent.String() {
				t.Errorf("from %s over %s: %q, %v", ns, network, got, err)
			}
		}
	}
	if got, err := l.dig(l.node, "@"+hostAddr, "web.shop.svc.cluster.local"); err != nil || got != "192.0.2.90" {
		t.Errorf("a name of the cluster: %q, %v; the node's servers say 192.0.2.90", got, err)
	}
	if got := l.tracked(); strings.Contains(got, hostAddr) {
		t.Errorf("queries of the node are tracked:\n%s", got)
	}

	changed := strings.Replace(original, upstreamIP, testbed.ClusterDNS4, 1)
	files.write(t, changed) // as a DHCP client does
	p.Must(t, "the file to name the agent again", files.names(hostAddr, testbed.ClusterDNS4))
	p.Must(t, "the new server to be asked", l.Answers(l.node, testbed.FromCluster, "udp", at))

	p.Kill()
	l.askWithoutAgent(at, testbed.FromCluster)
	p = l.startHostAgent(files, flag)
	p.Must(t, "the agent to answer", func(context.Context) error {
		if got, err := l.dig(l.node, "@"+hostAddr, "version.bind", "CH", "TXT"); err != nil || got != "" {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	})
	p.Must(t, "the file to name the agent", files.names(hostAddr, testbed.ClusterDNS4))
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	text, err := os.ReadFile(files.resolvConf())
	check.NoError(t, err)
	check.Equal(t, changed, string(text), "the file after the end")
	if got := l.ruleList() + l.in(l.node, "nft", "list", "tables"); strings.Contains(got, "NODENS") || strings.Contains(got, "nodens") {
		t.Errorf("left behind:\n%s", got)
	}
	if got := l.addresses(); strings.Contains(got, hostAddr) {
		t.Errorf("left behind:\n%s", got)
	}
}

// askWithoutAgent asks at an address right after the agent has gone, from the node and from a pod. Each query has an
// answer of the node's server.
func (l *network) askWithoutAgent(at string, want netip.Addr) {
	l.t.Helper()
	for range 20 {
		for _, ns := range []string{l.node, l.pod} {
			for _, network := range []string{"udp", "tcp"} {
				start := time.Now()
				if got, err := l.Ask(ns, network, at); err != nil || got != want.String() {
					l.t.Errorf("without an agent, from %s over %s: %q, %v after %v", ns, network, got, err, time.Since(start))
				}
			}
		}
	}
}

// TestHostListenSkipTeardown: an agent that leaves everything for the next one leaves the file, too, and queries
// are answered.
func TestHostListenSkipTeardown(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	files := nodeFiles(filepath.Join(l.dir, "host"))
	files.write(t, "nameserver "+testbed.ClusterDNS4+"\n")
	p := l.startHostAgent(files, "-skipteardown")
	p.Must(t, "the file to name the agent", files.names(hostAddr, testbed.ClusterDNS4))
	p.Stop()
	check.NoError(t, files.names(hostAddr, testbed.ClusterDNS4)(t.Context()))
	l.askWithoutAgent(hostAddr+":53", testbed.FromCluster)
	l.in(l.node, l.nodens, "cleanup", "-localip", local4+","+local6, "-host-listen", hostAddr, "-host-root", string(files))
	check.NoError(t, files.names(testbed.ClusterDNS4)(t.Context()))
}

// ended returns a probe that succeeds when the process has ended.
func ended(p *peer.Process) peer.Probe {
	return func(context.Context) error {
		select {
		case <-p.Done():
			return nil
		default:
			return errors.New("it runs")
		}
	}
}

// TestHostListenHandover: an upgrade leaves the file alone, and queries are answered afterwards; an agent with
// -host-resolver=remove restores it, and still answers.
func TestHostListenHandover(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	files := nodeFiles(filepath.Join(l.dir, "host"))
	original := "nameserver " + testbed.ClusterDNS4 + "\n"
	files.write(t, original)
	handover := "-handover-dir=" + l.handoverDir()
	first := l.startHostAgent(files, handover, "-handover-compare=0")
	first.Must(t, "the file to name the agent", files.names(hostAddr, testbed.ClusterDNS4))
	installed, err := os.Stat(files.resolvConf())
	check.NoError(t, err)
	second := l.startHostAgent(files, handover, "-handover-compare=0")
	second.Must(t, "the first agent to end", ended(first))
	if now, err := os.Stat(files.resolvConf()); err != nil || !os.SameFile(now, installed) {
		t.Errorf("the file was written at the hand-over (%v)", err)
	}
	check.NoError(t, l.Answers(l.node, testbed.FromCluster, "udp", hostAddr+":53")(t.Context()))
	third := l.startHostAgent(files, handover, "-handover-compare=0", "-host-resolver=remove")
	third.Must(t, "the second agent to end", ended(second))
	third.Must(t, "the file to be as before", func(context.Context) error {
		text, err := os.ReadFile(files.resolvConf())
		if err == nil && string(text) != original {
			err = errors.New(string(text))
		}
		return err
	})
	check.NoError(t, l.Answers(l.node, testbed.FromCluster, "udp", hostAddr+":53")(t.Context()))
}

// TestHostListenOff: without the flags nothing listens at the address, and the node's files are not read.
func TestHostListenOff(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	files := nodeFiles(filepath.Join(l.dir, "host"))
	files.write(t, "nameserver "+testbed.ClusterDNS4+"\n")
	l.startAgent("-host-root=" + string(files))
	if got := l.addresses() + l.in(l.node, "ss", "-lnu") + l.ruleList(); strings.Contains(got, hostAddr) || strings.Contains(got, "HOST") {
		t.Errorf("it has an effect:\n%s", got)
	}
	check.NoError(t, files.names(testbed.ClusterDNS4)(t.Context()))
}
