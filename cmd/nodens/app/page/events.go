package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// retryMilliseconds is the time after which a browser connects again when a stream has ended: after a
// hand-over, the next agent opens the page.
const retryMilliseconds = 1000

// part is a part of the page that changes: the ID of its element, and the template of the element's content with its
// data.
type part struct {
	id, template string
	data         any
}

// fastParts returns the parts that each event may have: the clients.
func (p *Page) fastParts(v parameters) []part {
	clients, counted := clientsTable(p.source, v)
	return append(tableParts(clients), part{"counted", "counted", counted})
}

// slowParts returns the other parts. They are sent with each sample of the history, because they take more
// time to make.
func (p *Page) slowParts(v parameters, h *History) []part {
	s := p.source.Status()
	list := []part{{"state", "state", newState(s, p.now())}, {"faults", "faults", newestFirst(s.Faults)}}
	for _, c := range newCharts(h) {
		list = append(list, part{c.ID + "-drawing", "drawing", c}, part{c.ID + "-rows", "chart-rows", c})
	}
	for _, t := range otherTables(p.source, v) {
		list = append(list, tableParts(t)...)
	}
	return list
}

// tableParts returns the parts of a table.
func tableParts(t table) []part {
	return []part{{t.ID + "-rows", "rows", t}, {t.ID + "-more", "more", t}}
}

// serveEvents sends the parts of the page that change, until the client goes or the agent closes the page.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	v, ok := p.parse(w, r)
	if !ok {
		return
	}
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	c := p.contents.open(v)
	defer p.contents.close(c)
	s := stream{page: p, content: c, out: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream")
	_ = s.control.SetReadDeadline(time.Time{}) // the server's is for requests
	err := s.write(fmt.Appendf(nil, "retry: %d\nevent: agent\ndata: %s\n\n", retryMilliseconds, p.source.Status().Version))
	next := time.NewTimer(0)
	defer next.Stop()
	for err == nil {
		select {
		case <-r.Context().Done():
			return
		case <-next.C:
		}
		now := p.now()
		err = s.update(now)
		next.Reset(p.refresh - time.Duration(now.UnixNano())%p.refresh) // all streams at the same time
	}
}

// stream is one stream of events.
type stream struct {
	page    *Page
	content *content
	out     http.ResponseWriter
	control *http.ResponseController
	sent    uint64 // the version of the content
}

// update sends an event with the parts that differ from what was sent before. Their HTML is in a JSON
// object, by the ID of the element.
func (s *stream) update(now time.Time) error {
	changed, version, err := s.content.since(s.sent, s.page, now)
	if err != nil {
		return err
	}
	s.sent = version
	var b bytes.Buffer
	b.WriteString("event: update\ndata: ")
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(changed); err != nil {
		return err
	}
	b.WriteString("\n")
	return s.write(b.Bytes())
}

// write writes text at once. Each call has writeTimeout, in place of the server's for a whole response.
func (s *stream) write(text []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := s.out.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}
