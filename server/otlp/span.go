package otlp

import "time"

// Kind is the kind of a span, with its number in OTLP.
type Kind int32

// The kinds in use.
const (
	Internal Kind = 1
	Server   Kind = 2 // of a request from another program
	Client   Kind = 3 // of a request to another program
)

// Span is one operation with its children. The exporter gives it a random identity. A Span that was sent must not be
// changed.
type Span struct {
	Name       string
	Kind       Kind
	Start, End time.Time
	Attrs      []Attr
	// Err is why the operation failed; "" if it did not.
	Err      string
	Children []*Span
}

// Attr is an attribute: a name of OpenTelemetry's semantic conventions, or one that begins with nodens.
type Attr struct {
	Key   string
	value any // string, int64, float64 or bool
}

// Text returns an attribute that is a text.
func Text(key, value string) Attr { return Attr{key, value} }

// Int returns an attribute that is a whole number.
func Int(key string, value int) Attr { return Attr{key, int64(value)} }

// Seconds returns an attribute that is a time in seconds.
func Seconds(key string, value time.Duration) Attr { return Attr{key, value.Seconds()} }

// Flag returns an attribute that is true.
func Flag(key string) Attr { return Attr{key, true} }

const (
	// spanBytes is what a span takes in memory besides its texts, and attrBytes what an attribute does.
	spanBytes = 200
	attrBytes = 48
)

// size returns the number of spans in s, and about how many bytes of memory they take.
func (s *Span) size() (spans, bytes int) {
	spans, bytes = 1, spanBytes+len(s.Name)+len(s.Err)
	for _, a := range s.Attrs {
		bytes += attrBytes
		if text, ok := a.value.(string); ok {
			bytes += len(text)
		}
	}
	for _, c := range s.Children {
		n, b := c.size()
		spans, bytes = spans+n, bytes+b
	}
	return spans, bytes
}
