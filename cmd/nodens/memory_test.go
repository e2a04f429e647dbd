//go:build linux

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/test/race"
)

// maxCommandMemory bounds the memory of a command that asks an agent, without the pages of its file, which it
// shares with the agent. It takes about 3 MiB.
const maxCommandMemory = 8 << 20

// anonymousMemory returns the resident anonymous memory of a process in bytes.
func anonymousMemory(pid int) (n int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), "RssAnon:")
	if _, err = fmt.Sscan(rest, &n); !ok || err != nil {
		return 0, fmt.Errorf("no RssAnon in %s", b)
	}
	return n << 10, nil
}

// TestCommandMemory: a command that asks an agent does not allocate what an agent needs.
func TestCommandMemory(t *testing.T) {
	if race.Enabled() {
		t.Skip("the race detector needs memory of its own")
	}
	for _, args := range []string{"status", "upstreams", "top", "plan"} {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], args, "--admin-socket", path)
		cmd.Env = append(os.Environ(), asProcess+"=agent")
		started, asked := make(chan struct{}), new(atomic.Int32)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-started
			asked.Add(1)
			if n, err := anonymousMemory(cmd.Process.Pid); err != nil || n == 0 || n > maxCommandMemory {
				t.Errorf("%s has %d KiB of anonymous memory, want %d at most, %v", args, n>>10, maxCommandMemory>>10, err)
			}
			_, _ = w.Write([]byte(`{"ready":true,"healthy":true}`))
		})}
		go func() { _ = s.Serve(ln) }()
		var out strings.Builder
		cmd.Stdout = &out // a pipe: top is not to refresh
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		close(started)
		if err := cmd.Wait(); err != nil || asked.Load() != 1 {
			t.Errorf("%s: %v, asked %d times\n%s", args, err, asked.Load(), out.String())
		}
		_ = s.Close()
	}
}
