package app

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/clients"
)

const (
	// maxPageConns bounds the connections to the page, all of which come from this host. A browser has
	// six at most.
	maxPageConns = 16
	// pageRetry is the time between two attempts to listen.
	pageRetry = 2 * time.Second
	// pageDrain is the time that requests have to end when the agent hands the page over.
	pageDrain = 100 * time.Millisecond
)

// pageSource is the agent as the page shows it.
type pageSource struct{ *agent }

// Status implements [page.Source].
func (s pageSource) Status() *report.Status { return s.status() }

// Upstreams implements [page.Source].
func (s pageSource) Upstreams() *report.Upstreams { return s.upstreams() }

// Clients implements [page.Source].
func (s pageSource) Clients(by, window string, limit int) (*report.Clients, error) {
	table, err := s.counted()
	if err != nil {
		return nil, err
	}
	s.kernelPath.updateCounters() // before the counters are read
	c := newClients(by, window, table.Top(clientRows[by], clientWindows[window], min(limit, maxShownClients)))
	if by == "workload" {
		s.describePods(c.Clients, by)
	}
	return c, nil
}

// Names implements [page.Source].
func (s pageSource) Names(topic, window string, limit int) (*report.Names, error) {
	table, err := s.counted()
	if err != nil {
		return nil, err
	}
	return nameReport(table, topic, window, limit), nil
}

// counted returns the table of clients.
func (s pageSource) counted() (*clients.Table, error) {
	if table := s.builder.clients.counted(); table != nil {
		return table, nil
	}
	return nil, errors.New("queries are not counted by client; run the agent without --client-metrics=off")
}

// Explain implements [page.Source].
func (s pageSource) Explain(values url.Values) (*report.Explanation, error) {
	q, err := s.parseExplain(values)
	if err != nil {
		return nil, err
	}
	return s.explain(context.Background(), q), nil // it asks nothing
}

// History implements [page.Source].
func (s pageSource) History() page.History { return s.history.read() }

// LastSample implements [page.Source].
func (s pageSource) LastSample() time.Time { return s.history.lastSample() }

// servePage serves the page at addr until ctx ends. If it can't listen there, it logs that once, and
// tries again.
func (a *agent) servePage(ctx context.Context, addr netip.AddrPort) {
	failed := false
	for ctx.Err() == nil {
		// Without SO_REUSEPORT, so that another program at the port does not get part of the requests.
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err == nil {
			a.log.Info("the page is served", "address", addr)
			a.servePageAt(ctx, ln)
			return
		}
		if !failed {
			a.log.Warn("listening for the page failed; trying again", "address", addr, "interval", pageRetry, "err", err)
			failed = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pageRetry):
		}
	}
}

// servePageAt serves the page to the clients of ln until ctx ends. It closes ln.
func (a *agent) servePageAt(ctx context.Context, ln *net.TCPListener) {
	server, limited := a.http.NewServer(maxPageConns, page.New(pageSource{a}).ServeHTTP)
	server.BaseContext = func(net.Listener) context.Context { return ctx } // ends the streams of events
	served := make(chan error, 1)
	go func() { served <- server.Serve(limited(ln)) }()
	select {
	case <-ctx.Done():
	case err := <-served:
		a.log.Error("the page stopped", "err", err)
		return
	}
	drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageDrain)
	defer cancel()
	if server.Shutdown(drained) != nil {
		_ = server.Close()
	}
}
