package reflector

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// maxEventBytes bounds an event. The API server accepts objects of at most 3 MiB; in JSON
	// they are about twice as long as in protobuf.
	maxEventBytes = 8 << 20
	// readBufferSize is the read buffer of a stream: a Service with its envelope fits.
	readBufferSize = 4 << 10
)

// errConnBroken is a stream whose connection ended in the middle of an event.
var errConnBroken = errors.New("connection broken")

// decodeError is an object of a stream or list that can't be decoded. The objects after it
// can.
type decodeError struct{ error }

// decoder decodes objects of one type. Its streams and lists are read one after the other,
// not concurrently.
type decoder struct {
	newObject func() runtime.Object
	// metadata says that only metadata was requested. A server that doesn't support this may
	// send whole objects in JSON.
	metadata bool
	// pool holds values of type *sliceDecoder. The garbage collector takes them when nothing has been read
	// for a while: an agent may have forty streams, most of them silent.
	pool    sync.Pool
	current *sliceDecoder // in use
}

// acquire takes a sliceDecoder from the pool. release returns it, which invalidates the
// objects decoded since.
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

// protobufObject is an object that decodes itself from a protobuf message.
type protobufObject interface {
	runtime.Object
	Unmarshal(data []byte) error
}

// protobufMagic precedes an object in protobuf; an envelope (runtime.Unknown) follows.
const protobufMagic = "k8s\x00"

// decode decodes an object in protobuf or JSON, between acquire and release. Its strings
// share no memory with data and may be kept; the rest is valid until the next decode. A
// metav1.Status is returned as it is. Other types than the decoder's are a decodeError.
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
		return nil, decodeError{fmt.Errorf("%s can't be decoded from protobuf", kind)}
	}
	if obj, err = f.current.decode(message, p); err != nil {
		return nil, decodeError{err}
	}
	return obj, nil
}

// newInstance returns an empty object of kind. Items of a list need not state their kind.
func (f *decoder) newInstance(kind string) (runtime.Object, error) {
	if kind == "Status" {
		return &metav1.Status{}, nil
	}
	obj := f.newObject()
	want := reflect.TypeOf(obj).Elem().Name()
	if kind != "" && !f.metadata && !strings.EqualFold(kind, want) {
		return nil, fmt.Errorf("a %q in place of a %s", kind, want)
	}
	return obj, nil
}

// unwrapObject decodes the envelope of a protobuf object (runtime.Unknown).
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

// openWatchStream waits for the first byte of body, which tells the encoding: JSON objects
// start with a brace. As the first byte of a protobuf frame's length, a brace would mean 2
// GiB.
func openWatchStream(body io.Reader, f *decoder) (*watchStream, error) {
	s := &watchStream{decoder: f, in: bufio.NewReaderSize(body, readBufferSize)}
	first, err := s.in.Peek(1)
	if err != nil {
		return nil, connError(err)
	}
	s.json = first[0] == '{'
	return s, nil
}

// next waits for the next event. The object is valid until the next call, its strings
// longer. It returns io.EOF at the end of the stream and a decodeError if only this event
// is lost; other errors are final.
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
			return "", nil, fmt.Errorf("invalid line in the stream: %w", err)
		}
		kind, object = e.Type, e.Object
	} else if kind, object, err = unwrapEvent(data); err != nil {
		return "", nil, fmt.Errorf("invalid frame in the stream: %w", err)
	}
	obj, err := s.decoder.decode(object)
	return kind, obj, err
}

// unwrapEvent decodes a protobuf frame (metav1.WatchEvent).
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

// readFrame reads one event that follows its length. The result is valid until the next
// read.
func (s *watchStream) readFrame() ([]byte, error) {
	head, err := s.in.Peek(4)
	if err != nil {
		return nil, connError(unexpectedEOF(err))
	}
	n := binary.BigEndian.Uint32(head)
	_, _ = s.in.Discard(len(head)) // it is in the buffer
	if n > maxEventBytes {
		if _, err := io.CopyN(io.Discard, s.in, int64(n)); err != nil {
			return nil, fmt.Errorf("frame of %d bytes: %w", n, unexpectedEOF(err))
		}
		return nil, decodeError{fmt.Errorf("%d bytes exceed the limit of %d", n, maxEventBytes)}
	}
	now := s.decoder.current
	now.frame, err = readBytes(s.in, now.frame, int(n))
	return now.frame, err
}

// readLine reads one event that ends in a newline. The result is valid until the next read.
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
			return nil, decodeError{fmt.Errorf("%d bytes exceed the limit of %d", n, maxEventBytes)}
		default:
			return now.frame, nil
		}
	}
}

// connError wraps an error of the connection in errConnBroken. It returns io.EOF, the end
// of the stream, unchanged.
func connError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("%w: %w", errConnBroken, err)
}

// unexpectedEOF replaces io.EOF, in the middle of an event, by io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
