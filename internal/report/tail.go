package report

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// TailLine is a line of the reply to GET /tail. One of its fields is set besides the header. A reader
// ignores a line of which it knows no field.
type TailLine struct {
	Header
	// Selected says which clients are watched; it comes first, and when they change.
	Selected *TailSelection `json:"selected,omitempty"`
	Query    *TailQuery     `json:"query,omitempty"`
	// Lost are queries that were selected, but are not in the reply.
	Lost *TailLost `json:"lost,omitempty"`
	// Heartbeat: there has been no other line for five seconds.
	Heartbeat bool `json:"heartbeat,omitempty"`
	// End is the last line, if the agent ends the reply because its time is over.
	End *TailEnd `json:"end,omitempty"`
}

// TailEnd says why the agent has ended the reply.
type TailEnd struct {
	// Seconds is the time that the reply was allowed to take.
	Seconds float64 `json:"seconds"`
}

const (
	// TailHeartbeat is the time after which the agent sends a line if it has no other.
	TailHeartbeat = 5 * time.Second
	// TailTime bounds a reply unless the request says another time, of at most MaxTailTime: a command that was left
	// behind must not keep clients off the kernel path for ever.
	TailTime    = time.Hour
	MaxTailTime = 24 * time.Hour
)

// TailSelection is which clients are watched.
type TailSelection struct {
	AllClients bool     `json:"allClients"`
	Addresses  []string `json:"addresses"`
}

// TailLost are numbers of queries since the last such line.
type TailLost struct {
	// Limit: there were more in a second than the agent sends. SlowReader: the reader took too
	// long.
	Limit      uint64 `json:"limit"`
	SlowReader uint64 `json:"slowReader"`
}

// TailQuery is a query and what became of it. Texts that do not apply are empty.
type TailQuery struct {
	Time   time.Time `json:"time"`
	Client string    `json:"client"` // address and port
	// Namespace is also (host) or (unknown).
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Workload  string `json:"workload"` // KIND/NAME
	Protocol  string `json:"protocol"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	Rcode     string `json:"rcode"` // empty without a reply
	Zone      string `json:"zone"`
	View      string `json:"view"`
	Source    string `json:"source"`
	Cache     string `json:"cache"` // hit, stale or miss
	// CacheAgeSeconds is the time since the reply came from an upstream; null if that is not known.
	CacheAgeSeconds *float64 `json:"cacheAgeSeconds"`
	// Upstream is the server that has answered; empty also if the query has waited for the exchange of
	// another client. UpstreamSeconds is the time of the exchange. Hedged: a second server was asked
	// because the first was late; HedgeWon: it has answered first. ViewSeconds is the time for which the
	// query has waited for the view of the cluster.
	Upstream        string  `json:"upstream"`
	UpstreamSeconds float64 `json:"upstreamSeconds"`
	Hedged          bool    `json:"hedged"`
	HedgeWon        bool    `json:"hedgeWon"`
	ViewSeconds     float64 `json:"viewSeconds"`
	SearchPath      string  `json:"searchPath"` // waste or followed
	// Policy is the DNSPolicy that denies the name, or would if it were not in audit mode, as NAMESPACE/NAME.
	Policy          string  `json:"policy"`
	DurationSeconds float64 `json:"durationSeconds"`
	Error           string  `json:"error"`
}

// maxLine bounds a line of a reply, in bytes.
const maxLine = 1 << 20

// Follow sends a request to the admin socket at path and calls each with every line of the reply, until ctx
// ends, each returns an error, or the agent ends the reply or the connection. It returns nil, that error,
// and [ErrEnded]. A line is valid until each returns. A line that the end has cut is left out.
func Follow(ctx context.Context, path, target string, query url.Values, each func(line []byte) error) error {
	began := time.Now()
	resp, err := send(ctx, path, http.MethodGet, target, query, nil)
	if err != nil {
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNoAgent):
			return err
		case errors.Is(hang(ctx, began, err), ErrHangs):
			return hang(ctx, began, err)
		}
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
		return cmp.Or(err, refusal(resp.StatusCode, target, body))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	lines.Split(wholeLine)
	for lines.Scan() {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("reading the agent's reply: %w", err)
	}
	return ErrEnded
}

// wholeLine is a [bufio.SplitFunc] for lines that end.
func wholeLine(data []byte, _ bool) (int, []byte, error) {
	line, _, whole := bytes.Cut(data, []byte("\n"))
	if !whole { // yet, or the end of the reply has cut it
		return 0, nil, nil
	}
	return len(line) + 1, line, nil
}
