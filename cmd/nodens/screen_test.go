//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// TestRedraw: what a terminal gets: frames of the size of the window on the alternate screen, and the last text when
// that is left. An error does not end it, unless it is the first result.
func TestRedraw(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	width, height := 8, 3
	s := &screen{&out, func() (int, int, error) { return width, height, nil }}
	n := 0
	err := s.redraw(ctx, time.Millisecond, func(w io.Writer) error {
		switch n++; n {
		case 1:
			_, err := fmt.Fprint(w, "NAME\na.test\n")
			return err
		case 2:
			return errors.New("no answer")
		case 3:
			width, height = 0, 0 // not known
			_, err := fmt.Fprint(w, "≤≤≤≤≤≤≤≤≤\n\x1b[2J\n3\n4\n")
			return err
		case 4:
			width, height = 8, 3
			_, err := fmt.Fprint(w, "≤≤≤≤≤≤≤≤≤\n2\n3\n4\n")
			return err
		}
		cancel()
		return context.Canceled
	})
	frames := strings.Split(out.String(), homeCursor)
	if len(frames) != 5 {
		t.Fatalf("%d frames: %q", len(frames), out.String())
	}
	if _, rest, ok := strings.Cut(frames[2], ": no answer; trying again"); ok {
		t.Errorf("a line is longer than the window: %q", rest)
	}
	frames[2] = "" // has the time
	want := []string{
		enterScreen,
		"\x1b[KNAME\n\x1b[Ja.test",
		"",
		"\x1b[K≤≤≤≤≤≤≤≤≤\n\x1b[K?[2J\n\x1b[K3\n\x1b[J4",
		"\x1b[K≤≤≤≤≤≤≤≤\n\x1b[K2\n\x1b[Jand 2 mo" + leaveScreen + "≤≤≤≤≤≤≤≤≤\n2\n3\n4\n",
	}
	if d := cmp.Diff(want, frames); err != nil || d != "" {
		t.Errorf("%v (-want +got)\n%s", err, d)
	}
	out.Reset()
	err = s.redraw(t.Context(), time.Millisecond, func(w io.Writer) error {
		_, _ = io.WriteString(w, "not shown: a\n")
		return errors.New("none")
	})
	if err == nil || out.String() != "not shown: a\n" {
		t.Errorf("%v %q", err, out.String())
	}
}

// openTerminal returns both ends of a pseudo-terminal with a window of that size.
func openTerminal(t *testing.T, width, height uint16) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there are no pseudo-terminals:", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	check.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check.NoError(t, err)
	check.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}))
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no pseudo-terminals:", err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return master, terminal
}

// TestTopTerminal: on a terminal the table is redrawn until the signal of Ctrl-C, which restores the screen. With
// --watch=false it is printed once.
func TestTopTerminal(t *testing.T) {
	socket := topAgentFunc(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(topReply) })
	run := func(args ...string) (*exec.Cmd, *testlog.Buffer) {
		master, terminal := openTerminal(t, 40, 10)
		cmd := exec.Command(os.Args[0], append([]string{"top", "--admin-socket", socket, "--interval", "1s"}, args...)...)
		cmd.Env = append(os.Environ(), asProcess+"=agent", "TERM=xterm")
		cmd.Stdout, cmd.Stderr = terminal, terminal
		check.NoError(t, cmd.Start())
		out := new(testlog.Buffer)
		go func() { _, _ = io.Copy(out, master) }()
		return cmd, out
	}
	await := func(out *testlog.Buffer, what string, holds func(string) bool) {
		t.Helper()
		for deadline := time.Now().Add(agenttest.Timeout); !holds(out.String()); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("timed out waiting for %s: %q", what, out.String())
			}
		}
	}
	cmd, out := run()
	await(out, "the second frame", func(text string) bool { return strings.Count(text, homeCursor) == 2 })
	check.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	await(out, "the end", func(text string) bool { return strings.HasSuffix(text, "and 2 more\r\n") })
	text := out.String()
	first, rest, _ := strings.Cut(text, homeCursor)
	frame, _, _ := strings.Cut(rest, homeCursor)
	if _, after, left := strings.Cut(text, leaveScreen); first != enterScreen || !left || strings.Count(after, "\n") != 8 {
		t.Errorf("the terminal got %q", text)
	}
	for line := range strings.SplitSeq(frame, "\r\n") {
		if n := len([]rune(strings.TrimLeft(line, "\x1b[JK"))); n > 40 {
			t.Errorf("a line has %d columns: %q", n, line)
		}
	}
	cmd, out = run("--watch=false")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	await(out, "the table", func(text string) bool { return strings.HasSuffix(text, "and 2 more\r\n") })
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("the terminal got %q", out.String())
	}
}
