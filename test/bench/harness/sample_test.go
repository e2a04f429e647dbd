package harness

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// forgetfulServer is a server that asks the upstream for a name several times before it keeps the answer.
type forgetfulServer struct {
	upstream *load.Loop
	forgets  int // answers for each name

	mu      sync.Mutex
	answers map[string][][]byte
	queries int
}

// ServeDNS implements [dns.Handler].
func (s *forgetfulServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	packed, err := q.Pack()
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries++
	name := q.Question[0].Name
	if len(s.answers[name]) < s.forgets {
		s.answers[name] = append(s.answers[name], s.upstream.Answer(packed))
	}
	answer := s.answers[name][len(s.answers[name])-1]
	_, _ = w.Write(append(packed[:2:2], answer[2:]...))
}

// TestAskAll: every question is asked until the server answers all of them without the upstream, and then no
// more.
func TestAskAll(t *testing.T) {
	if _, err := exec.LookPath("dnsperf"); err != nil {
		t.Skip(ErrNoDnsperf)
	}
	b, err := New(Plan{Short: true, Progress: io.Discard}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, b.LoadCores, err = machine.SplitCores(); errors.Is(err, machine.ErrCores) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if b.Loop, b.Stream, err = StartUpstream(); err != nil {
		t.Fatal(err)
	}
	w := b.Sized(Workloads())[0]
	b.Workloads = []Workload{w}
	if err := b.WriteQueries(); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &forgetfulServer{upstream: b.Loop, forgets: 3, answers: map[string][][]byte{}}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: socket, Handler: s, NotifyStartedFunc: func() { close(started) }}
	go func() { _ = server.ActivateAndServe() }()
	<-started
	defer func() { _ = server.Shutdown() }()
	r := &RunningServer{procs: map[string]Process{w.QuerySet.Name: {Port: Port(socket.LocalAddr().(*net.UDPAddr).Port)}}}
	for range 2 { // the second time everything is there
		if err := b.AskAll(t.Context(), r, w); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	type counts struct{ Queries, Asked int }
	want := counts{Queries: (3 + 1 + 1) * w.Count(), Asked: 3 * w.Count()}
	if diff := cmp.Diff(want, counts{s.queries, int(b.Loop.Asked())}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
