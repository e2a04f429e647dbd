package app

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/logqueue"
	"github.com/nodens-dns/nodens/server/resolver"
)

// newLogger returns a logger that writes to w in one of the formats.
func newLogger(format string, w io.Writer, level slog.Leveler) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level}
	switch format {
	case options.LogText:
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case options.LogJSON:
		return slog.New(slog.NewJSONHandler(jsonLines{w}, opts)), nil
	case options.LogCoreDNS:
		return slog.New(&corednsHandler{out: &lockedWriter{w: w}, level: level}), nil
	default:
		return nil, fmt.Errorf("--log-format %q is not known; give text, json or coredns", format)
	}
}

// flushTimeout bounds the time that the last lines of the log take when the agent ends.
const flushTimeout = 500 * time.Millisecond

// agentLog is where an agent logs. No line waits for the reader of the log.
type agentLog struct {
	*slog.Logger
	// queries is for lines that clients cause.
	queries *slog.Logger
	queue   *logqueue.Queue
}

// openLog returns a log that is written to w in one of the formats. The caller must close its queue.
func openLog(format string, w io.Writer, level slog.Leveler) (l agentLog, err error) {
	var line bytes.Buffer
	notices, err := newLogger(format, &line, slog.LevelInfo)
	if err != nil {
		return l, err
	}
	l.queue = logqueue.New(w, func(dropped uint64) []byte {
		line.Reset()
		notices.Warn("lines of the log are missing here, because they were not read in time", "dropped", dropped)
		return line.Bytes()
	})
	if l.Logger, err = newLogger(format, l.queue, level); err == nil {
		l.queries, err = newLogger(format, l.queue.Bulk(), level)
	}
	return l, err
}

// LogFailure writes to w, in one of the formats, the error that ended the agent: a line for each
// error that err joins. It does not wait for long if nobody reads them.
func LogFailure(format string, w io.Writer, err error) {
	log, formatErr := openLog(format, w, slog.LevelError)
	if formatErr != nil {
		log, _ = openLog(options.LogText, w, slog.LevelError)
	}
	defer log.queue.Close(flushTimeout)
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		log.Error("the agent failed", "err", e)
	}
}

// corednsHandler writes log lines like CoreDNS: the level in brackets, the message, then the
// attributes. It is safe for concurrent use.
type corednsHandler struct {
	out   *lockedWriter
	level slog.Leveler
	attrs string // of With, each with a space before it
}

// lockedWriter is a writer with a lock that is held for each line.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *corednsHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= l.level.Level()
}

func (l *corednsHandler) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	b.WriteString("[" + levelName(r.Level) + "] " + printable(r.Message) + l.attrs)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(formatAttr(a))
		return true
	})
	b.WriteByte('\n')
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	_, err := l.out.w.Write(b.Bytes())
	return err
}

func (l *corednsHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *l
	for _, a := range attrs {
		more.attrs += formatAttr(a)
	}
	return &more
}

// WithGroup ignores groups, which this program does not use.
func (l *corednsHandler) WithGroup(string) slog.Handler { return l }

// formatAttr returns " KEY=VALUE", with the value quoted if necessary.
func formatAttr(a slog.Attr) string {
	v := a.Value.Resolve().String()
	if v == "" || strings.ContainsAny(v, ` ="`) || strings.ContainsFunc(v, unprintable) {
		v = strconv.Quote(v)
	}
	return " " + a.Key + "=" + v
}

// printable returns text with what a terminal obeys, and line breaks, as escape sequences of Go.
func printable(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprintable(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// jsonLines escapes what a terminal obeys beyond ASCII in lines of JSON, which [slog.JSONHandler] leaves as it is.
type jsonLines struct{ io.Writer }

func (w jsonLines) Write(line []byte) (int, error) {
	if !bytes.ContainsFunc(line, func(r rune) bool { return r > unicode.MaxASCII && unprintable(r) }) {
		return w.Writer.Write(line)
	}
	var b bytes.Buffer
	for _, r := range string(line) {
		if r > unicode.MaxASCII && unprintable(r) {
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		} else {
			b.WriteRune(r)
		}
	}
	if _, err := w.Writer.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(line), nil
}

// levelName returns CoreDNS's name of a level.
func levelName(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERROR"
	case l >= slog.LevelWarn:
		return "WARNING"
	case l >= slog.LevelInfo:
		return "INFO"
	}
	return "DEBUG"
}

// installLog sets the query log, which names the zone and its address.
func installLog(a *builder, p *blockParts, _ any) func(*resolver.Zone) {
	return func(z *resolver.Zone) { z.Log = queryLog(a, p.block, z.Name.String(), z.Addr.Addr()) }
}

// queryLog returns the query log of b, which has the directive, for a zone at addr.
func queryLog(a *builder, b *config.Block, zone string, addr netip.Addr) *resolver.QueryLog {
	form := a.opts.LogFormat
	log := &resolver.QueryLog{Plain: form == options.LogCoreDNS, Local: addr, Logger: queryLogger(a.log).With("plugin", "log", "zone", zone)}
	if log.Plain {
		log.Logger = queryLogger(a.log) // nothing but the line
	}
	for l := b.Log; l != nil; l = l.Next {
		wants := func(class string) bool { return len(l.Classes) == 0 || slices.Contains(l.Classes, class) }
		rule := resolver.LogRule{
			Names: l.Names, Success: wants("success"), Denial: wants("denial"), Error: wants("error"),
			Slow: l.Slow, Sample: l.Sample,
		}
		if l.Aggregate > 0 {
			rule.Aggregate = &resolver.Aggregate{Logger: log.Logger, Interval: l.Aggregate}
		}
		if l.Format != "" || form != options.LogText {
			rule.Format = resolver.ParseFormat(cmp.Or(l.Format, config.CommonLogFormat))
		}
		log.Rules = append(log.Rules, rule)
	}
	return log
}

// openErrors returns the log of failed queries.
func openErrors(a *builder, p *blockParts) (any, error) {
	log := &resolver.ErrorLog{Plain: a.opts.LogFormat == options.LogCoreDNS, Logger: queryLogger(a.log).With("plugin", "errors")}
	if log.Plain {
		log.Logger = queryLogger(a.log) // nothing but the line
	}
	for _, c := range p.block.Errors.Consolidate {
		log.Patterns = append(log.Patterns, &resolver.Consolidation{
			Logger: a.log, Level: levels[c.Level], Period: c.Period, Match: c.Pattern, ShowFirst: c.ShowFirst,
		})
	}
	return log, nil
}

// levels are the log levels by their names in the Corefile.
var levels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
}
