package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// The protocol versions that this package speaks; see doc.go.
const (
	minVersion = 1
	maxVersion = 1
)

const (
	// maxHead is the maximum length of a head in bytes. That of 64 sockets takes 6 KiB.
	maxHead = 16 << 10
	// maxRest is the maximum length of a rest in bytes: a DNS message over TCP with its length
	// (RFC 1035, section 4.2.2).
	maxRest = 2 + 64<<10
	// cachePieceSize is the length of the pieces of the cache stream in bytes. Longer ones
	// may not fit into a small socket buffer.
	cachePieceSize = 32 << 10
	// maxFiles is the maximum number of files of a message. The kernel's is 253.
	maxFiles = 64
	// maxText bounds texts of the other side in logs, in bytes.
	maxText = 200
	// maxKinds bounds the kinds of a return.
	maxKinds = 8
	// maxRecent bounds the recent handovers in a hello.
	maxRecent = 16
)

// messageKind identifies the meaning of a message.
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
	kindWantStatistics
	kindStatistics
	kindAlive
	kindReturn
	kindKept
	kindResumed
	kindWantSave
	kindSaved
)

// The purposes of a connection, in the successor's hello.
const (
	purposeTakeover = "takeover"
	purposeState    = "state"
	purposeWatch    = "watch"
)

// The states in the server's hello.
const (
	stateOK       = "ok"
	stateBusy     = "busy"
	stateStopping = "stopping"
	stateYielded  = "yielded"
	stateRefused  = "refused"
)

// helloHead is the head of a hello, in both directions.
type helloHead struct {
	Min   int    `json:"min"`
	Max   int    `json:"max"`
	Agent string `json:"agent,omitempty"`

	Purpose    string `json:"purpose,omitempty"`
	PatienceMS int64  `json:"patience_ms,omitempty"`

	State  string `json:"state,omitempty"`
	Ready  bool   `json:"ready,omitempty"`
	Reason string `json:"reason,omitempty"`

	// Recent are the last handovers on the node, in seconds since the epoch; the first maxRecent count.
	Recent []int64 `json:"recent,omitempty"`

	// Compare: the successor compares itself with the server, or the server can take back.
	Compare bool `json:"compare,omitempty"`
	// Saves: the server knows want save.
	Saves bool `json:"saves,omitempty"`
	// Identity of the successor, "" if it has none.
	Identity string `json:"identity,omitempty"`
}

// commonVersion returns the highest version that both ends speak, 0 if there is none.
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
	// More: the next message of this kind has further sockets.
	More bool `json:"more,omitempty"`
	// Fault is the reason why there are none.
	Fault string `json:"fault,omitempty"`
}

// socketInfo describes a socket, in the order of the files.
type socketInfo struct {
	Role string `json:"role"`
	Addr string `json:"addr"`
}

// cacheHead is the head of a piece of the cache, and of a yielded message.
type cacheHead struct {
	// End: this is the last piece.
	End bool `json:"end,omitempty"`
	// Fault is the reason why it is incomplete.
	Fault string `json:"fault,omitempty"`
}

// reasonHead is the head of return and of resumed messages.
type reasonHead struct {
	Reason string `json:"reason"`
	// Kinds of what is worse. Without any the successor was stopped, and may try again.
	Kinds []string `json:"kinds,omitempty"`
}

// connHead is the head of a connection message.
type connHead struct {
	Addr string `json:"addr"`
}

// errMalformed: no version of the protocol has such a message.
var errMalformed = errors.New("malformed message")

// pack appends a message to buf. A nil head means an empty object.
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

// unpack splits a message. head and rest alias p.
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

// decode parses the head of a message into to.
func decode(k messageKind, head []byte, to any) error {
	if err := json.Unmarshal(head, to); err != nil {
		return fmt.Errorf("%w of kind %d: %w", errMalformed, k, err)
	}
	return nil
}

// truncate shortens a text of the other side for logs.
func truncate(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return s
}
