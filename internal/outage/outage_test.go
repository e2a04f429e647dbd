package outage_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/outage"
)

// newLog returns a Log that writes to the buffer. Its summaries have one field more.
func newLog() (*outage.Log, *bytes.Buffer) {
	out := new(bytes.Buffer)
	handler := slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return &outage.Log{
		Messages: outage.Messages{Start: "down", Ongoing: "still down", End: "up"},
		Logger:   slog.New(handler), Level: slog.LevelWarn,
		Fields: func() []any { return []any{"dropped", 7} },
	}, out
}

func checkLines(t *testing.T, out *bytes.Buffer, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(strings.Join(want, "\n"), strings.TrimSpace(out.String())); diff != "" {
		t.Errorf("wrong lines (-want +got):\n%s", diff)
	}
	out.Reset()
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := newLog()
		l.Recover()
		checkLines(t, out)

		for i := range 150 { // one failure per second
			if i < 70 {
				l.Fail(errors.New("refused"), "endpoint", "a")
			} else {
				l.Fail(errors.New("timeout"), "endpoint", "a")
			}
			time.Sleep(time.Second)
			synctest.Wait() // a summary that is due comes before the next failure
		}
		l.Recover("endpoint", "a")
		l.Recover("endpoint", "a")
		checkLines(t, out,
			"level=WARN msg=down endpoint=a err=refused",
			`level=WARN msg="still down" dropped=7 failures=60 duration=1m0s err=refused`,
			`level=WARN msg="still down" dropped=7 failures=120 duration=2m0s err=timeout`,
			"level=INFO msg=up endpoint=a failures=150 duration=2m30s",
		)

		time.Sleep(time.Hour)
		checkLines(t, out)
		l.Fail(errors.New("again"))
		time.Sleep(30 * time.Second)
		l.Recover()
		checkLines(t, out, "level=WARN msg=down err=again", "level=INFO msg=up failures=1 duration=30s")
	})
}

// TestStop: a stopped outage logs neither its end nor a summary, and the next one starts
// anew.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := newLog()
		l.Fields = nil
		l.Stop()
		l.Fail(errors.New("refused"))
		l.Stop()
		time.Sleep(time.Hour)
		l.Recover()
		checkLines(t, out, "level=WARN msg=down err=refused")
		l.Fail(errors.New("refused"))
		time.Sleep(90 * time.Second)
		l.Stop()
		checkLines(t, out, "level=WARN msg=down err=refused", `level=WARN msg="still down" failures=1 duration=1m0s err=refused`)
	})
}

// TestLevels: the end of an outage is an Info line, or, where those are not logged, a line of
// the level that the start has.
func TestLevels(t *testing.T) {
	for _, tt := range []struct {
		enabled slog.Level
		want    []string
	}{
		{slog.LevelInfo, []string{"WARN", "INFO"}},
		{slog.LevelWarn, []string{"WARN", "WARN"}},
		{slog.LevelError, nil},
	} {
		var out bytes.Buffer
		l := &outage.Log{
			Messages: outage.Messages{Start: "down", Ongoing: "still down", End: "up"}, Level: slog.LevelWarn,
			Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tt.enabled})),
		}
		l.Fail(errors.New("refused"))
		l.Recover()
		var got []string
		for line := range strings.Lines(out.String()) {
			_, level, _ := strings.Cut(line, "level=")
			got = append(got, strings.Fields(level)[0])
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("levels when %v is logged (-want +got):\n%s", tt.enabled, diff)
		}
	}
}
