//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// crowd asks an agent all the time, each client the next question when it has the answer
// to the last.
type crowd struct {
	answered atomic.Uint64
	faults   chan error
	end      chan struct{}
	clients  sync.WaitGroup
}

// newCrowd asks for name at port, over these networks or else over UDP and TCP, until
// close.
func newCrowd(port uint16, name, want string, networks ...string) *crowd {
	c := &crowd{faults: make(chan error, 1), end: make(chan struct{})}
	if len(networks) == 0 {
		networks = []string{"udp", "udp", "udp", "tcp"}
	}
	for _, network := range networks {
		c.clients.Go(func() {
			if err := c.ask(network, port, name, want); err != nil {
				select {
				case c.faults <- err:
				default:
				}
			}
		})
	}
	return c
}

func (c *crowd) ask(network string, port uint16, name, want string) error {
	conn, err := dns.DialTimeout(network, fmt.Sprintf("127.0.0.1:%d", port), agenttest.Timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		select {
		case <-c.end:
			return nil
		default:
		}
		_ = conn.SetDeadline(time.Now().Add(agenttest.Timeout))
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)); err != nil {
			return fmt.Errorf("asking over %s: %w", network, err)
		}
		m, err := conn.ReadMsg()
		if err != nil {
			return fmt.Errorf("no answer over %s: %w", network, err)
		}
		if len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), "\t"+want) {
			return fmt.Errorf("over %s: answered with %s %v, want %s", network, dns.RcodeToString[m.Rcode], m.Answer, want)
		}
		c.answered.Add(1)
	}
}

// close ends the test if a query was lost or answered wrongly.
func (c *crowd) close(t *testing.T) {
	t.Helper()
	close(c.end)
	c.clients.Wait()
	select {
	case err := <-c.faults:
		t.Error(err)
	default:
	}
	t.Logf("%d queries answered", c.answered.Load())
}

// serving waits for another few answers to the crowd.
func (c *crowd) more(t *testing.T) {
	t.Helper()
	for n := c.answered.Load(); c.answered.Load() < n+100; time.Sleep(time.Millisecond) {
		select {
		case err := <-c.faults:
			t.Fatal(err)
		default:
		}
	}
}

// withCache is a Corefile that caches what is asked at port up.
func withCache(port, web, up uint16) string {
	return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n health 127.0.0.1:%d\n prometheus 127.0.0.1:%[2]d\n ready 127.0.0.1:%[2]d\n cache 300\n forward . 127.0.0.1:%d\n}\n", port, web, up)
}

// origin is an agent with names written down by hand, which is asked for them once and
// then stopped.
func origin(t *testing.T, up uint16) *agenttest.Agent {
	return startAgent(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n 192.0.2.1 www.example.org\n 192.0.2.2 ftp.example.org\n ttl 3600\n }\n}\n", up))
}

// TestHandover: one agent after the other takes over; no query is lost, on no connection;
// each begins with the cache of the one before it, which then ends by itself.
func TestHandover(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	dir := filepath.Join(t.TempDir(), "handover")
	upstream := origin(t, up)
	last := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agenttest.Expect(t, port, "www.example.org.", "192.0.2.1")
	upstream.Stop() // all that is known from here on is in the cache
	c := newCrowd(port, "www.example.org.", "192.0.2.1")
	for range 3 {
		next := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
		last.awaitExit(0)
		c.more(t)
		if got := agenttest.Metric(t, web, `nodens_handovers_total{result="complete",role="successor"}`); got != "1" {
			t.Errorf("the successor counts %q hand-overs, want 1", got)
		}
		if got := agenttest.Metric(t, web, "nodens_cache_restored_entries"); got != "1" {
			t.Errorf("%q answers were handed over, want 1", got)
		}
		if code, text := agenttest.Get(t, web, "/ready"); code != 200 {
			t.Errorf("/ready is %d %s", code, text)
		}
		last = next
	}
	c.close(t)
	last.signal(syscall.SIGTERM)
	last.awaitExit(0)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 2 {
		t.Errorf("%v is left in the folder (%v), want the saved cache and a socket at most", left, err)
	}
}

// TestInPod: where a kubelet would start it anew, the agent that has handed over waits
// to be stopped, and goes on if its successor dies; the successor of a successor, too.
func TestInPod(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, up)
	pod := []string{"KUBERNETES_SERVICE_HOST=192.0.2.1"}
	pidfile := filepath.Join(t.TempDir(), "pid")
	start := func() *process {
		a := newAgentProcess(t, withCache(port, web, up), pod, "-handover-dir", dir, "-pidfile", pidfile)
		a.AwaitLog("msg=serving")
		return a
	}
	owner := func() int {
		text, _ := os.ReadFile(pidfile)
		var pid int
		_, _ = fmt.Sscan(string(text), &pid)
		return pid
	}
	// showsEvent waits until status, which asks in the hand-over folder, shows the last hand-over.
	showsEvent := func(at *process, event string) {
		t.Helper()
		var shown string
		at.Await("the status "+event, func() bool {
			_, shown, _ = outcome(t, "status", "-handover-dir", dir, "-o", "json")
			return strings.Contains(shown, `"event": "`+event+`"`)
		})
	}
	crowded := func(over ...string) *crowd { return newCrowd(port, "www.example.org.", "192.0.2.1", over...) }
	first := start()
	for range 2 {
		c := crowded()
		second := start()
		c.more(t)
		c.close(t)
		if got := owner(); got != second.cmd.Process.Pid {
			t.Errorf("the file says process %d, want the second one", got)
		}
		if !first.alive() {
			t.Fatalf("the first agent has ended; log:\n%s", first.Log)
		}
		showsEvent(second, "took over")
		seen := strings.Count(first.Log.String(), "serving again")
		second.signal(syscall.SIGKILL)
		first.Await("the first agent to go on", func() bool { return strings.Count(first.Log.String(), "serving again") > seen })
		first.Await("the first agent to be the one again", func() bool { return owner() == first.cmd.Process.Pid })
		showsEvent(first, "resumed")
	}
	// An orderly end gives back, too, but for connections.
	c := crowded("udp", "udp", "udp")
	second := start()
	second.signal(syscall.SIGTERM)
	second.awaitExit(0)
	first.Await("the first agent to be the one again", func() bool { return owner() == first.cmd.Process.Pid })
	c.more(t)

	third := start()
	first.signal(syscall.SIGTERM)
	first.awaitExit(0)
	c.more(t)
	c.close(t)
	if got := owner(); got != third.cmd.Process.Pid {
		t.Errorf("the file says process %d, want the third one", got)
	}
	third.signal(syscall.SIGTERM)
	third.awaitExit(0)
	if _, err := os.Stat(pidfile); !os.IsNotExist(err) {
		t.Errorf("the file of the process is still there: %v", err)
	}
}

// approach is the successor's side of a hand-over, step by step.
func approach(t *testing.T, dir string) *handover.Predecessor {
	t.Helper()
	p, err := handover.Connect(t.Context(), dir, handover.Config{Version: "test"})
	if err != nil || p == nil {
		t.Fatalf("connecting to the agent: %v, %v", p, err)
	}
	return p
}

// takeSockets asks for the sockets, and does not keep them: what nobody reads from is
// lost.
func takeSockets(t *testing.T, p *handover.Predecessor) {
	t.Helper()
	list, err := p.Sockets(t.Context())
	if err != nil || len(list) == 0 {
		t.Fatalf("the sockets: %v, %v", list, err)
	}
	for _, s := range list {
		_ = s.File.Close()
	}
}

// TestSuccessorDies: whatever it had until then, the agent goes on, reloads, and hands over
// to the next one.
func TestSuccessorDies(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, up)
	agent := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agenttest.Expect(t, port, "www.example.org.", "192.0.2.1")
	ctx := t.Context()
	sockets := func(p *handover.Predecessor) { takeSockets(t, p) }
	cached := func(p *handover.Predecessor) {
		stream, err := p.Cache(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, stream); err != nil || n == 0 {
			t.Fatalf("the cache: %d bytes, %v", n, err)
		}
		_ = stream.Close()
	}
	for _, step := range []struct {
		name string
		do   func(*handover.Predecessor)
		of   string // the counter
	}{
		{"at once", func(*handover.Predecessor) {}, "failed"},
		{"with the sockets", sockets, "failed"},
		{"with the cache", func(p *handover.Predecessor) { sockets(p); cached(p) }, "failed"},
		{"in the middle of the cache", func(p *handover.Predecessor) {
			if _, err := p.Cache(ctx); err != nil {
				t.Fatal(err)
			}
		}, "failed"},
		{"after the commit", func(p *handover.Predecessor) {
			client, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			asked := &dns.Conn{Conn: client}
			_ = asked.WriteMsg(new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA))
			if _, err := asked.ReadMsg(); err != nil { // so that it has been accepted
				t.Fatal(err)
			}
			takeSockets(t, p)
			var passed atomic.Int64
			if err := p.Commit(ctx, func(c handover.Conn) { passed.Add(1); _ = c.File.Close() }); err != nil {
				t.Fatal(err)
			}
			if passed.Load() == 0 {
				t.Error("the connection over TCP was not passed on")
			}
			if strings.Contains(agent.Log.String(), "serving again") {
				t.Error("the agent went on before its successor had ended")
			}
		}, "resumed"},
	} {
		t.Run(step.name, func(t *testing.T) {
			series := `nodens_handovers_total{result="` + step.of + `",role="predecessor"}`
			before := agenttest.Metric(t, web, series)
			c := newCrowd(port, "www.example.org.", "192.0.2.1")
			c.more(t)
			if step.of == "resumed" {
				c.close(t) // nobody reads until the agent does again
			}
			p := approach(t, dir)
			step.do(p)
			_ = p.Close()
			agent.Await("the agent to count it", func() bool {
				if step.of == "resumed" && !strings.Contains(agent.Log.String(), "serving again") {
					return false // nor does anybody answer over HTTP
				}
				return agenttest.Metric(t, web, series) != before
			})
			if step.of == "resumed" {
				c = newCrowd(port, "www.example.org.", "192.0.2.1")
			}
			c.more(t)
			c.close(t)
		})
	}
	c := newCrowd(port, "www.example.org.", "192.0.2.1")
	agenttest.WriteFile(t, agent.Conf, withCache(port, web, up)+"# another\n")
	agent.signal(syscall.SIGUSR1)
	agent.AwaitLog("the new configuration is in force")
	startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agent.awaitExit(0)
	c.more(t)
	c.close(t)
}

// TestPredecessorDies: at whatever step, its successor goes on alone.
func TestPredecessorDies(t *testing.T) {
	for _, step := range []string{"sockets", "cache", "yield"} {
		t.Run(step, func(t *testing.T) {
			p := peer.Ports(t, 3)
			dir := filepath.Join(t.TempDir(), "handover")
			origin(t, p[2])
			startProcess(t, step, nil, dir).AwaitLog("msg=serving")
			agent := startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir)
			agenttest.Expect(t, p[0], "www.example.org.", "192.0.2.1")
			if code, text := agenttest.Get(t, p[1], "/ready"); code != 200 {
				t.Errorf("/ready is %d %s", code, text)
			}
			agent.signal(syscall.SIGTERM)
			agent.awaitExit(0)
			if got := agent.Log.String(); !strings.Contains(got, "saved") && strings.Contains(got, "level=ERROR") {
				t.Errorf("the agent is not content:\n%s", got)
			}
		})
	}
}

// TestStopInTheMiddle: an agent that is asked to stop while it hands over stops when that
// has ended.
func TestStopInTheMiddle(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	origin(t, up)
	for _, breaks := range []bool{true, false} {
		t.Run(fmt.Sprintf("broken off %v", breaks), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "handover")
			agent := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
			p := approach(t, dir)
			takeSockets(t, p)
			agent.signal(syscall.SIGTERM)
			agent.AwaitLog("waiting for its end")
			agenttest.Expect(t, port, "ftp.example.org.", "192.0.2.2")
			if breaks {
				_ = p.Close()
				agent.awaitExit(0)
				if !strings.Contains(agent.Log.String(), "msg=stopping") {
					t.Error("the agent did not stop as it does without a successor")
				}
				return
			}
			if err := p.Commit(t.Context(), func(c handover.Conn) { _ = c.File.Close() }); err != nil {
				t.Fatal(err)
			}
			p.Settled()
			agent.awaitExit(0)
			if strings.Contains(agent.Log.String(), "msg=stopping") {
				t.Error("the agent stopped as if it had no successor")
			}
		})
	}
}

// TestReloadPutOff: a configuration is not taken on while another agent takes over, but
// when that has come to nothing.
func TestReloadPutOff(t *testing.T) {
	p := peer.Ports(t, 3)
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, p[2])
	agent := startAgentProcess(t, withCache(p[0], p[1], p[2]), "-handover-dir", dir, "-log-format", "text")
	next := approach(t, dir)
	takeSockets(t, next)
	agenttest.WriteFile(t, agent.Conf, withCache(p[0], p[1], p[2])+"# another\n")
	agent.signal(syscall.SIGUSR1)
	agent.AwaitLog("deferred until")
	if strings.Contains(agent.Log.String(), "is in force") {
		t.Error("the configuration was taken on")
	}
	_ = next.Close()
	agent.AwaitLog("the new configuration is in force")
}

// TestOtherAddress: a successor whose configuration says other addresses serves those, and
// the others go with its predecessor.
func TestOtherAddress(t *testing.T) {
	p := peer.Ports(t, 4)
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, p[3])
	first := startAgentProcess(t, withCache(p[0], p[2], p[3]), "-handover-dir", dir)
	agenttest.Expect(t, p[0], "www.example.org.", "192.0.2.1")
	startAgentProcess(t, withCache(p[1], p[2], p[3]), "-handover-dir", dir)
	first.awaitExit(0)
	agenttest.Expect(t, p[1], "www.example.org.", "192.0.2.1")
	if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p[0])); err == nil {
		_ = conn.Close()
		t.Error("somebody still listens at the old address")
	}
}

// TestUnfit: a successor that can't serve leaves everything as it is.
func TestUnfit(t *testing.T) {
	p := peer.Ports(t, 4)
	port, web, up := p[0], p[1], p[2]
	dir := filepath.Join(t.TempDir(), "handover")
	origin(t, up)
	agent := startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	c := newCrowd(port, "www.example.org.", "192.0.2.1")
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p[3]))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	next := newAgentProcess(t, withCache(port, web, up)+withCache(p[3], web, up), nil, "-handover-dir", dir)
	next.awaitExit(1)
	if got := next.Log.String(); !strings.Contains(got, "taking over") {
		t.Errorf("it did not even try:\n%s", got)
	}
	c.more(t)
	// One that waits for its view of the cluster, until it is asked to stop.
	_ = taken.Close()
	next = newAgentProcess(t, withCache(port, web, up)+fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n endpoint http://127.0.0.1:%[1]d\n }\n}\n", p[3]), nil, "-handover-dir", dir)
	next.AwaitLog("part=kubernetes")
	next.signal(syscall.SIGTERM)
	next.awaitExit(0)
	c.more(t)
	startAgentProcess(t, withCache(port, web, up), "-handover-dir", dir)
	agent.awaitExit(0)
	c.more(t)
	c.close(t)
}

// TestBeside: where nothing can be handed over, an agent starts beside the other one, and
// goes on when that ends.
func TestBeside(t *testing.T) {
	p := peer.Ports(t, 3)
	port, web, up := p[0], p[1], p[2]
	origin(t, up)
	first := startAgentProcess(t, withCache(port, web, up), "-handover-dir", filepath.Join(t.TempDir(), "handover"))
	startAgentProcess(t, withCache(port, web, up), "-handover-dir", filepath.Join(t.TempDir(), "handover"))
	first.signal(syscall.SIGTERM)
	first.awaitExit(0)
	agenttest.Expect(t, port, "www.example.org.", "192.0.2.1")
	if code, text := agenttest.Get(t, web, "/ready"); code != 200 {
		t.Errorf("/ready is %d %s", code, text)
	}
}

// TestHandoverDirOfAnother: an agent does not start in a directory whose owner could take
// its sockets, and says what to do.
func TestHandoverDirOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	p := peer.Ports(t, 3)
	a := newAgentProcess(t, withCache(p[0], p[1], p[2]), nil, "-handover-dir", dir)
	a.awaitExit(1)
	if log := a.Log.String(); !strings.Contains(log, "-handover-dir "+dir) || !strings.Contains(log, "chown 0") {
		t.Errorf("the log does not name the setting and the remedy:\n%s", log)
	}
	if list, err := os.ReadDir(dir); len(list) > 0 || err != nil {
		t.Errorf("the directory holds %v, %v", list, err)
	}
}
