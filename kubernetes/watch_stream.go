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
	// maxEventBytes is the largest event that is read. The API server takes no object of
	// more than 3 MiB, and JSON is at most about twice as long as protobuf; double
	// would be a quarter of a small view's memory.
	maxEventBytes = 8 << 20
	// readBufferSize is what a stream reads at once: a Service and its envelope. Double
	// costs each idle stream as much again, half splits most reads.
	readBufferSize = 4 << 10
)

// errConnBroken is a stream whose connection ended in the middle.
var errConnBroken = errors.New("the connection broke")

// decodeError is one object of a stream or list that couldn't be read. What
// follows can be.
type decodeError struct{ error }

// decoder is what objects of one kind look like, and what they are read with. Its
// streams and lists may be read one after the other, not at once.
type decoder struct {
	newObject func() runtime.Object
	// metadata says that the server was asked for the objects' metadata only. One
	// that doesn't know how may send them whole, in JSON.
	metadata bool
	// pool are scratches, nil or of this type, that the garbage collector takes when
	// nothing was read for a while. An agent may have forty streams, and most of them
	// are silent most of the time.
	pool    sync.Pool
	current *sliceDecoder // in use
}

// acquire gets hold of a scratch, end lets it go, and with it the objects read since.
func (f *decoder) acquire() {
	if f.current, _ = f.pool.Get().(*sliceDecoder); f.current == nil {
		f.current = new(sliceDecoder)
	}
}

func (f *decoder) release() {
	if f.current != nil {
		f.pool.Put(f.current)
		f.current = nil
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

// decode makes an object of data, in protobuf or JSON, between begin and end. Its
// strings share no memory with data and may be kept; the rest of it is valid up to
// the next read. A metav1.Status is returned as it is; other kinds than the form's
// are unreadable.
func (f *decoder) decode(data []byte) (runtime.Object, error) {
	if message, ok := bytes.CutPrefix(data, []byte(protobufMagic)); ok {
		kind, raw, err := unwrapObject(message)
		if err != nil {
			return nil, decodeError{err}
		}
		return f.decodeProtobuf(kind, raw)
	}
	var head metav1.TypeMeta
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, decodeError{err}
	}
	obj, err := f.newInstance(head.Kind)
	if err == nil {
		err = json.Unmarshal(data, obj)
	}
	if err != nil {
		return nil, decodeError{err}
	}
	return obj, nil
}

func (f *decoder) decodeProtobuf(kind string, message []byte) (runtime.Object, error) {
	obj, err := f.newInstance(kind)
	if err != nil {
		return nil, decodeError{err}
	}
	p, ok := obj.(protobufObject)
	if !ok {
		return nil, decodeError{fmt.Errorf("a %s can't come as protobuf", kind)}
	}
	if obj, err = f.current.decode(message, p); err != nil {
		return nil, decodeError{err}
	}
	return obj, nil
}

// newInstance is an empty object of kind. Objects of a list need not say theirs.
func (f *decoder) newInstance(kind string) (runtime.Object, error) {
	if kind == "Status" {
		return &metav1.Status{}, nil
	}
	obj := f.newObject()
	want := reflect.TypeOf(obj).Elem().Name()
	if kind != "" && !f.metadata && !strings.EqualFold(kind, want) {
		return nil, fmt.Errorf("it is a %q and not a %s", kind, want)
	}
	return obj, nil
}

// unwrapObject opens the wrapping of a protobuf object (runtime.Unknown).
func unwrapObject(message []byte) (kind string, raw []byte, err error) {
	f := protobufFields{rest: message}
	for f.next() {
		switch f.number {
		case 1: // typeMeta
			g := protobufFields{rest: f.data}
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

// watchStream reads the events of a watch.
type watchStream struct {
	decoder *decoder
	in      *bufio.Reader
	json    bool
}

// openWatchStream waits for the first byte of body, which says what form the events
// have: a JSON object starts with a brace, a protobuf frame with the first byte of
// a length that such a brace would make 2 GiB.
func openWatchStream(body io.Reader, f *decoder) (*watchStream, error) {
	s := &watchStream{decoder: f, in: bufio.NewReaderSize(body, readBufferSize)}
	first, err := s.in.Peek(1)
	if err != nil {
		return nil, connError(err)
	}
	s.json = first[0] == '{'
	return s, nil
}

// next waits for the next event. The object is valid until the next call, its
// strings for longer. The error is io.EOF at the end of the stream, unreadable if
// only this event is lost, and final else.
func (s *watchStream) next() (watch.EventType, runtime.Object, error) {
	s.decoder.release()
	if _, err := s.in.Peek(1); err != nil {
		return "", nil, connError(err)
	}
	s.decoder.acquire()
	read := s.readFrame
	if s.json {
		read = s.readLine
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
	} else if kind, object, err = unwrapEvent(data); err != nil {
		return "", nil, fmt.Errorf("the stream has a frame that is no event: %w", err)
	}
	obj, err := s.decoder.decode(object)
	return kind, obj, err
}

// unwrapEvent opens a protobuf frame (metav1.WatchEvent).
func unwrapEvent(frame []byte) (kind watch.EventType, object []byte, err error) {
	f := protobufFields{rest: frame}
	for f.next() {
		switch f.number {
		case 1:
			kind = watch.EventType(f.data)
		case 2: // a runtime.RawExtension
			g := protobufFields{rest: f.data}
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

// readFrame reads one event with its length before it. It is valid until the next.
func (s *watchStream) readFrame() ([]byte, error) {
	head, err := s.in.Peek(4)
	if err != nil {
		return nil, connError(unexpectedEOF(err))
	}
	n := binary.BigEndian.Uint32(head)
	_, _ = s.in.Discard(len(head)) // it is in the buffer
	if n > maxEventBytes {
		if _, err := io.CopyN(io.Discard, s.in, int64(n)); err != nil {
			return nil, fmt.Errorf("a frame of %d bytes, more than any object has: %w", n, unexpectedEOF(err))
		}
		return nil, decodeError{fmt.Errorf("it has %d bytes, the most is %d", n, maxEventBytes)}
	}
	now := s.decoder.current
	now.frame = now.frame[:0]
	for left := int(n); left > 0; {
		// The buffer grows with what has come, not with what is announced.
		have := len(now.frame)
		part := min(left, max(have, cap(now.frame)-have, readBufferSize))
		now.frame = slices.Grow(now.frame, part)[:have+part]
		if _, err := io.ReadFull(s.in, now.frame[have:]); err != nil {
			return nil, connError(unexpectedEOF(err))
		}
		left -= part
	}
	return now.frame, nil
}

// readLine reads one event up to its newline, which the API server writes behind each.
// It is valid until the next.
func (s *watchStream) readLine() ([]byte, error) {
	now := s.decoder.current
	now.frame = now.frame[:0]
	for n := 0; ; {
		part, err := s.in.ReadSlice('\n')
		n += len(part)
		if n <= maxEventBytes {
			now.frame = append(now.frame, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, connError(unexpectedEOF(err))
		case n > maxEventBytes:
			return nil, decodeError{fmt.Errorf("it has %d bytes, the most is %d", n, maxEventBytes)}
		default:
			return now.frame, nil
		}
	}
}

// connError marks an error of the connection; the end of a stream is none.
func connError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("%w: %w", errConnBroken, err)
}

// unexpectedEOF makes the end in the middle of an event an error.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
