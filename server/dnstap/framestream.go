package dnstap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// contentType is the content type of the stream.
const contentType = "protobuf:dnstap.Dnstap"

// Types of control frames (Frame Streams, control.h).
const (
	controlAccept = 1
	controlStart  = 2
	controlStop   = 3
	controlReady  = 4
	controlFinish = 5
)

const (
	// fieldContent is the only field type of control frames.
	fieldContent = 1
	// maxControlLen is the maximum length of a control frame in Frame Streams.
	maxControlLen = 512
)

// startStream performs the handshake: it sends READY, waits for ACCEPT, and sends START.
func startStream(w io.Writer, r *bufio.Reader) error {
	if _, err := w.Write(controlFrame(controlReady, contentType)); err != nil {
		return err
	}
	kind, body, err := readControl(r)
	if err != nil {
		return fmt.Errorf("waiting for ACCEPT: %w", err)
	}
	if kind != controlAccept {
		return fmt.Errorf("the collector sent control frame %d instead of ACCEPT", kind)
	}
	if !acceptsContentType(body) {
		return errors.New("the collector does not accept " + contentType)
	}
	_, err = w.Write(controlFrame(controlStart, contentType))
	return err
}

// awaitFinish blocks until the collector confirms the end of the stream.
func awaitFinish(r *bufio.Reader) error {
	kind, _, err := readControl(r)
	if err == nil && kind != controlFinish {
		err = fmt.Errorf("it sent control frame %d", kind)
	}
	return err
}

// controlFrame returns a control frame: escape, length, type and, unless it is empty, the
// content type.
func controlFrame(kind uint32, content string) []byte {
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

// readControl reads a control frame and returns its type and its encoded fields.
func readControl(r *bufio.Reader) (kind uint32, fields []byte, err error) {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[4:])
	if binary.BigEndian.Uint32(head[:]) != 0 || n < 4 || n > maxControlLen {
		return 0, nil, errors.New("it sent no control frame")
	}
	fields = make([]byte, n-4)
	if _, err := io.ReadFull(r, fields); err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint32(head[8:]), fields, nil
}

// acceptsContentType reports whether an ACCEPT frame with these fields accepts contentType.
// One without a content type accepts any.
func acceptsContentType(fields []byte) bool {
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
