package wiretap

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
)

// serve answers each connection with answer once its client has said all; the bytes
// that came are sent to got.
func serve(t *testing.T, answer []byte, got chan<- []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				text, _ := io.ReadAll(c)
				_, _ = c.Write(answer)
				got <- text
			}()
		}
	}()
	return l.Addr().String()
}

func open(t *testing.T, server string) *Tap {
	t.Helper()
	tap, err := Open(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	return tap
}

func dial(t *testing.T, tap *Tap) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", tap.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// TestCount holds that both sides get every byte, that half a connection stays open,
// and that the counts are exact.
func TestCount(t *testing.T) {
	question, answer := bytes.Repeat([]byte("q"), 100_001), bytes.Repeat([]byte("a"), 300_002)
	got := make(chan []byte, 2)
	tap := open(t, serve(t, answer, got))
	if n := tap.Open(); n != 0 {
		t.Errorf("%d connections before the first", n)
	}
	for n := range uint64(2) {
		before := tap.Read()
		c := dial(t, tap)
		if _, err := c.Write(question); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		back, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(back, answer) {
			t.Fatalf("%d bytes came back (%v), want %d", len(back), err, len(answer))
		}
		if text := <-got; !bytes.Equal(text, question) {
			t.Errorf("the server got %d bytes, want %d", len(text), len(question))
		}
		want := Count{Received: uint64(len(answer)), Sent: uint64(len(question)), Conns: 1}
		if d := tap.Read().Sub(before); d != want {
			t.Errorf("connection %d counts as %+v, want %+v", n, d, want)
		}
		if b := want.Bytes(); b != 400_003 {
			t.Errorf("%d bytes both ways, want 400003", b)
		}
	}
}

// TestClose holds that connections end with the proxy.
func TestClose(t *testing.T) {
	tap := open(t, serve(t, nil, make(chan []byte, 1)))
	c := dial(t, tap)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for tap.Read().Sent == 0 { // ends with the test's time limit
		runtime.Gosched()
	}
	if n := tap.Open(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	tap.Close()
	if n := tap.Open(); n != 0 {
		t.Errorf("%d connections after the end", n)
	}
	// It returns, with or without an error.
	if text, _ := io.ReadAll(c); len(text) > 0 {
		t.Errorf("%d bytes came, want none", len(text))
	}
	if c, err := net.Dial("tcp", tap.Addr().String()); err == nil {
		c.Close()
		t.Error("a closed proxy takes a connection")
	}
}

// TestNoServer holds that a client of a server that is not there is told so.
func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c := dial(t, open(t, l.Addr().String()))
	if n, _ := io.ReadAll(c); len(n) != 0 {
		t.Errorf("%d bytes from nobody", len(n))
	}
}

// TestBlock holds that nothing passes a blocked tap, and all of it afterwards.
func TestBlock(t *testing.T) {
	got := make(chan []byte, 1)
	tap := open(t, serve(t, []byte("answer"), got))
	c := dial(t, tap)
	release := tap.Block()
	if _, err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for tap.Read().Sent == 0 { // the tap has read it
		runtime.Gosched()
	}
	select {
	case text := <-got:
		t.Errorf("%q has passed", text)
	default:
	}
	release()
	if answer, err := io.ReadAll(c); string(answer) != "answer" || string(<-got) != "question" || err != nil {
		t.Errorf("the answer is %q: %v", answer, err)
	}
}
