package report_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

// TestHang: an agent that listens and does not reply hangs; it is not absent.
func TestHang(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = report.Ask(ctx, path, http.MethodGet, "/status", nil, new(report.Status))
	if !errors.Is(err, report.ErrHangs) || errors.Is(err, report.ErrNoAgent) || !strings.HasPrefix(err.Error(), "the agent hangs: no reply for ") || strings.Contains(err.Error(), "context") {
		t.Errorf("%v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := report.Ask(canceled, path, http.MethodGet, "/status", nil, new(report.Status)); errors.Is(err, report.ErrHangs) {
		t.Errorf("canceled: %v", err)
	}
}

// TestFollowCut: a line that the end of an agent has cut is none, so that the reader goes on with the next agent.
func TestFollowCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{}\n{\"node")
	})}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()
	var lines []string
	err = report.Follow(t.Context(), path, "/tail", nil, func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	})
	if !errors.Is(err, report.ErrEnded) || len(lines) != 1 || lines[0] != "{}" {
		t.Errorf("%v, %q", err, lines)
	}
}
