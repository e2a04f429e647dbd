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

// part is literal text, or a placeholder. text is also the name of metadata.
type part struct {
	text  string
	field field
}

// field is a placeholder.
type field uint8

const (
	literal field = iota
	fieldType
	fieldName
	fieldClass
	fieldProto
	fieldSize
	fieldRemote
	fieldPort
	fieldLocal
	fieldID
	fieldOpcode
	fieldDO
	fieldBufsize
	fieldNamespace
	fieldPod
	fieldWorkload
	fieldSource
	fieldUpstream
	fieldUpstreamDuration
	fieldCache
	fieldSearchPath
	fieldRcode
	fieldRsize
	fieldDuration
	fieldFlags
	fieldLogClass
	fieldLogType
	fieldMetadata
)

// fields are the placeholders by name. Those from {namespace} on are not CoreDNS's.
var fields = map[string]field{
	"{type}": fieldType, "{name}": fieldName, "{class}": fieldClass, "{proto}": fieldProto, "{size}": fieldSize,
	"{remote}": fieldRemote, "{port}": fieldPort, "{local}": fieldLocal,
	"{>id}": fieldID, "{>opcode}": fieldOpcode, "{>do}": fieldDO, "{>bufsize}": fieldBufsize,
	"{rcode}": fieldRcode, "{rsize}": fieldRsize, "{duration}": fieldDuration, "{>rflags}": fieldFlags,
	"{/log/class}": fieldLogClass, "{/log/type}": fieldLogType,
	"{namespace}": fieldNamespace, "{pod}": fieldPod, "{workload}": fieldWorkload, "{source}": fieldSource,
	"{upstream}": fieldUpstream, "{upstream_duration}": fieldUpstreamDuration, "{cache}": fieldCache, "{search_path}": fieldSearchPath,
}

// ParseFormat parses a format. Braces that are no placeholder stay as they are. {/NAME} is metadata.
func ParseFormat(text string) *Format {
	f := &Format{json: strings.HasPrefix(strings.TrimSpace(text), `{"`)}
	for text != "" {
		end := strings.IndexByte(text, '}')
		start := strings.LastIndexByte(text[:max(end, 0)], '{')
		if end < 0 || start < 0 {
			f.add(text[:end+1], literal)
			if text = text[end+1:]; end < 0 {
				f.add(text, literal)
				break
			}
			continue
		}
		name := text[start : end+1]
		at, known := fields[name]
		if label, ok := strings.CutPrefix(name, "{/"); ok && !known {
			f.add(text[:start], literal)
			f.add(strings.TrimSuffix(label, "}"), fieldMetadata)
		} else if known {
			f.add(text[:start], literal)
			f.add("", at)
		} else {
			f.add(text[:end+1], literal)
		}
		text = text[end+1:]
	}
	return f
}

func (f *Format) add(text string, at field) {
	if at != literal || text != "" {
		f.parts = append(f.parts, part{text, at})
	}
}

// nothing stands for an unknown value.
const nothing = "-"

// line appends the line about r to b. msg is the reply, nil for none; local is the address of
// the listener, which may be invalid.
func (f *Format) line(b []byte, r *Request, msg []byte, local netip.Addr) []byte {
	for _, p := range f.parts {
		switch {
		case p.field == literal:
			b = append(b, p.text...)
		case p.field == fieldName && f.json:
			b = appendText(b, wire.Name(r.Query.Name()).String())
		case p.field == fieldLocal:
			b = appendAddr(b, local)
		case p.field == fieldMetadata:
			b = appendText(b, r.metadata(r.zone, p.text))
		case p.field >= fieldRcode:
			b = r.replyField(b, p.field, msg)
		case p.field >= fieldNamespace:
			b = r.finishedField(b, p.field)
		default:
			b = r.queryField(b, p.field)
		}
	}
	return b
}

// queryField appends a field of the query.
func (r *Request) queryField(b []byte, at field) []byte { //nolint:gocyclo // a table
	switch at {
	case fieldType:
		return append(b, wire.TypeName(r.Query.Type)...)
	case fieldName:
		return append(b, wire.Name(r.Query.Name()).String()...)
	case fieldClass:
		return append(b, "IN"...) // no other comes this far
	case fieldProto:
		return append(b, r.Proto.String()...)
	case fieldSize:
		return strconv.AppendInt(b, int64(len(r.Query.Packet)), 10)
	case fieldRemote:
		return appendAddr(b, r.Client.Addr().Unmap())
	case fieldPort:
		return strconv.AppendUint(b, uint64(r.Client.Port()), 10)
	case fieldID:
		return strconv.AppendUint(b, uint64(r.Query.ID), 10)
	case fieldOpcode:
		return append(b, '0') // no other comes this far
	case fieldDO:
		return strconv.AppendBool(b, r.Query.DO)
	case fieldBufsize:
		return strconv.AppendInt(b, int64(r.bufsize()), 10)
	}
	return append(b, nothing...)
}

// finishedField appends what else is known of the finished request.
func (r *Request) finishedField(b []byte, at field) []byte { //nolint:gocyclo // a table
	switch at {
	case fieldNamespace:
		namespace, _ := r.owner()
		return appendText(b, namespace)
	case fieldPod:
		_, pod := r.owner()
		return appendText(b, pod.Name)
	case fieldWorkload:
		_, pod := r.owner()
		return appendText(b, workloadName(pod.Workload))
	case fieldSource:
		return appendText(b, r.sourceName())
	case fieldCache:
		use, _ := r.cacheUse()
		return appendText(b, use)
	case fieldSearchPath:
		return appendText(b, r.searchPath())
	}
	asked, waits := r.asked(), &r.ownLookups.waits
	switch {
	case at == fieldUpstream && asked != nil:
		return asked.Server.AppendTo(b)
	case at == fieldUpstreamDuration && waits.asked:
		return appendSeconds(b, waits.upstream)
	}
	return append(b, nothing...)
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

// replyField appends a field of the reply. A query that an ACL drops has a duration, too.
func (r *Request) replyField(b []byte, at field, msg []byte) []byte { //nolint:gocyclo // a case for each field
	silent := msg == nil
	switch {
	case silent && r.verdicts&dropped == 0:
		return append(b, nothing...)
	case at == fieldRsize:
		return strconv.AppendInt(b, int64(len(msg)), 10)
	case at == fieldDuration:
		return appendSeconds(b, r.Latency)
	case silent && at != fieldLogClass && at != fieldLogType:
		return append(b, nothing...)
	}
	switch at {
	case fieldRcode:
		return append(b, r.reply.Rcode().String()...)
	case fieldFlags:
		return appendFlags(b, msg)
	case fieldLogClass:
		return append(b, r.kind().class().String()...)
	case fieldLogType:
		return append(b, r.kind().String()...)
	}
	return append(b, nothing...)
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
