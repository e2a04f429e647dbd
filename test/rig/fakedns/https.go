package fakedns

import (
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/miekg/dns"
)

// Path is the path at which servers over HTTPS take queries, by GET and POST (RFC 8484,
// section 4.1).
const Path = "/dns-query"

func (s *Server) serveHTTPS() {
	h := &http.Server{
		TLSConfig: s.opts.TLS, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(s.serveRequest),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if !s.track(c) {
					c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				s.untrack(c)
			}
		},
	}
	_ = h.ServeTLS(s.tcp, "", "")
	_ = h.Close()
}

func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request) {
	msg, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	if r.Method == http.MethodPost {
		msg, err = io.ReadAll(io.LimitReader(r.Body, dns.MaxMsgSize))
	}
	if err != nil || r.URL.Path != Path {
		http.Error(w, "not a query", http.StatusBadRequest)
		return
	}
	reply := make(chan []byte, 1)
	s.handle(msg, Query{Transport: HTTPS, http: reply})
	select {
	case b := <-reply:
		if b == nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/dns-message")
		_, _ = w.Write(b)
	case <-r.Context().Done():
	case <-s.closed:
	}
}
