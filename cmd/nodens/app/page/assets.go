package page

import (
	"bytes"
	"embed"
	"html/template"
	"net/http"
	"sync"
	"time"
)

//go:embed assets templates
var files embed.FS

// templates returns the parsed templates. The first call parses them, so that an agent whose page nobody
// opens does not hold them.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.ParseFS(files, "templates/*.html"))
})

// assetTypes are the media types of the assets.
var assetTypes = map[string]string{
	"style.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
}

func serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	text, err := files.ReadFile("assets/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", assetTypes[name])
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
}
