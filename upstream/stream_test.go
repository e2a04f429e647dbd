package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

func TestReuse(t *testing.T) {
	f := startFake(t, answers)
	p := start(t, directive(f))
	for i := range 10 {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	got := p.Stats().Servers[0]
	if d := cmp.Diff([]Reuse{{Hits: 4, Misses: 1}, {Hits: 4, Misses: 1}}, []Reuse{got.UDP, got.TCP}); d != "" {
		t.Errorf("UDP and TCP, five queries each (-want +got):\n%s", d)
	}
	if n := f.open(); n != 1 {
		t.Errorf("%d TCP connections are open, want 1", n)
	}
}

func TestStaleConnection(t *testing.T) {
	tests := []struct {
		name string
		// close is what the server does about the connection after the answer.
		close func(request)
	}{
		{"closed", func(r request) { r.conn.Close() }},
		{"reset", func(r request) { r.conn.(*net.TCPConn).SetLinger(0); r.conn.Close() }},
		{"closed at the next query", func(r request) {
			if r.nth == 2 {
				r.conn.Close()
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := startFake(t, func(r request) {
				if r.nth != 2 || tt.name != "closed at the next query" {
					answers(r)
				}
				tt.close(r)
			})
			p := start(t, directive(f))
			for i := range 2 {
				if _, err := p.Exchange(t.Context(), question(t, "example.org."), true); err != nil {
					t.Fatalf("exchange %d: %v", i+1, err)
				}
			}
			got := p.Stats().Servers[0]
			// Whether the Pool has seen the end when it asks again is a matter of luck.
			if got.TCP.Misses != 2 || got.TCP.Hits > 1 {
				t.Errorf("connections %+v, want two misses, and at most one hit, which was stale", got.TCP)
			}
			for _, r := range f.requests() {
				if r.Question[0].Name == "." {
					t.Error("the stale connection counted as a failure: a probe was sent")
				}
			}
		})
	}
}

func TestExpire(t *testing.T) {
	f := startFake(t, answers)
	cfg := directive(f)
	cfg.Expire = 5 * time.Millisecond
	p := start(t, cfg)
	for _, overTCP := range []bool{false, true} {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the idle connections are closed", func() bool { return f.open() == 0 && live(p) == 0 })
}

func TestExpireZeroKeepsNothing(t *testing.T) {
	f := startFake(t, answers)
	cfg := directive(f)
	cfg.Expire = 0
	p := start(t, cfg)
	for _, overTCP := range []bool{false, true} {
		if _, err := p.Exchange(t.Context(), question(t, "example.org."), overTCP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is kept", func() bool { return live(p) == 0 })
}

// live counts the connections p holds.
func live(p *Pool) int {
	n := 0
	for _, s := range p.servers() {
		for _, via := range []transport{s.udp, s.tcp, s.probes} {
			n += sockets(via)
		}
	}
	return n
}

// sockets counts the connections via holds.
func sockets(via transport) int {
	switch t := via.(type) {
	case *stream:
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.live)
	case *udp:
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.live)
	}
	return 0
}

// TestStartBehindClose: no connection is made after close.
func TestStartBehindClose(t *testing.T) {
	f := startFake(t, answers)
	for _, via := range []transport{newUDP(f.addr, ports{busy: 1, expire: time.Hour}, new(atomic.Uint64)), newStream(f.addr, streamOptions{})} {
		via.close()
		c := fixedCall(t)
		if _, err := fly(t.Context(), via, c, time.Now().Add(time.Minute)); !errors.Is(err, ErrClosed) {
			t.Errorf("%T after close: %v, want ErrClosed", via, err)
		}
		if sockets(via) != 0 {
			t.Errorf("%T after close holds a connection", via)
		}
	}
	eventually(t, "no TCP connection is open", func() bool { return f.open() == 0 })
}

func TestLargeBufferIsNotKept(t *testing.T) {
	c := newCall()
	c.room(keepRoom + 1)
	c.reset()
	if len(c.reply) != replyRoom {
		t.Errorf("%d bytes are kept for the next query, want %d", len(c.reply), replyRoom)
	}
}

func TestNoFreeConnection(t *testing.T) {
	arrived := make(chan request, 2)
	f := startFake(t, func(r request) { arrived <- r })
	cfg := directive(f)
	p := start(t, cfg)
	p.servers()[0].udp = newUDP(f.addr, ports{busy: 1, expire: time.Hour}, new(atomic.Uint64))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	q := question(t, "example.org.")
	wg.Go(func() { p.Exchange(ctx, q, false) })
	<-arrived

	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := p.Exchange(gone, question(t, "example.org."), false); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a socket with a cancelled ctx: %v, want context.Canceled", err)
	}
	soon, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	if _, err := p.Exchange(soon, question(t, "example.org."), false); err == nil {
		t.Error("an exchange without a socket succeeded")
	}
	cancel()
	wg.Wait()
}

func TestTruncatedKeepsUDP(t *testing.T) {
	f := startFake(t, truncatesUDP(1, 2))
	cfg := directive(f)
	cfg.Policy = config.PolicyRandom
	p := start(t, cfg)
	for range 3 {
		r, err := p.Exchange(t.Context(), question(t, "example.org."), false)
		if err != nil || r.Answers != 2 {
			t.Fatalf("%d answers, %v; want 2", r.Answers, err)
		}
	}
	got := p.Stats().Servers[0]
	if got.UDP.Misses != 1 || got.TCP.Misses != 1 {
		t.Errorf("UDP %+v, TCP %+v; want one connection of each", got.UDP, got.TCP)
	}
}
