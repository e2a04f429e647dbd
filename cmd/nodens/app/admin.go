package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
	"github.com/nodens-dns/nodens/internal/wire"
)

// admin is the socket through which an operator on the node asks how the agent is, and to flush the
// cache. It speaks HTTP; package report has the replies.
type admin struct {
	path   string
	inode  os.FileInfo
	server *http.Server
}

// adminRequests bounds requests at once: one operator has one terminal. Those beyond
// it are refused, since each may walk the whole cache.
const adminRequests = 4

// maxSocketPath is what fits into a socket's address (unix(7)), its last byte aside.
const maxSocketPath = 107

// openAdmin listens at path for a; "" is nil. Only the agent's own user can connect. A
// socket that is there already gives way: it is that of an agent which has died, or
// which this one takes over from.
func (a *agent) openAdmin(path string) (*admin, error) {
	if path == "" {
		return nil, nil
	}
	ln, inode, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("listening at --admin-socket %s: %w", path, err)
	}
	s := &admin{path: path, inode: inode, server: &http.Server{
		Handler:           a.adminHandler(),
		ReadTimeout:       endpoint.Timeout,
		ReadHeaderTimeout: endpoint.Timeout,
		WriteTimeout:      endpoint.Timeout,
		IdleTimeout:       endpoint.Timeout,
		MaxHeaderBytes:    endpoint.MaxHeader,
	}}
	go func() {
		if err := s.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("the admin socket stopped", "path", path, "err", err)
		}
	}()
	return s, nil
}

// listenUnix makes the socket in a folder that nobody else can look into, and moves it
// to its place when it has its mode: at no moment can others connect.
func listenUnix(path string) (ln *net.UnixListener, inode os.FileInfo, err error) {
	if old, err := os.Lstat(path); err == nil && old.Mode().Type() != fs.ModeSocket {
		return nil, nil, errors.New("there is something that is not a socket; name another path")
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".nodens")
	if err != nil {
		return nil, nil, fmt.Errorf("%w; name a path in a folder that can be written to", err)
	}
	defer func() { _ = os.RemoveAll(private) }()
	made := filepath.Join(private, "s")
	if len(made) > maxSocketPath {
		return nil, nil, fmt.Errorf("the path is too long for a socket; name one in a folder of at most %d bytes", maxSocketPath-len(made)+len(filepath.Dir(path)))
	}
	if ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"}); err != nil {
		return nil, nil, err
	}
	ln.SetUnlinkOnClose(false)
	err = errors.Join(os.Chmod(made, 0o600), os.Rename(made, path))
	if err == nil {
		inode, err = os.Lstat(path)
	}
	if err != nil {
		_ = ln.Close()
		return nil, nil, err
	}
	return ln, inode, nil
}

// close ends what is under way and removes the socket, unless another agent's has
// taken its place. A nil admin has none.
func (s *admin) close() {
	if s == nil {
		return
	}
	_ = s.server.Close()
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.inode) {
		_ = os.Remove(s.path)
	}
}

// adminHandler answers on the admin socket.
func (a *agent) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /cache/flush", a.flushCache)
	mux.HandleFunc("GET /status", a.showStatus)
	mux.HandleFunc("GET /clients", a.showClients)
	mux.HandleFunc("GET /names", a.showNames)
	mux.HandleFunc("GET /upstreams", a.showUpstreams)
	mux.HandleFunc("GET /policies", a.showPolicies)
	mux.HandleFunc("POST /policies/draft", a.draftPolicy)
	mux.HandleFunc("GET /plan", a.showPlan)
	mux.HandleFunc("GET /explain", a.showExplain)
	mux.HandleFunc("POST /explain", a.showExplain)
	mux.HandleFunc("GET /cache", a.showCaches)
	mux.HandleFunc("GET /cache/entries", a.showCacheEntries)
	mux.HandleFunc("GET /config", a.showConfig)
	places := make(chan struct{}, adminRequests)
	streams := http.NewServeMux() // they last, and have a limit of their own
	streams.HandleFunc("GET /tail", a.showTail)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := streams.Handler(r); pattern != "" {
			streams.ServeHTTP(w, r)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			mux.ServeHTTP(w, r)
		default:
			http.Error(w, "too many requests at once; try again", http.StatusServiceUnavailable)
		}
	})
}

// flushResult is the reply to a flush.
type flushResult struct {
	Entries int `json:"entries"` // removed
}

// flushCache removes the entries of a name, or of all names below it too, from every
// cache.
func (a *agent) flushCache(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	if !values.Has("name") {
		http.Error(w, `name is missing; give name=NAME, "." with subtree=true for all`, http.StatusBadRequest)
		return
	}
	name, err := wire.ParseName(values.Get("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	subtree := false
	if s := values.Get("subtree"); s != "" {
		if subtree, err = strconv.ParseBool(s); err != nil {
			http.Error(w, fmt.Sprintf("subtree is %q; give true or false", s), http.StatusBadRequest)
			return
		}
	}
	n := a.builder.store.Flush([]byte(name), subtree)
	a.log.Info("the cache was flushed", "name", name.String(), "subtree", subtree, "entries", n)
	writeJSON(w, flushResult{n})
}

// configState is what /config shows.
type configState struct {
	Path    string   `json:"path"`
	Hash    string   `json:"hash"` // coredns_reload_version_info's
	Files   []string `json:"files"`
	Refused bool     `json:"refused"` // the files hold another one, which is at fault
}

func (a *agent) showConfig(w http.ResponseWriter, _ *http.Request) {
	cfg := a.current.Load().cfg
	writeJSON(w, configState{Path: cfg.Path, Hash: cfg.Hash, Files: cfg.Files, Refused: a.reloadState.refused.Load()})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // who has gone needs no answer
}
