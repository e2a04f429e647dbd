package dnstap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// contentType is what the frames hold.
const contentType = "protobuf:dnstap.Dnstap"

// The types of control frames (Frame Streams, control.h).
const (
	accept = 1
	start  = 2
	stop   = 3
	ready  = 4
	finish = 5
)

const (
	// fieldContent is the one field that control frames have.
	fieldContent = 1
	// maxControl is the longest control frame that any reader takes.
	maxControl = 512
)

// begin agrees with the collector on what is sent: READY, its ACCEPT, START.
func begin(w io.Writer, r *bufio.Reader) error {
	if _, err := w.Write(control(ready, contentType)); err != nil {
		return err
	}
	kind, body, err := readControl(r)
	if err != nil {
		return fmt.Errorf("waiting for the collector to accept: %w", err)
	}
	if kind != accept {
		return fmt.Errorf("the collector sent the control frame %d in place of ACCEPT", kind)
	}
	if !accepts(body) {
		return errors.New("the collector does not take " + contentType)
	}
	_, err = w.Write(control(start, contentType))
	return err
}

// end tells the collector that no more comes.
func end(w io.Writer) error {
	_, err := w.Write(control(stop, ""))
	return err
}

// finished reads until the collector ends the stream, which is nil.
func finished(r *bufio.Reader) error {
	kind, _, err := readControl(r)
	if err == nil && kind != finish {
		err = fmt.Errorf("it sent the control frame %d", kind)
	}
	return err
}

// control is a control frame: an escape, its length, its type, and the content type
// where that isn't "".
func control(kind uint32, content string) []byte {
	b := make([]byte, 8, 64)
	b = binary.BigEndian.AppendUint32(b, kind)
	if content != "" {
		b = binary.BigEndian.AppendUint32(b, fieldContent)
		b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
		b = append(b, content...)
	}
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

// readControl reads a control frame: its type and its fields.
func readControl(r *bufio.Reader) (kind uint32, fields []byte, err error) {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[4:])
	if binary.BigEndian.Uint32(head[:]) != 0 || n < 4 || n > maxControl {
		return 0, nil, errors.New("what it sent is no control frame")
	}
	fields = make([]byte, n-4)
	if _, err := io.ReadFull(r, fields); err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint32(head[8:]), fields, nil
}

// accepts reports whether an ACCEPT with these fields takes the content type; one that
// names none takes any.
func accepts(fields []byte) bool {
	named := false
	for len(fields) >= 8 {
		kind, n := binary.BigEndian.Uint32(fields), binary.BigEndian.Uint32(fields[4:])
		fields = fields[8:]
		if uint64(n) > uint64(len(fields)) {
			return false
		}
		if kind == fieldContent {
			if named = true; string(fields[:n]) == contentType {
				return true
			}
		}
		fields = fields[n:]
	}
	return !named && len(fields) == 0
}
