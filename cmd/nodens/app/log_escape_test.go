// These tests use newLogger and builder, which are not exported.

package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"unicode"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestLogIsPrintable: whatever a message and its fields hold, a line of each format is one line without what a terminal
// obeys.
func TestLogIsPrintable(t *testing.T) {
	const hostile = "a\x1b[2J\u009b31m\x07\r\n[ERROR] b\tc\u202ed\u2028e"
	for _, format := range []string{options.LogText, options.LogJSON, options.LogCoreDNS} {
		var out bytes.Buffer
		log, err := newLogger(format, &out, slog.LevelInfo)
		check.NoError(t, err)
		log.With("owner", hostile).Warn(hostile, "err", errors.New(hostile), "list", []string{hostile})
		line, rest, _ := strings.Cut(out.String(), "\n")
		if rest != "" || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %q", format, out.String())
		}
		if format != options.LogJSON {
			continue
		}
		var fields struct{ Msg, Owner string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil || fields.Msg != hostile || fields.Owner != hostile {
			t.Errorf("%v %+q", err, fields)
		}
	}
}

// TestQueryLogEscapes: a query's name adds no field to a format that is JSON, and can't make its line invalid.
func TestQueryLogEscapes(t *testing.T) {
	p := peer.Ports(t, 1)
	corefile := fmt.Sprintf(".:%d {\n bind 127.0.0.1\n log . \"{\\\"name\\\":\\\"{name}\\\",\\\"type\\\":\\\"{type}\\\"}\"\n whoami\n}\n", p[0])
	l := lookedAt(t, corefile, func(o *options.Agent) { o.LogFormat = options.LogCoreDNS })
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", p[0]))
	check.NoError(t, err)
	defer conn.Close()
	labels := map[string]string{
		`a","client":"b`: `a\",\"client\":\"b.`, "a\x1b\nb": `a\027\010b.`, `a\`: `a\\.`, `a;(b)@'`: `a\;\(b\)\@\'.`,
	}
	for label := range labels {
		if _, err := io.WriteString(conn, "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"+string(rune(len(label)))+label+"\x00\x00\x01\x00\x01"); err != nil {
			t.Fatal(err)
		}
	}
	poll.Until(t, "the lines", func() bool { return strings.Count(l.log.String(), `[INFO] {"`) == len(labels) })
	got := make(map[string]bool)
	for line := range strings.Lines(l.log.String()) {
		text, ok := strings.CutPrefix(line, "[INFO] {")
		if !ok {
			continue
		}
		var fields map[string]string
		if err := json.Unmarshal([]byte("{"+text), &fields); err != nil || len(fields) != 2 {
			t.Errorf("%v: %s", err, line)
		}
		got[fields["name"]] = true
	}
	for label, name := range labels {
		if !got[name] {
			t.Errorf("%q is not logged as %q: %v", label, name, got)
		}
	}
}
