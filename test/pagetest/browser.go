package pagetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// browserTimeout ends a test that would hang. No test measures it.
const browserTimeout = time.Minute

// Browser is a running headless Chromium.
type Browser struct {
	tb  testing.TB
	out *os.File // commands to the browser

	mu     sync.Mutex
	lastID int
	// waiting has a channel for the reply to each command, by its ID.
	waiting map[int]chan message
	tabs    map[string]*Tab // by session
	failed  error           // the pipe's
}

// message is a message of the DevTools protocol: a command, its reply, or an event.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// programs are the names of the browser.
var programs = []string{"chromium-headless-shell", "chromium"}

// Start runs a browser until the test ends. It has a new profile, and finds no host but this one.
func Start(tb testing.TB) *Browser {
	tb.Helper()
	path := ""
	for _, name := range programs {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		tb.Fatal("there is no chromium; on Debian, as root: sh test/install.sh chromium-headless-shell")
	}
	commands, out := pipe(tb)
	in, replies := pipe(tb)
	cmd := exec.Command(path, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost", "--user-data-dir="+tb.TempDir())
	cmd.ExtraFiles = []*os.File{commands, replies} // descriptors 3 and 4
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	_, _ = commands.Close(), replies.Close()
	b := &Browser{tb: tb, out: out, waiting: make(map[int]chan message), tabs: make(map[string]*Tab)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(in)
	}()
	tb.Cleanup(func() {
		_ = b.call("", "Browser.close", nil, nil)
		limit := time.AfterFunc(browserTimeout, func() { _ = cmd.Process.Kill() })
		defer limit.Stop()
		_ = cmd.Wait()
		_ = out.Close()
		<-read
		_ = in.Close()
	})
	return b
}

// pipe returns a pipe.
func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	return r, w
}

// read passes the browser's messages on, each of which ends with a zero byte, until the browser ends.
func (b *Browser) read(in *os.File) {
	r := bufio.NewReader(in)
	for {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.failed = fmt.Errorf("the browser has ended: %w", err)
			for id, reply := range b.waiting {
				close(reply)
				delete(b.waiting, id)
			}
			b.mu.Unlock()
			return
		}
		if reply := b.waiting[m.ID]; m.ID != 0 && reply != nil {
			delete(b.waiting, m.ID)
			reply <- m
		} else if t := b.tabs[m.SessionID]; t != nil {
			t.event(m)
		}
		b.mu.Unlock()
	}
}

// call sends a command in a session, "" for the browser's, and decodes its result; nil: into nothing.
func (b *Browser) call(session, method string, params, result any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if params == nil {
		text = nil
	}
	reply := make(chan message, 1)
	b.mu.Lock()
	if b.failed != nil {
		defer b.mu.Unlock()
		return b.failed
	}
	b.lastID++
	m := message{ID: b.lastID, SessionID: session, Method: method, Params: text}
	b.waiting[m.ID] = reply
	b.mu.Unlock()
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := b.out.Write(append(line, 0)); err != nil {
		return err
	}
	return awaitReply(method, reply, result)
}

// awaitReply decodes the reply to a command.
func awaitReply(method string, reply <-chan message, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), browserTimeout)
	defer cancel()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, ctx.Err())
	case m, ok := <-reply:
		switch {
		case !ok:
			return errors.New("the browser has ended")
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}
