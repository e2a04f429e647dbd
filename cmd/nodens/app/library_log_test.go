// These tests use libraryLog, which is not exported.

package app

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/test/testlog"
)

// TestLibraryLog: what libraries print is in the log's format, each message once a minute, and says how often it came.
func TestLibraryLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testlog.Buffer
		log := newLibraryLog(slog.New(slog.NewJSONHandler(&out, nil))).logger()
		for i := range 120 {
			log.Printf("http: Accept error: accept tcp 127.0.0.1:%d: too many open files; retrying in %dms", 8080+i%2, i)
			log.Printf("[WARNING] No files matching import glob pattern: /etc/coredns/custom/*.server")
			time.Sleep(time.Second)
		}
		log.Printf("another")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], `"text":"http: Accept error: accept tcp 127.0.0.1:8080: too many open files; retrying in 0ms","repeated":0}`) ||
			!strings.Contains(lines[1], `"repeated":59}`) || !strings.Contains(lines[2], `"text":"another"`) {
			t.Errorf("%d lines:\n%s", len(lines), out.String())
		}
	})
}

// TestLibraryLogBound: the messages that are remembered are bounded.
func TestLibraryLogBound(t *testing.T) {
	l := newLibraryLog(slog.New(slog.DiscardHandler))
	for i := range 10 * maxLibraryTexts {
		_, _ = fmt.Fprintf(l, "message %s\n", strings.Repeat("x", i))
	}
	if n := len(l.texts); n > maxLibraryTexts {
		t.Errorf("%d messages are remembered", n)
	}
}
