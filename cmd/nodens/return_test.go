//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// inPodEnv makes an agent that has handed over wait until it is stopped.
var inPodEnv = []string{"KUBERNETES_SERVICE_HOST=192.0.2.1"}

// withZone is withCache and another zone, which asks port to and has no cache.
func withZone(port, web, up, to uint16) string {
	return withCache(port, web, up) + fmt.Sprintf("shop.test:%d {\n bind 127.0.0.1\n forward . 127.0.0.1:%d\n}\n", port, to)
}

// failing asks for a name of the other zone until close, and counts what fails.
type failing struct {
	answered, failed atomic.Uint64
	first            atomic.Int64 // when a query failed first, in nanoseconds
	end              chan struct{}
	over             chan struct{}
}

func startFailing(t *testing.T, port uint16) *failing {
	f := &failing{end: make(chan struct{}), over: make(chan struct{})}
	go func() {
		defer close(f.over)
		c := &dns.Client{Timeout: agenttest.Timeout}
		for {
			select {
			case <-f.end:
				return
			case <-time.After(time.Millisecond):
			}
			m, _, err := c.Exchange(new(dns.Msg).SetQuestion("www.shop.test.", dns.TypeA), fmt.Sprintf("127.0.0.1:%d", port))
			switch {
			case err != nil:
				t.Errorf("a query was lost: %v", err)
				return
			case len(m.Answer) == 1:
				f.answered.Add(1)
			default:
				f.failed.Add(1)
				f.first.CompareAndSwap(0, time.Now().UnixNano())
			}
		}
	}()
	return f
}

func (f *failing) more(a *agenttest.Agent) {
	n := f.answered.Load()
	a.Await("answers in the other zone", func() bool { return f.answered.Load() > n+100 })
}

func (f *failing) close() { close(f.end); <-f.over }

// TestGiveBack: a successor that answers a zone with SERVFAIL gives the node back, without a lost
// query, and does not get it again.
func TestGiveBack(t *testing.T) {
	pidfile, socket := filepath.Join(t.TempDir(), "pid"), filepath.Join(t.TempDir(), "admin.sock")
	s := newSuccession(t, "-pidfile", pidfile, "-admin-socket", socket, "-handover-compare", "1m")
	p := peer.Ports(t, 2)
	zone, dead := p[0], p[1]
	startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.3 www.shop.test\n }\n}\n", zone))
	old := newAgentProcess(t, withZone(s.port, s.web, s.up, zone), inPodEnv, s.args...)
	old.AwaitLog("msg=serving")
	steady := s.crowd()
	other := startFailing(t, s.port)
	steady.more(t)
	other.more(old.Agent)

	next := newAgentProcess(t, withZone(s.port, s.web, s.up, dead), inPodEnv, s.args...)
	next.AwaitLog("comparing with the predecessor")
	agenttest.Expect(t, s.port, "ftp.example.org.", "192.0.2.2") // which only this one has then
	next.awaitExit(1)
	t.Logf("ended %v after the first failed query", time.Since(time.Unix(0, other.first.Load())))
	failed := other.failed.Load()
	for _, want := range []string{"kind=servfail zone=shop.test.", "delete the pod", "--handover-compare=0"} {
		if log := next.Log.String(); !strings.Contains(log, want) {
			t.Errorf("the log of the successor has no %q:\n%s", want, log)
		}
	}
	s.upstream.Stop()
	old.Await("the node's tasks", func() bool {
		text, _ := os.ReadFile(pidfile)
		return strings.TrimSpace(string(text)) == fmt.Sprint(old.cmd.Process.Pid)
	})
	steady.more(t)
	other.more(old.Agent)
	if n := other.failed.Load(); n > failed {
		t.Errorf("%d queries failed after the return", n-failed)
	}
	agenttest.Expect(t, s.port, "ftp.example.org.", "192.0.2.2")
	if code, text := agenttest.Get(t, s.web, "/ready"); code != 200 || !strings.HasPrefix(text, "OK\nthe node is back from a successor: servfail shop.test.") {
		t.Errorf("/ready is %d %q", code, text)
	}
	old.Await("the admin socket", func() bool {
		code, _, _ := outcome(t, "flush", "no.test", "-admin-socket", socket)
		return code == 0
	})

	again := newProcessOn(t, next.Conf, inPodEnv, s.args...)
	again.awaitExit(1)
	if log := again.Log.String(); !strings.Contains(log, "has taken the node back from this agent: servfail") || !strings.Contains(log, "delete the pod") {
		t.Errorf("the log of the refused successor:\n%s", log)
	}
	for series, want := range map[string]string{
		`nodens_handovers_total{result="returned",role="predecessor"}`: "1",
		`nodens_handover_taken_back_total{reason="servfail"}`:          "1",
		`nodens_handover_refused_total`:                                "1",
	} {
		s.wantMetric(series, want)
	}
	// Another pod may try again, and so may an agent that does not compare itself.
	other.close()
	pod := newProcessOn(t, next.Conf, append([]string{"POD_UID=another"}, inPodEnv...), s.args...)
	pod.AwaitLog("comparing with the predecessor")
	steady.more(t)
	pod.end()
	steady.more(t)
	last := newProcessOn(t, next.Conf, inPodEnv, append(s.args, "-handover-compare", "0")...)
	last.AwaitLog("msg=serving")
	steady.more(t)
	steady.close(t)
}

// TestHangs: the agent takes the node back from a successor that hangs or ends while it compares
// itself, and does not hand over to it again.
func TestHangs(t *testing.T) {
	for _, fault := range []struct {
		kind   string
		signal syscall.Signal
	}{{"hang", syscall.SIGSTOP}, {"ended", syscall.SIGKILL}} {
		t.Run(fault.kind, func(t *testing.T) {
			t.Parallel()
			s := newSuccession(t, "-handover-compare", "1m")
			s.env = inPodEnv
			old := s.start()
			next := s.begin()
			next.AwaitLog("comparing with the predecessor")
			next.signal(fault.signal)
			old.AwaitLog("serving again")
			if fault.signal == syscall.SIGSTOP {
				next.signal(syscall.SIGCONT)
				next.awaitExit(1)
				if log := next.Log.String(); !strings.Contains(log, "the predecessor has taken the node back") {
					t.Errorf("the log of the successor:\n%s", log)
				}
			}
			c := s.crowd()
			c.more(t)
			again := newProcessOn(t, next.Conf, s.env, s.args...)
			again.awaitExit(1)
			if log := again.Log.String(); !strings.Contains(log, "has taken the node back from this agent") {
				t.Errorf("the log of the refused successor:\n%s", log)
			}
			s.wantMetric(`nodens_handover_taken_back_total{reason="`+fault.kind+`"}`, "1")
			c.more(t)
			c.close(t)
		})
	}
}

// TestHungPredecessor: an agent that starts beside one that hangs gets all packets and connections.
func TestHungPredecessor(t *testing.T) {
	t.Parallel()
	s := newSuccession(t)
	s.start().signal(syscall.SIGSTOP)
	s.start().AwaitLog("starting beside the running agent")
	stream := dns.Client{Net: "tcp", Timeout: agenttest.Timeout}
	for i := 0; i < 8 && !t.Failed(); i++ {
		agenttest.Expect(t, s.port, "www.example.org.", "192.0.2.1")
		if _, _, err := stream.Exchange(new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA), fmt.Sprintf("127.0.0.1:%d", s.port)); err != nil {
			t.Errorf("over TCP: %v", err)
		}
	}
}

// TestKept: a successor that is no worse keeps the node. Then its predecessor frees its memory, and
// ends where nobody restarts it.
func TestKept(t *testing.T) {
	for _, env := range [][]string{nil, inPodEnv} {
		t.Run(fmt.Sprint(env), func(t *testing.T) {
			t.Parallel()
			s := newSuccession(t, "-handover-compare", "5s")
			s.env = env
			old := s.start()
			c := s.crowd()
			c.more(t)
			next := s.begin()
			next.AwaitLog("comparing with the predecessor")
			if got := s.metric("nodens_handover_comparing"); got != "1" || !old.alive() {
				t.Errorf("comparing is %q; the predecessor lives: %v", got, old.alive())
			}
			if code, _, stderr := outcome(t, "ready", "-handover-dir", s.dir); code != 1 || !strings.Contains(stderr, "compares itself") {
				t.Errorf("the startup probe: code %d, %s", code, stderr)
			}
			s.wantReady()
			old.AwaitLog("memory released")
			if code, _, stderr := outcome(t, "ready", "-handover-dir", s.dir); code != 0 {
				t.Errorf("the startup probe after the comparison: code %d, %s", code, stderr)
			}
			if env == nil {
				old.awaitExit(0)
			} else {
				c.close(t)
				next.signal(syscall.SIGKILL) // it resumes nevertheless
				old.AwaitLog("serving again")
				c = s.crowd()
			}
			c.more(t)
			c.close(t)
		})
	}
}
