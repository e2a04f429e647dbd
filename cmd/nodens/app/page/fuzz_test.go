package page_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
)

// tags finds elements with the names of their attributes: what is between quotes is left out.
var tags = regexp.MustCompile(`<[a-zA-Z][^<>]*>`)

// values finds the values of attributes.
var values = regexp.MustCompile(`"[^"]*"`)

// elements returns the elements of a page, without the values of their attributes.
func elements(text string) []string {
	return tags.FindAllString(values.ReplaceAllString(text, ""), -1)
}

// fuzzedPage is a page, and known the elements that it has without a query. They are made once, because some
// engines call a fuzzer's function for each input.
var (
	fuzzedPage = sync.OnceValue(func() *page.Page { return page.New(newSample()) })
	known      = sync.OnceValue(func() map[string]bool {
		all := make(map[string]bool)
		for _, target := range []string{
			"/", "/?q=shop&by=workload&window=1h&rows=all", "/?q=nothing", "/?sort-clients=-name&sort-upstreams=-name",
			"/explain?name=a.test&type=A", "/explain?name=a&type=NOTHING",
		} {
			for _, tag := range elements(get(fuzzedPage(), target, nil).Body.String()) {
				all[tag] = true
			}
		}
		return all
	})
)

// FuzzRequest asks with any query and any Host header. The page then has only elements that it has without
// a query.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"/", "q=shop&by=workload&sort-clients=-name&rows=all", "localhost:8353"}, {"/", "window=1h&sort-slow=%22%3E", "[::1]"},
		{"/explain", "name=%3Cscript%3E&type=AAAA&from=%22+onload%3D1", "127.0.0.1:80"}, {"/", "by=%3Cb%3E", "localhost.example.com"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, path, query, host string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL, r.Host, r.RemoteAddr = &url.URL{Path: path, RawQuery: query}, host, "127.0.0.1:40000"
		if path == "/events" {
			return // it does not end
		}
		w := httptest.NewRecorder()
		fuzzedPage().ServeHTTP(w, r)
		if w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
			return
		}
		for _, tag := range elements(w.Body.String()) {
			if !known()[tag] {
				t.Errorf("%s?%s has %s", path, query, tag)
			}
		}
	})
}
