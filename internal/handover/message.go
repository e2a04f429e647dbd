package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// The versions of the protocol that this package speaks. doc.go has the list.
const (
	minVersion = 1
	maxVersion = 1
)

const (
	// maxHead: 64 sockets with their addresses are 6 KiB, and names of links in them may
	// be longer than usual.
	maxHead = 16 << 10
	// maxRest: the longest beginning of a DNS message over TCP, with its length
	// (RFC 1035, 4.2.2).
	maxRest = 2 + 64<<10
	// cachePieceSize is what the cache stream is cut into. With half of it there are twice the
	// system calls; the double may not fit into a socket buffer that an
	// administrator has cut down.
	cachePieceSize = 32 << 10
	// maxFiles come with one message. The kernel takes up to 253; a quarter of that
	// leaves its limit alone, and nobody has so many sockets that it matters.
	maxFiles = 64
	// maxText of a version or an error of the other side goes into logs.
	maxText = 200
)

// messageKind says what a message means.
type messageKind byte

const (
	kindHello messageKind = iota + 1
	kindWantSockets
	kindSockets
	kindWantCache
	kindCache
	kindCommit
	kindCommitted
	kindConnection
	kindYielded
	kindSettled
)

// The purposes of a connection, as the successor's hello names them.
const (
	purposeTakeover = "takeover"
	purposeState    = "state"
	purposeWatch    = "watch"
)

// What the host answers.
const (
	stateOK       = "ok"
	stateBusy     = "busy"
	stateStopping = "stopping"
	stateYielded  = "yielded"
)

// helloHead is the head of a hello in both directions.
type helloHead struct {
	Min   int    `json:"min"`
	Max   int    `json:"max"`
	Agent string `json:"agent,omitempty"`

	Purpose    string `json:"purpose,omitempty"`
	PatienceMS int64  `json:"patience_ms,omitempty"`

	State  string `json:"state,omitempty"`
	Ready  bool   `json:"ready,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// commonVersion is the version that this end and g's speak with each other; 0 is none.
func (g helloHead) commonVersion() int {
	v := min(g.Max, maxVersion)
	if v < g.Min || v < minVersion {
		return 0
	}
	return v
}

// socketsHead is the head of a message with sockets.
type socketsHead struct {
	Sockets []socketInfo `json:"sockets"`
	// More follow in the next message of the kind.
	More bool `json:"more,omitempty"`
	// Fault: there are none, for this reason.
	Fault string `json:"fault,omitempty"`
}

// socketInfo is what belongs to one socket of an inventory, in the order of the files.
type socketInfo struct {
	Role string `json:"role"`
	Addr string `json:"addr"`
}

// cacheHead is the head of a piece of the cache, and of yielded.
type cacheHead struct {
	// End: this is the last piece.
	End bool `json:"end,omitempty"`
	// Fault: it is not all, for this reason.
	Fault string `json:"fault,omitempty"`
}

// connHead is the head of a connection.
type connHead struct {
	Addr string `json:"addr"`
}

// errMalformed: the other side says what no version of the protocol would.
var errMalformed = errors.New("malformed message")

// pack appends a message to buf. A nil head is an empty one.
func pack(buf []byte, k messageKind, head any, rest []byte) ([]byte, error) {
	text := []byte("{}")
	if head != nil {
		var err error
		if text, err = json.Marshal(head); err != nil {
			return nil, fmt.Errorf("writing a message: %w", err)
		}
	}
	if len(text) > maxHead || len(rest) > maxRest {
		return nil, fmt.Errorf("a message with a head of %d bytes and a rest of %d is too long (%d, %d)",
			len(text), len(rest), maxHead, maxRest)
	}
	buf = append(buf, byte(k))
	buf = binary.BigEndian.AppendUint16(buf, uint16(len(text)))
	return append(append(buf, text...), rest...), nil
}

// unpack takes a message apart. head and rest are parts of p.
func unpack(p []byte) (k messageKind, head, rest []byte, err error) {
	if len(p) < 3 {
		return 0, nil, nil, fmt.Errorf("%w of %d bytes", errMalformed, len(p))
	}
	n := int(binary.BigEndian.Uint16(p[1:]))
	if n > maxHead || n > len(p)-3 {
		return 0, nil, nil, fmt.Errorf("%w: a head of %d bytes in a message of %d", errMalformed, n, len(p))
	}
	return messageKind(p[0]), p[3 : 3+n], p[3+n:], nil
}

// decode reads the head of a message into to.
func decode(k messageKind, head []byte, to any) error {
	if err := json.Unmarshal(head, to); err != nil {
		return fmt.Errorf("%w of kind %d: %w", errMalformed, k, err)
	}
	return nil
}

// truncate is a text of the other side as it may go into a log.
func truncate(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return s
}
