//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/nodens-dns/nodens/test/rig/check"
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

// succession is what agents share that take over from each other.
type succession struct {
	t             *testing.T
	port, web, up uint16
	dir           string           // of hand-overs
	upstream      *agenttest.Agent // at the port up
	env, args     []string         // of each agent
}

func newSuccession(t *testing.T, args ...string) *succession {
	t.Helper()
	p := peer.Ports(t, 3)
	s := &succession{t: t, port: p[0], web: p[1], up: p[2], dir: filepath.Join(t.TempDir(), "handover")}
	s.args = append([]string{"-handover-dir", s.dir}, args...)
	s.upstream = origin(t, s.up)
	return s
}

func (s *succession) corefile() string { return withCache(s.port, s.web, s.up) }

// begin starts an agent.
func (s *succession) begin(args ...string) *process {
	s.t.Helper()
	return newAgentProcess(s.t, s.corefile(), s.env, slices.Concat(s.args, args)...)
}

// start is begin, and waits until the agent serves.
func (s *succession) start(args ...string) *process {
	s.t.Helper()
	p := s.begin(args...)
	p.AwaitLog("msg=serving")
	return p
}

// ask asks for a name of the origin.
func (s *succession) ask() {
	s.t.Helper()
	agenttest.Expect(s.t, s.port, "www.example.org.", "192.0.2.1")
}

func (s *succession) crowd(networks ...string) *crowd {
	return newCrowd(s.port, "www.example.org.", "192.0.2.1", networks...)
}

func (s *succession) metric(series string) string {
	s.t.Helper()
	return agenttest.Metric(s.t, s.web, series)
}

func (s *succession) wantMetric(series, want string) {
	s.t.Helper()
	if got := s.metric(series); got != want {
		s.t.Errorf("%s is %q, want %s", series, got, want)
	}
}

func (s *succession) wantReady() {
	s.t.Helper()
	if code, text := agenttest.Get(s.t, s.web, "/ready"); code != 200 {
		s.t.Errorf("/ready is %d %s", code, text)
	}
}

// TestHandover: one agent after the other takes over; no query is lost, on no connection;
// each begins with the cache of the one before it, which then ends by itself.
func TestHandover(t *testing.T) {
	s := newSuccession(t)
	last := s.start()
	s.ask()
	s.upstream.Stop() // all that is known from here on is in the cache
	c := s.crowd()
	for range 3 {
		next := s.start()
		last.awaitExit(0)
		c.more(t)
		s.wantMetric(`nodens_handovers_total{result="complete",role="successor"}`, "1")
		s.wantMetric("nodens_cache_restored_entries", "1")
		s.wantReady()
		last = next
	}
	c.close(t)
	last.end()
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 2 {
		t.Errorf("%v is left in the folder (%v), want the saved cache and a socket at most", left, err)
	}
}

// TestInPod: where a kubelet would start it anew, the agent that has handed over waits
// to be stopped, and goes on if its successor dies; the successor of a successor, too.
func TestInPod(t *testing.T) {
	pidfile := filepath.Join(t.TempDir(), "pid")
	s := newSuccession(t, "-pidfile", pidfile)
	s.env = inPodEnv
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
			_, shown, _ = outcome(t, "status", "-handover-dir", s.dir, "-o", "json")
			return strings.Contains(shown, `"event": "`+event+`"`)
		})
	}
	first := s.start()
	for range 2 {
		c := s.crowd()
		second := s.start()
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
	c := s.crowd("udp", "udp", "udp")
	second := s.start()
	second.end()
	first.Await("the first agent to be the one again", func() bool { return owner() == first.cmd.Process.Pid })
	c.more(t)

	third := s.start()
	first.end()
	c.more(t)
	c.close(t)
	if got := owner(); got != third.cmd.Process.Pid {
		t.Errorf("the file says process %d, want the third one", got)
	}
	third.end()
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
	s := newSuccession(t)
	agent := s.start()
	s.ask()
	ctx := t.Context()
	sockets := func(p *handover.Predecessor) { takeSockets(t, p) }
	cached := func(p *handover.Predecessor) {
		stream, err := p.Cache(ctx)
		check.NoError(t, err)
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
			client, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
			check.NoError(t, err)
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
			before := s.metric(series)
			c := s.crowd()
			c.more(t)
			if step.of == "resumed" {
				c.close(t) // nobody reads until the agent does again
			}
			p := approach(t, s.dir)
			step.do(p)
			_ = p.Close()
			agent.Await("the agent to count it", func() bool {
				if step.of == "resumed" && !strings.Contains(agent.Log.String(), "serving again") {
					return false // nor does anybody answer over HTTP
				}
				return s.metric(series) != before
			})
			if step.of == "resumed" {
				c = s.crowd()
			}
			c.more(t)
			c.close(t)
		})
	}
	c := s.crowd()
	agenttest.WriteFile(t, agent.Conf, s.corefile()+"# another\n")
	agent.signal(syscall.SIGUSR1)
	agent.AwaitLog("the new configuration is in force")
	s.start()
	agent.awaitExit(0)
	c.more(t)
	c.close(t)
}

// TestPredecessorDies: at whatever step, its successor goes on alone.
func TestPredecessorDies(t *testing.T) {
	for _, step := range []string{"save", "sockets", "cache", "yield"} {
		t.Run(step, func(t *testing.T) {
			s := newSuccession(t)
			startProcess(t, step, nil, s.dir).AwaitLog("msg=serving")
			agent := s.start()
			s.ask()
			s.wantReady()
			agent.end()
			if got := agent.Log.String(); !strings.Contains(got, "saved") && strings.Contains(got, "level=ERROR") {
				t.Errorf("the agent is not content:\n%s", got)
			}
		})
	}
}

// TestStopInTheMiddle: an agent that is asked to stop while it hands over stops when that
// has ended.
func TestStopInTheMiddle(t *testing.T) {
	for _, breaks := range []bool{true, false} {
		t.Run(fmt.Sprintf("broken off %v", breaks), func(t *testing.T) {
			s := newSuccession(t)
			agent := s.start()
			p := approach(t, s.dir)
			takeSockets(t, p)
			agent.signal(syscall.SIGTERM)
			agent.AwaitLog("waiting for its end")
			agenttest.Expect(t, s.port, "ftp.example.org.", "192.0.2.2")
			if breaks {
				_ = p.Close()
				agent.awaitExit(0)
				if !strings.Contains(agent.Log.String(), "msg=stopping") {
					t.Error("the agent did not stop as it does without a successor")
				}
				return
			}
			check.NoError(t, p.Commit(t.Context(), func(c handover.Conn) { _ = c.File.Close() }))
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
	s := newSuccession(t)
	agent := s.start("-log-format", "text")
	next := approach(t, s.dir)
	takeSockets(t, next)
	agenttest.WriteFile(t, agent.Conf, s.corefile()+"# another\n")
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
	s := newSuccession(t)
	first := s.start()
	s.ask()
	before := s.port
	s.port = peer.Ports(t, 1)[0]
	s.start()
	first.awaitExit(0)
	s.ask()
	if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", before)); err == nil {
		_ = conn.Close()
		t.Error("somebody still listens at the old address")
	}
}

// TestUnfit: a successor that can't serve leaves everything as it is.
func TestUnfit(t *testing.T) {
	s, other := newSuccession(t), peer.Ports(t, 1)[0]
	agent := s.start()
	c := s.crowd()
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", other))
	check.NoError(t, err)
	defer taken.Close()
	next := newAgentProcess(t, s.corefile()+withCache(other, s.web, s.up), nil, s.args...)
	next.awaitExit(1)
	if got := next.Log.String(); !strings.Contains(got, "taking over") {
		t.Errorf("it did not even try:\n%s", got)
	}
	c.more(t)
	// One that waits for its view of the cluster, until it is asked to stop.
	_ = taken.Close()
	next = newAgentProcess(t, s.corefile()+fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n endpoint http://127.0.0.1:%[1]d\n }\n}\n", other), nil, s.args...)
	next.AwaitLog("part=kubernetes")
	next.end()
	c.more(t)
	s.start()
	agent.awaitExit(0)
	c.more(t)
	c.close(t)
}

// TestBeside: where nothing can be handed over, an agent starts beside the other one, and
// goes on when that ends.
func TestBeside(t *testing.T) {
	s := newSuccession(t)
	first := s.start("-handover-dir", filepath.Join(t.TempDir(), "handover"))
	s.start("-handover-dir", filepath.Join(t.TempDir(), "handover"))
	first.end()
	s.ask()
	s.wantReady()
}

// TestHandoverDirOfAnother: an agent does not start in a directory whose owner could take
// its sockets, and says what to do.
func TestHandoverDirOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories away")
	}
	dir := t.TempDir()
	check.NoError(t, os.Chown(dir, 12345, 0))
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
