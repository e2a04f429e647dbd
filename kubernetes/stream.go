package kubernetes

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// maxFrame is the largest event that is read. The API server takes no object of
	// more than 3 MiB, and JSON is at most about twice as long as protobuf; double
	// would be a quarter of a small view's memory.
	maxFrame = 8 << 20
	// readAhead is what a stream reads at once: a Service and its envelope. Double
	// costs each idle stream as much again, half splits most reads.
	readAhead = 4 << 10
)

// errBroken is a stream whose connection ended in the middle.
var errBroken = errors.New("the connection broke")

// unreadable is one object of a stream or list that couldn't be read. What
// follows can be.
type unreadable struct{ error }

// form is what objects of one kind look like, and what they are read with. Its
// streams and lists may be read one after the other, not at once.
type form struct {
	example func() runtime.Object
	// metadata says that the server was asked for the objects' metadata only. One
	// that doesn't know how may send them whole, in JSON.
	metadata bool
	// idle are scratches, nil or of this type, that the garbage collector takes when
	// nothing was read for a while. An agent may have forty streams, and most of them
	// are silent most of the time.
	idle sync.Pool
	now  *scratch // in use
}

// begin gets hold of a scratch, end lets it go, and with it the objects read since.
func (f *form) begin() {
	if f.now, _ = f.idle.Get().(*scratch); f.now == nil {
		f.now = new(scratch)
	}
}

func (f *form) end() {
	if f.now != nil {
		f.idle.Put(f.now)
		f.now = nil
	}
}

// protobufObject is an object that reads itself from a protobuf message.
type protobufObject interface {
	runtime.Object
	Unmarshal(data []byte) error
}

// protobufMagic starts an object in protobuf; an envelope with its kind and the
// object's own message follows.
const protobufMagic = "k8s\x00"

// read makes an object of data, in protobuf or JSON, between begin and end. Its
// strings share no memory with data and may be kept; the rest of it is valid up to
// the next read. A metav1.Status is returned as it is; other kinds than the form's
// are unreadable.
func (f *form) read(data []byte) (runtime.Object, error) {
	if message, ok := bytes.CutPrefix(data, []byte(protobufMagic)); ok {
		kind, raw, err := envelope(message)
		if err != nil {
			return nil, unreadable{err}
		}
		return f.readProtobuf(kind, raw)
	}
	var head metav1.TypeMeta
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, unreadable{err}
	}
	obj, err := f.instance(head.Kind)
	if err == nil {
		err = json.Unmarshal(data, obj)
	}
	if err != nil {
		return nil, unreadable{err}
	}
	return obj, nil
}

func (f *form) readProtobuf(kind string, message []byte) (runtime.Object, error) {
	obj, err := f.instance(kind)
	if err != nil {
		return nil, unreadable{err}
	}
	p, ok := obj.(protobufObject)
	if !ok {
		return nil, unreadable{fmt.Errorf("a %s can't come as protobuf", kind)}
	}
	if obj, err = f.now.read(message, p); err != nil {
		return nil, unreadable{err}
	}
	return obj, nil
}

// instance is an empty object of kind. Objects of a list need not say theirs.
func (f *form) instance(kind string) (runtime.Object, error) {
	if kind == "Status" {
		return &metav1.Status{}, nil
	}
	obj := f.example()
	want := reflect.TypeOf(obj).Elem().Name()
	if kind != "" && !f.metadata && !strings.EqualFold(kind, want) {
		return nil, fmt.Errorf("it is a %q and not a %s", kind, want)
	}
	return obj, nil
}

// envelope opens the wrapping of a protobuf object (runtime.Unknown).
func envelope(message []byte) (kind string, raw []byte, err error) {
	f := fields{rest: message}
	for f.next() {
		switch f.number {
		case 1: // typeMeta
			g := fields{rest: f.data}
			for g.next() {
				if g.number == 2 {
					kind = string(g.data)
				}
			}
			if g.err != nil {
				return "", nil, g.err
			}
		case 2:
			raw = f.data
		}
	}
	return kind, raw, f.err
}

// stream reads the events of a watch.
type stream struct {
	form *form
	in   *bufio.Reader
	json bool
}

// openStream waits for the first byte of body, which says what form the events
// have: a JSON object starts with a brace, a protobuf frame with the first byte of
// a length that such a brace would make 2 GiB.
func openStream(body io.Reader, f *form) (*stream, error) {
	s := &stream{form: f, in: bufio.NewReaderSize(body, readAhead)}
	first, err := s.in.Peek(1)
	if err != nil {
		return nil, broken(err)
	}
	s.json = first[0] == '{'
	return s, nil
}

// next waits for the next event. The object is valid until the next call, its
// strings for longer. The error is io.EOF at the end of the stream, unreadable if
// only this event is lost, and final else.
func (s *stream) next() (watch.EventType, runtime.Object, error) {
	s.form.end()
	if _, err := s.in.Peek(1); err != nil {
		return "", nil, broken(err)
	}
	s.form.begin()
	read := s.frame
	if s.json {
		read = s.line
	}
	data, err := read()
	if err != nil {
		return "", nil, err
	}
	var kind watch.EventType
	var object []byte
	if s.json {
		var e struct {
			Type   watch.EventType
			Object json.RawMessage
		}
		if err = json.Unmarshal(data, &e); err != nil {
			return "", nil, fmt.Errorf("the stream has a line that is no event: %w", err)
		}
		kind, object = e.Type, e.Object
	} else if kind, object, err = watchEvent(data); err != nil {
		return "", nil, fmt.Errorf("the stream has a frame that is no event: %w", err)
	}
	obj, err := s.form.read(object)
	return kind, obj, err
}

// watchEvent opens a protobuf frame (metav1.WatchEvent).
func watchEvent(frame []byte) (kind watch.EventType, object []byte, err error) {
	f := fields{rest: frame}
	for f.next() {
		switch f.number {
		case 1:
			kind = watch.EventType(f.data)
		case 2: // a runtime.RawExtension
			g := fields{rest: f.data}
			for g.next() {
				if g.number == 1 {
					object = g.data
				}
			}
			if g.err != nil {
				return "", nil, g.err
			}
		}
	}
	if f.err == nil && (kind == "" || object == nil) {
		f.err = errProtobuf
	}
	return kind, object, f.err
}

// frame reads one event with its length before it. It is valid until the next.
func (s *stream) frame() ([]byte, error) {
	head, err := s.in.Peek(4)
	if err != nil {
		return nil, broken(noEOF(err))
	}
	n := binary.BigEndian.Uint32(head)
	_, _ = s.in.Discard(len(head)) // it is in the buffer
	if n > maxFrame {
		if _, err := io.CopyN(io.Discard, s.in, int64(n)); err != nil {
			return nil, fmt.Errorf("a frame of %d bytes, more than any object has: %w", n, noEOF(err))
		}
		return nil, unreadable{fmt.Errorf("it has %d bytes, the most is %d", n, maxFrame)}
	}
	now := s.form.now
	now.frame = now.frame[:0]
	for left := int(n); left > 0; {
		// The buffer grows with what has come, not with what is announced.
		have := len(now.frame)
		part := min(left, max(have, cap(now.frame)-have, readAhead))
		now.frame = slices.Grow(now.frame, part)[:have+part]
		if _, err := io.ReadFull(s.in, now.frame[have:]); err != nil {
			return nil, broken(noEOF(err))
		}
		left -= part
	}
	return now.frame, nil
}

// line reads one event up to its newline, which the API server writes behind each.
// It is valid until the next.
func (s *stream) line() ([]byte, error) {
	now := s.form.now
	now.frame = now.frame[:0]
	for n := 0; ; {
		part, err := s.in.ReadSlice('\n')
		n += len(part)
		if n <= maxFrame {
			now.frame = append(now.frame, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, broken(noEOF(err))
		case n > maxFrame:
			return nil, unreadable{fmt.Errorf("it has %d bytes, the most is %d", n, maxFrame)}
		default:
			return now.frame, nil
		}
	}
}

// broken marks an error of the connection; the end of a stream is none.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("%w: %w", errBroken, err)
}

// noEOF makes the end in the middle of an event an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
