package pagetest_test

import (
	"flag"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/test/pagetest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

var pictures = flag.String("pictures", "", "directory to write the pictures of the documents to")

// shot is a picture of a page.
type shot struct {
	pagetest.View
	path string
}

// shots are the pictures, by file.
var shots = map[string]shot{
	"page-explain.png":  {pagetest.View{Width: 1280, Height: 860}, "/explain?name=rates.exchange.example&from=shop/checkout-0d3e9ad8-2v44j"},
	"page-incident.png": {pagetest.View{Width: 1280, Height: 1400}, "/?by=workload&sort-clients=waste&q=shop"},
	"page-light.png":    {pagetest.View{Width: 1280, Height: 2000}, "/"},
	"page-dark.png":     {pagetest.View{Width: 1280, Height: 2000, Dark: true}, "/"},
	"page-phone.png":    {pagetest.View{Width: 390, Height: 1600, Phone: true}, "/"},
}

// maxPicture bounds a picture, in bytes.
const maxPicture = 200 << 10

// TestPictures takes the pictures that the documents show: go test ./test/pagetest -run TestPictures -args
// -pictures "$PWD/docs/images". Without the flag it only takes them.
func TestPictures(t *testing.T) {
	server := httptest.NewServer(page.New(pagetest.Sample{Now: time.Now().UTC()}))
	t.Cleanup(server.Close)
	tab := pagetest.Start(t).NewTab()
	for name, shot := range shots {
		tab.Show(shot.View)
		tab.Open(server.URL + shot.path)
		if !strings.HasPrefix(shot.path, "/explain") {
			tab.Await("the first update", isLive)
		}
		if wide := tab.Eval("document.documentElement.scrollWidth > innerWidth"); wide != "false" {
			t.Errorf("%s: the page is wider than the window", name)
		}
		picture := tab.Picture()
		if *pictures == "" {
			continue
		}
		picture, err := reduce(picture)
		check.NoError(t, err)
		if len(picture) > maxPicture {
			t.Errorf("%s has %d bytes, want %d at most", name, len(picture), maxPicture)
		}
		check.NoError(t, os.WriteFile(filepath.Join(*pictures, name), picture, 0o644))
	}
	for _, text := range tab.Errors() {
		t.Errorf("console: %s", text)
	}
}
