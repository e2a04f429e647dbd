package resolver

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Format is the format of a log line, with CoreDNS's placeholders. It is immutable.
type Format struct {
	parts []part
	// json says that the line is to be an object of JSON: names are escaped as its strings.
	json bool
}

// part is literal text, or the value of a placeholder.
type part struct {
	text  string
	value value // nil: text
}

// logLine is what a line is about: a request that is finished, and its reply, nil for none. local is the address of the
// listener, which may be invalid.
type logLine struct {
	*Request
	msg   []byte
	local netip.Addr
	json  bool // see [Format]
}

// value appends the value of a placeholder to b.
type value func(b []byte, l *logLine) []byte

// text is a value that may be any text, or empty.
func text(of func(l *logLine) string) value {
	return func(b []byte, l *logLine) []byte { return appendText(b, of(l)) }
}

// number is a value that is a number.
func number(of func(l *logLine) int) value {
	return func(b []byte, l *logLine) []byte { return strconv.AppendInt(b, int64(of(l)), 10) }
}

// fixed is a value that is the same for all queries that come this far.
func fixed(is string) value {
	return func(b []byte, _ *logLine) []byte { return append(b, is...) }
}

// where is v if the condition holds, else nothing.
func where(holds func(l *logLine) bool, v value) value {
	return func(b []byte, l *logLine) []byte {
		if !holds(l) {
			return append(b, nothing...)
		}
		return v(b, l)
	}
}

func (l *logLine) hasReply() bool { return l.msg != nil }

// isCounted reports whether l has a reply or an ACL has dropped the query, which has a duration then, too.
func (l *logLine) isCounted() bool { return l.msg != nil || l.verdicts&dropped != 0 }

// placeholders are the values by name. Those from {namespace} on are not CoreDNS's.
var placeholders = map[string]value{
	"{type}":       func(b []byte, l *logLine) []byte { return append(b, wire.TypeName(l.Query.Type)...) },
	"{name}":       appendName,
	"{class}":      fixed("IN"),
	"{proto}":      func(b []byte, l *logLine) []byte { return append(b, l.Proto.String()...) },
	"{size}":       number(func(l *logLine) int { return len(l.Query.Packet) }),
	"{remote}":     func(b []byte, l *logLine) []byte { return appendAddr(b, l.Client.Addr().Unmap()) },
	"{port}":       number(func(l *logLine) int { return int(l.Client.Port()) }),
	"{local}":      func(b []byte, l *logLine) []byte { return appendAddr(b, l.local) },
	"{>id}":        number(func(l *logLine) int { return int(l.Query.ID) }),
	"{>opcode}":    fixed("0"),
	"{>do}":        func(b []byte, l *logLine) []byte { return strconv.AppendBool(b, l.Query.DO) },
	"{>bufsize}":   number(func(l *logLine) int { return l.bufsize() }),
	"{rcode}":      where((*logLine).hasReply, func(b []byte, l *logLine) []byte { return append(b, l.reply.Rcode().String()...) }),
	"{rsize}":      where((*logLine).isCounted, number(func(l *logLine) int { return len(l.msg) })),
	"{duration}":   where((*logLine).isCounted, func(b []byte, l *logLine) []byte { return appendSeconds(b, l.Latency) }),
	"{>rflags}":    where((*logLine).hasReply, func(b []byte, l *logLine) []byte { return appendFlags(b, l.msg) }),
	"{/log/class}": where((*logLine).isCounted, func(b []byte, l *logLine) []byte { return append(b, l.kind().class().String()...) }),
	"{/log/type}":  where((*logLine).isCounted, func(b []byte, l *logLine) []byte { return append(b, l.kind().String()...) }),
	"{namespace}":  text(func(l *logLine) string { namespace, _ := l.owner(); return namespace }),
	"{pod}":        text(func(l *logLine) string { _, pod := l.owner(); return pod.Name }),
	"{workload}":   text(func(l *logLine) string { _, pod := l.owner(); return workloadName(pod.Workload) }),
	"{source}":     text(func(l *logLine) string { return l.sourceName() }),
	"{upstream}": where(func(l *logLine) bool { return l.asked() != nil },
		func(b []byte, l *logLine) []byte { return l.asked().Server.AppendTo(b) }),
	"{upstream_duration}": where(func(l *logLine) bool { return l.ownLookups.waits.asked },
		func(b []byte, l *logLine) []byte { return appendSeconds(b, l.ownLookups.waits.upstream) }),
	"{cache}":       text(func(l *logLine) string { use, _ := l.cacheUse(); return use }),
	"{policy}":      text(func(l *logLine) string { return l.policyName() }),
	"{search_path}": text(func(l *logLine) string { return l.searchPath() }),
}

// ParseFormat parses a format. Braces that are no placeholder stay as they are. {/NAME} is metadata.
func ParseFormat(text string) *Format {
	f := &Format{json: strings.HasPrefix(strings.TrimSpace(text), `{"`)}
	for text != "" {
		end := strings.IndexByte(text, '}')
		start := strings.LastIndexByte(text[:max(end, 0)], '{')
		if end < 0 || start < 0 {
			f.add(text[:end+1], nil)
			if text = text[end+1:]; end < 0 {
				f.add(text, nil)
				break
			}
			continue
		}
		name := text[start : end+1]
		v, known := placeholders[name]
		if label, ok := strings.CutPrefix(name, "{/"); ok && !known {
			f.add(text[:start], nil)
			label = strings.TrimSuffix(label, "}")
			f.add("", func(b []byte, l *logLine) []byte { return appendText(b, l.metadata(l.zone, label)) })
		} else if known {
			f.add(text[:start], nil)
			f.add("", v)
		} else {
			f.add(text[:end+1], nil)
		}
		text = text[end+1:]
	}
	return f
}

func (f *Format) add(text string, v value) {
	if v != nil || text != "" {
		f.parts = append(f.parts, part{text, v})
	}
}

// nothing stands for an unknown value.
const nothing = "-"

// line appends the line about r to b. msg is the reply, nil for none; local is the address of
// the listener, which may be invalid.
func (f *Format) line(b []byte, r *Request, msg []byte, local netip.Addr) []byte {
	l := &logLine{Request: r, msg: msg, local: local, json: f.json}
	for _, p := range f.parts {
		if p.value == nil {
			b = append(b, p.text...)
		} else {
			b = p.value(b, l)
		}
	}
	return b
}

// appendName appends the name of the query.
func appendName(b []byte, l *logLine) []byte {
	name := wire.Name(l.Query.Name()).String()
	if l.json {
		return appendText(b, name)
	}
	return append(b, name...)
}

// appendText appends text, or a dash if it is empty. Quotes, backslashes and what is not printable are escaped as in
// JSON, so that no text ends a field of a format that puts it in quotes.
func appendText(b []byte, text string) []byte {
	if text == "" {
		text = nothing
	}
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case !unicode.IsPrint(r):
			for _, unit := range utf16.AppendRune(nil, r) {
				b = fmt.Appendf(b, `\u%04x`, unit)
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// appendSeconds appends d in seconds, such as 0.001s.
func appendSeconds(b []byte, d time.Duration) []byte {
	return append(strconv.AppendFloat(b, d.Seconds(), 'f', -1, 64), 's')
}

// bufsize returns the size that the client accepts, bounded by the bufsize directive.
func (r *Request) bufsize() int {
	switch {
	case r.Proto != UDP:
		return wire.MaxMessage
	case r.zone.Bufsize == 0:
		return max(int(r.advertised), r.Query.Limit())
	}
	return r.Query.Limit()
}

// headerFlags are the bits of the header's third and fourth byte, in CoreDNS's order.
var headerFlags = [...]struct {
	at   int
	bit  byte
	name string
}{
	{2, 0x80, "qr"}, {2, 0x04, "aa"}, {2, 0x02, "tc"}, {2, 0x01, "rd"}, {3, 0x80, "ra"}, {3, 0x40, "z"}, {3, 0x20, "ad"}, {3, 0x10, "cd"},
}

func appendFlags(b, msg []byte) []byte {
	before := len(b)
	for _, f := range headerFlags {
		if msg[f.at]&f.bit == 0 {
			continue
		}
		if len(b) > before {
			b = append(b, ',')
		}
		b = append(b, f.name...)
	}
	return b
}

// appendAddr appends a, with brackets around IPv6.
func appendAddr(b []byte, a netip.Addr) []byte {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return append(b, nothing...)
	case a.Is4():
		return a.AppendTo(b)
	}
	return append(a.AppendTo(append(b, '[')), ']')
}
