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
