package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// retryMilliseconds is after how long a browser connects again when a stream has ended: after a
// hand-over the next agent opens the page.
const retryMilliseconds = 1000

// part is a part of the page that changes: the ID of its element, and the template of what is in it.
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
	s := stream{page: p, parameters: v, out: w, control: http.NewResponseController(w), sent: make(map[string]string)}
	w.Header().Set("Content-Type", "text/event-stream")
	_ = s.control.SetReadDeadline(time.Time{}) // the server's is for requests
	err := s.write(fmt.Appendf(nil, "retry: %d\nevent: agent\ndata: %s\n\n", retryMilliseconds, p.source.Status().Version))
	tick := time.NewTicker(p.refresh)
	defer tick.Stop()
	for err == nil {
		if err = s.update(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// stream is one stream of events.
type stream struct {
	page       *Page
	parameters parameters
	out        http.ResponseWriter
	control    *http.ResponseController
	sent       map[string]string // the last content of each part
	sample     time.Time         // the last sample of the history that was sent
}

// update sends an event with the parts that differ from what was sent before. Their HTML is in a JSON
// object, by the ID of the element.
func (s *stream) update() error {
	parts := s.page.fastParts(s.parameters)
	if len(s.sent) == 0 || !s.page.source.LastSample().Equal(s.sample) {
		h := s.page.source.History()
		parts, s.sample = append(parts, s.page.slowParts(s.parameters, &h)...), h.End
	}
	changed := make(map[string]string)
	var b bytes.Buffer
	for _, part := range parts {
		b.Reset()
		if err := templates().ExecuteTemplate(&b, part.template, part.data); err != nil {
			return err
		}
		if text := b.String(); s.sent[part.id] != text {
			s.sent[part.id], changed[part.id] = text, text
		}
	}
	b.Reset()
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
