package page_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/pagetest"
	"github.com/nodens-dns/nodens/test/poll"
)

// source is a sample with other clients.
type source struct {
	pagetest.Sample
	clients []report.Client
}

func (s source) Clients(by, window string, limit int) (*report.Clients, error) {
	n := min(limit, len(s.clients))
	c := &report.Clients{By: by, Window: window, WindowSeconds: 10, Clients: slices.Clone(s.clients[:n]), More: len(s.clients) - n}
	for i := range c.Clients {
		c.Clients[i].QueriesPerSecond = float64(c.Clients[i].Window.Queries) / 10
	}
	return c, nil
}

func newSample() pagetest.Sample { return pagetest.Sample{Now: time.Now()} }

// get asks p from this host, after change has changed the request.
func get(p http.Handler, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Host, r.RemoteAddr = "localhost:8353", "127.0.0.1:40000"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// TestRefusals: who may ask, and how.
func TestRefusals(t *testing.T) {
	p := page.New(newSample())
	host := func(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }
	from := func(addr string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = addr } }
	site := func(site, mode string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", site)
			r.Header.Set("Sec-Fetch-Mode", mode)
		}
	}
	method := func(method string) func(*http.Request) { return func(r *http.Request) { r.Method = method } }
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"localhost", nil, 200},
		{"without a port", host("localhost"), 200},
		{"another port", host("LOCALHOST:9000"), 200},
		{"IPv4", host("127.0.0.1:8353"), 200},
		{"another loopback address", host("127.8.9.1"), 200},
		{"IPv6", host("[::1]:8353"), 200},
		{"IPv6 without a port", host("[::1]"), 200},
		{"another name", host("example.com"), 403},
		{"a name below localhost", host("a.localhost:8353"), 403},
		{"a name that begins so", host("localhost.example.com"), 403},
		{"another address", host("10.0.0.1:8353"), 403},
		{"no host", host(""), 403},
		{"from IPv6", from("[::1]:40000"), 200},
		{"from a mapped address", from("[::ffff:127.0.0.1]:40000"), 200},
		{"from another host", from("10.0.0.1:40000"), 403},
		{"a link of another site", site("cross-site", "navigate"), 200},
		{"this page", site("same-origin", "cors"), 200},
		{"a script of another site", site("cross-site", "cors"), 403},
		{"POST", method(http.MethodPost), 405},
		{"HEAD", method(http.MethodHead), 405},
	} {
		for _, path := range []string{"/", "/style.css"} {
			w := get(p, path, c.change)
			if w.Code != c.want {
				t.Errorf("%s, %s: %d %s, want %d", c.name, path, w.Code, w.Body, c.want)
			}
			policy := w.Header().Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
				t.Errorf("%s: the policy is %q", c.name, policy)
			}
		}
	}
	for target, want := range map[string]int{
		"/?by=name": 400, "/?window=1d": 400, "/?q=" + strings.Repeat("a", 321): 400, "/?by=%zz": 400, "/nothing": 404, "/assets/style.css": 404, "/events?by=name": 400,
		"/?by=workload&window=1h&q=shop&rows=all&sort-clients=-p99&sort-upstreams=nothing": 200,
	} {
		if w := get(p, target, nil); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// attributes are what the content policy does not allow, or what asks another server.
var attributes = regexp.MustCompile(`(?i) style=|<style|<script>| on[a-z]+=|javascript:|https?://|url\(|@import`)

// TestOnlyOwnAssets: neither the page nor its assets have inline code or styles, or ask another server.
func TestOnlyOwnAssets(t *testing.T) {
	p := page.New(newSample())
	for _, path := range []string{"/", "/?by=workload&rows=all", "/style.css", "/page.js"} {
		text := get(p, path, nil).Body.String()
		if found := attributes.FindString(text); found != "" {
			t.Errorf("%s has %q", path, found)
		}
		for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "/") && !strings.HasPrefix(m[1], "#") || strings.HasPrefix(m[1], "//") {
				t.Errorf("%s links to %s", path, m[1])
			}
		}
	}
}

// rows returns the first cells of a table's rows.
func rows(text, id string) (list []string) {
	_, text, _ = strings.Cut(text, `<tbody id="`+id+`-rows">`)
	text, _, _ = strings.Cut(text, "</tbody>")
	for _, m := range regexp.MustCompile(`<th scope="row">(?:<a [^>]*>)?([^<]*)`).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

func pod(name string, queries, nxdomain uint64) report.Client {
	return report.Client{Kind: "pod", Namespace: "shop", Workload: "web", Pod: name, Addresses: []string{}, Window: report.ClientCounts{Queries: queries, NXDomain: nxdomain}}
}

// TestRows: tables are sorted and searched, and show ten rows unless all are asked for.
func TestRows(t *testing.T) {
	s := source{newSample(), []report.Client{
		pod("b", 30, 1), pod("a", 20, 20), pod("c", 10, 0),
		{Kind: "unknown", Addresses: []string{"10.1.2.3"}, Window: report.ClientCounts{Queries: 5}},
	}}
	p := page.New(s)
	for target, want := range map[string][]string{
		"/":                                     {"shop/b", "shop/a", "shop/c", "10.1.2.3"},
		"/?sort-clients=-queries":               {"10.1.2.3", "shop/c", "shop/a", "shop/b"},
		"/?sort-clients=nxdomain":               {"shop/a", "shop/b", "shop/c", "10.1.2.3"},
		"/?sort-clients=name":                   {"10.1.2.3", "shop/a", "shop/b", "shop/c"},
		"/?sort-clients=-name":                  {"shop/c", "shop/b", "shop/a", "10.1.2.3"},
		"/?sort-clients=other":                  {"shop/b", "shop/a", "shop/c", "10.1.2.3"},
		"/?q=SHOP&sort-clients=name":            {"shop/a", "shop/b", "shop/c"},
		"/?q=2.3":                               {"10.1.2.3"},
		"/?q=shop/c":                            {"shop/c"},
		"/?q=nothing":                           nil,
		"/?by=workload&q=web&sort-clients=name": {"shop/web", "shop/web", "shop/web"},
	} {
		if diff := cmp.Diff(want, rows(get(p, target, nil).Body.String(), "clients")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", target, diff)
		}
	}
	for i := range 30 {
		s.clients = append(s.clients, pod(fmt.Sprint("p", i), 1, 0))
	}
	p = page.New(s)
	text := get(p, "/", nil).Body.String()
	if n := len(rows(text, "clients")); n != 10 || !strings.Contains(text, `and 24 more: <a href="/?rows=all#clients">`) {
		t.Errorf("%d rows of 34", n)
	}
	if n := len(rows(get(p, "/?rows=all", nil).Body.String(), "clients")); n != 34 {
		t.Errorf("%d rows, want all 34", n)
	}
}

// TestSortState: one head of a table says how it is sorted, and its link reverses the order.
func TestSortState(t *testing.T) {
	p := page.New(newSample())
	for target, want := range map[string]string{
		"/":                      `aria-sort="descending" class="number"><a href="/?sort-clients=-queries#clients"`,
		"/?sort-clients=-name":   `aria-sort="descending"><a href="/?sort-clients=name#clients"`,
		"/?sort-clients=name":    `aria-sort="ascending"><a href="/?sort-clients=-name#clients"`,
		"/?sort-clients=-hit":    `aria-sort="ascending" class="number"><a href="/?sort-clients=hit#clients"`,
		"/?sort-upstreams=state": `aria-sort="ascending"><a href="/?sort-upstreams=-state#upstreams"`,
	} {
		text := get(p, target, nil).Body.String()
		if !strings.Contains(text, want) {
			t.Errorf("%s does not have %s", target, want)
		}
		if n := strings.Count(text, `aria-sort="ascending"`) + strings.Count(text, `aria-sort="descending"`); n != strings.Count(text, "<h2 id=")-1 {
			t.Errorf("%s: %d heads say how the table is sorted", target, n)
		}
	}
}

// TestEscapes: names of pods and names that clients ask for are text, wherever they are shown.
func TestEscapes(t *testing.T) {
	const name = `"><script>alert(1)</script>`
	s := source{newSample(), []report.Client{pod(name, 5, 0)}}
	for _, target := range []string{"/", "/?q=" + "%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"} {
		w := get(page.New(s), target, nil)
		if text := w.Body.String(); w.Code != http.StatusOK || strings.Contains(text, "<script>") || !strings.Contains(text, "&lt;script&gt;") {
			t.Errorf("%s: %d, and the name is not escaped", target, w.Code)
		}
	}
}

// TestAdvice: the page shows what `nodens advise` does.
func TestAdvice(t *testing.T) {
	lb := pod("edge", 100, 0)
	lb.Workload, lb.Unfollowed, lb.UnfollowedCapped = "edge", 7, 0
	for name, c := range map[string]struct {
		source page.Source
		want   []string
	}{
		"waste":     {newSample(), []string{">shop/checkout<", ">ndots 2<", ">(all)<", ">autopath<"}},
		"truncated": {source{newSample(), []report.Client{lb}}, []string{">shop/edge<", ">client: truncated replies, never TCP<", ">it offers fewer bytes than the reply has<"}},
		"nothing":   {source{newSample(), nil}, []string{">Nothing to advise: no workload wastes 5% of its queries.<"}},
	} {
		_, text, _ := strings.Cut(get(page.New(c.source), "/", nil).Body.String(), `<tbody id="advice-rows">`)
		text, _, _ = strings.Cut(text, "</tbody>")
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in\n%s", name, want, text)
			}
		}
	}
}

// shortSource has samples of a few minutes.
type shortSource struct {
	pagetest.Sample
	samples int
}

func (s shortSource) History() page.History {
	h := s.Sample.History()
	h.Samples = h.Samples[len(h.Samples)-s.samples:]
	return h
}

// TestAxis: the horizontal axis of the charts is as long as the history needs.
func TestAxis(t *testing.T) {
	for samples, want := range map[int]struct{ label, begin string }{
		6:   {"5 min ago", `d="M576 `}, // a minute of five
		30:  {"5 min ago", `d="M0 `},
		31:  {"10 min ago", `d="M348 `},
		61:  {"15 min ago", `d="M232 `},
		360: {"60 min ago", `d="M0 `},
	} {
		text := get(page.New(shortSource{newSample(), samples}), "/", nil).Body.String()
		_, text, _ = strings.Cut(text, `id="queries-drawing"`)
		if text, _, _ = strings.Cut(text, "</figure>"); !strings.Contains(text, "<span>"+want.label+"</span>") || !strings.Contains(text, `<path class="c1 area" `+want.begin) {
			t.Errorf("%d samples: want %s and a path with %s in\n%.1500s", samples, want.label, want.begin, text)
		}
	}
}

// TestPlaces: streams are bounded, and their places are free again when they end.
func TestPlaces(t *testing.T) {
	server := httptest.NewServer(page.New(newSample()))
	defer server.Close()
	// ask opens a stream, and returns the first line of the response.
	ask := func() (net.Conn, string) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return conn, strings.TrimSpace(line)
	}
	const ok, full = "HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable"
	var open []net.Conn
	for range 4 {
		conn, status := ask()
		if open = append(open, conn); status != ok {
			t.Fatal(status)
		}
	}
	conn, status := ask()
	_ = conn.Close()
	if status != full {
		t.Errorf("the fifth stream: %s", status)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	poll.Until(t, "a free place", func() bool {
		conn, status := ask()
		_ = conn.Close()
		return status == ok
	})
}

// TestLimited: the page says who is limited, who loses first, and how full the budgets are.
func TestLimited(t *testing.T) {
	p := page.New(newSample())
	text := get(p, "/?sort-clients=limited", nil).Body.String()
	for _, want := range []string{
		"<dt>Limited clients</dt><dd>shop/checkout-0d3e9ad8-2v44j: 412 in the last 47 s (client_limit 412)</dd>",
		"<dt>Upstream budgets</dt><dd>10.40.0.11:53: 13% of 900/s</dd>",
		"<dt>Shed next</dt><dd>media/thumbnails-108618e2-7xk2p (5 waiting), shop/checkout-0d3e9ad8-2v44j (1 waiting)</dd>",
		`<td class="number">13.0%</td><td>900/s</td>`, `<td class="number">0%</td><td>–</td>`, `<td class="number">412</td>`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if first := rows(text, "clients")[0]; !strings.HasPrefix(first, "shop/checkout-") {
		t.Errorf("the first one by limited queries is %s", first)
	}
	const want = "Limited: client_limit 412 in the last 47 s"
	if text := get(p, "/explain?name=a.test&from=shop/checkout", nil).Body.String(); !strings.Contains(text, want) {
		t.Errorf("the explanation does not have %s", want)
	}
}
