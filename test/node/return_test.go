package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// otherZone is a zone with a block of its own.
const otherZone = "shop." + testbed.Zone

// TestGiveBack: under load a successor takes over that can't resolve one zone. It gives the node back:
// no query is lost or goes to the cluster DNS, over UDP or TCP, only those in that zone fail, and the
// old agent has its rules and answers in the kernel again.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	for _, way := range []string{testbed.ProxyIptablesNft, testbed.ProxyNftables, kernelPathCase} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			l := newNetwork(t)
			args, job := l.allAddrArgs("-handover-compare=1m"), podLoad()
			if way == kernelPathCase {
				if err := testbed.KernelPathUsable(); err != nil {
					t.Skip(err)
				}
				args, job, way = append(args, testbed.KernelPathFlag), podPackets(), testbed.ProxyIptablesNft
			}
			l.addKubeProxy(way)
			l.addZone("Corefile", testbed.UpstreamIP+":"+testbed.UpstreamPort)
			env := []string{"KUBERNETES_SERVICE_HOST=192.0.2.1"}
			old := l.start(l.node, env, args...)
			old.Must(t, "the first agent to log that it serves", testbed.LogContains(old, "msg=serving"))
			stop := l.startLoad(job)
			l.waitForLookups(old, testbed.CacheStats{})
			for range 10 {
				if got, err := l.dig(l.pod, "@"+local4, "www."+otherZone); err != nil || got == "" {
					t.Fatalf("the zone before: %q, %v", got, err)
				}
			}
			rules := l.ruleList()

			l.addZone("Corefile", "127.0.0.1:9") // no server is there
			next := l.start(l.node, env, args...)
			next.Must(t, "the successor to compare itself", testbed.LogContains(next, "comparing with the predecessor"))
			next.Must(t, "the successor to find out", func(context.Context) error {
				_, _ = l.dig(l.pod, "+timeout=10", "@"+local4, "www."+otherZone)
				if !strings.Contains(next.Tail(), "worse than the predecessor") {
					return errors.New("not yet")
				}
				return nil
			})
			var exit *exec.ExitError
			if err := next.Err(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(next.Tail(), "servfail "+otherZone+".") {
				t.Errorf("the successor ended with %v and wrote:\n%s", err, next.Tail())
			}
			var then testbed.CacheStats
			old.Must(t, "the first agent's metrics", func(context.Context) (err error) {
				then, err = l.CacheStats()
				return err
			})
			l.waitForLookups(old, then)
			l.wantOwner(old)
			if got, err := l.dig(l.pod, "@"+local4, "www."+otherZone); err != nil || got == "" {
				t.Errorf("the zone afterwards: %q, %v", got, err)
			}
			check.Equal(t, rules, l.ruleList(), "the rules differ")
			if strings.Contains(strings.Join(args, " "), testbed.KernelPathFlag) {
				l.waitForKernelAnswers(old)
			}
			again := l.start(l.node, env, args...)
			if err := again.Err(); err == nil || !strings.Contains(again.Tail(), "has taken the node back from this agent") {
				t.Errorf("the second attempt ended with %v and wrote:\n%s", err, again.Tail())
			}
			r := stop()
			if all := r.All(); all.Asked == 0 || all.Local != all.Asked {
				t.Errorf("%+v", all)
			}
		})
	}
}

// addZone adds otherZone, forwarded to a server, to the agents' Corefile, or changes the server.
func (l *network) addZone(name, server string) {
	l.t.Helper()
	text, err := os.ReadFile(l.dir + "/" + name)
	if err != nil {
		l.t.Fatal(err)
	}
	base, _, _ := strings.Cut(string(text), otherZone+":53")
	l.file(name, base+otherZone+":53 {\n    bind "+strings.Join(testbed.AgentAddrs(), " ")+"\n    forward . "+server+"\n}\n")
}

// wantOwner fails the test unless the agent in p listens.
func (l *network) wantOwner(p *peer.Process) {
	l.t.Helper()
	if !strings.Contains(l.listening(), fmt.Sprintf("pid=%d,", p.PID())) {
		l.t.Errorf("the agent does not listen:\n%s", l.listening())
	}
}
