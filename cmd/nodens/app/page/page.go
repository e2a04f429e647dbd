// Package page serves the HTML page of an agent: its status, the last hour as charts, and which clients ask for
// which names. It renders the replies of the admin socket, which a [Source] returns.
//
// Everything is in the binary: templates, a style sheet, a script and an icon. The page works without the
// script: sorting, searching and the choice of rows are parameters of GET requests. With it, parts of
// the page are replaced while they change: the server renders them again and sends those that differ as
// server-sent events.
//
// The page is for browsers on the node, or behind kubectl port-forward. It refuses requests from other
// hosts, requests whose Host header is not a name of the loopback interface (DNS rebinding), and requests
// that other sites make in the browser. It changes nothing in the agent.
package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
)

const (
	// maxRequests bounds the pages that are rendered at once. Assets don't count.
	maxRequests = 4
	// maxStreams bounds the streams of events: pages that are open and visible.
	maxStreams = 4
	// refreshInterval is the time between two events. Most of them have the first clients only.
	refreshInterval = 2 * time.Second
	// writeTimeout bounds the time until a client has read an event.
	writeTimeout = 10 * time.Second
)

// Source is the agent that the page shows. Its methods are safe for concurrent use, and return values
// that belong to the caller.
type Source interface {
	Status() *report.Status
	Upstreams() *report.Upstreams
	// Clients returns the first limit clients by pod, workload or namespace in a window: 10s, 1m or 1h. An
	// error says why queries are not counted.
	Clients(by, window string, limit int) (*report.Clients, error)
	// Names returns the first limit names of a topic in a window. The topics are those of [report.Names].
	Names(topic, window string, limit int) (*report.Names, error)
	// Explain returns what the agent would do with a query; values are the parameters of GET /explain
	// of the admin socket. An error says what is wrong with them.
	Explain(values url.Values) (*report.Explanation, error)
	// History returns the last hour, and LastSample [History.End] alone.
	History() History
	LastSample() time.Time
}

// Page serves the page. [New] makes it.
type Page struct {
	source            Source
	refresh           time.Duration
	mux               *http.ServeMux
	requests, streams chan struct{}
	now               func() time.Time
	contents          contents
}

// New returns a page that shows source.
func New(source Source) *Page {
	p := &Page{
		source: source, refresh: refreshInterval, mux: http.NewServeMux(), now: time.Now,
		requests: make(chan struct{}, maxRequests), streams: make(chan struct{}, maxStreams),
	}
	p.mux.HandleFunc("/{$}", p.limit(p.serveOverview))
	p.mux.HandleFunc("/explain", p.limit(p.serveExplain))
	p.mux.HandleFunc("/events", p.serveEvents)
	for _, name := range []string{"style.css", "page.js", "icon.svg"} {
		p.mux.HandleFunc("/"+name, func(w http.ResponseWriter, r *http.Request) { serveAsset(w, r, name) })
	}
	return p
}

// contentPolicy lets the page load only its own style sheet, script, icon and events.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers requests of browsers on this host.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for key, value := range map[string]string{
		"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
	} {
		w.Header().Set(key, value)
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	if reason := refusal(r); reason != "" {
		http.Error(w, reason, http.StatusForbidden)
		return
	}
	p.mux.ServeHTTP(w, r)
}

// refusal returns why r is not from a browser on this host that shows this page; "" if it is.
func refusal(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	switch {
	case err != nil || !peer.Addr().Unmap().IsLoopback():
		return "only this host may ask"
	case !isLoopbackHost(r.Host):
		return "the Host header is not localhost or a loopback address; open the page as http://localhost:PORT"
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
		return "another site may not load this"
	}
	return ""
}

// isLoopbackHost reports whether a Host header names the loopback interface. The port may be any, because
// kubectl port-forward chooses another one.
func isLoopbackHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// limit returns next for at most maxRequests requests at once. Those beyond it are refused.
func (p *Page) limit(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case p.requests <- struct{}{}:
			defer func() { <-p.requests }()
			next(w, r)
		default:
			http.Error(w, "too many requests at once; try again", http.StatusServiceUnavailable)
		}
	}
}

func (p *Page) serveOverview(w http.ResponseWriter, r *http.Request) {
	v, ok := p.parse(w, r)
	if !ok {
		return
	}
	p.render(w, "overview", p.newOverview(v))
}

// parse returns the parameters of r, or answers r and returns false.
func (p *Page) parse(w http.ResponseWriter, r *http.Request) (parameters, bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err == nil {
		var v parameters
		if v, err = parseParameters(values); err == nil {
			return v, true
		}
	}
	http.Error(w, err.Error(), http.StatusBadRequest)
	return parameters{}, false
}

// render answers with a template. It renders it completely before it writes.
func (p *Page) render(w http.ResponseWriter, name string, data any) {
	var b bytes.Buffer
	if err := templates().ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, "rendering the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes()) // a client that has gone needs no answer
}

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

func (p *Page) serveExplain(w http.ResponseWriter, r *http.Request) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := p.source.Status()
	e := explainPage{
		Node: cmp.Or(s.Node, "unknown node"), Version: s.Version, Types: explainTypes,
		Name: values.Get("name"), Type: strings.ToUpper(cmp.Or(values.Get("type"), "A")), From: values.Get("from"),
	}
	for _, text := range []string{e.Name, e.Type, e.From} {
		if len(text) > maxExplainParameter {
			http.Error(w, fmt.Sprintf("a parameter is too long; give at most %d bytes", maxExplainParameter), http.StatusBadRequest)
			return
		}
	}
	if e.Name != "" {
		e.ask(p.source)
	}
	p.render(w, "explain", e)
}
