package app

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/nodens-dns/nodens/cmd/nodens/app/endpoint"
)

// ready returns nil if the agent serves, and all views are synced.
func (a *agent) ready() error {
	switch g := a.current.Load(); {
	case a.stopping.Load():
		return errors.New("stopping")
	case a.worse.Load() != nil:
		return errors.New(*a.worse.Load())
	case a.yielded.Load():
		return errors.New("another agent has taken over")
	case g == nil || !a.serving.Load():
		return errors.New("not set up yet")
	default:
		return g.synced()
	}
}

// started returns nil if the agent is ready and keeps the node: it does not compare itself with its
// predecessor any more. The startup probe asks for it.
func (a *agent) started() error {
	if err := a.ready(); err != nil {
		return err
	}
	if a.comparing.Load() {
		return errors.New("it serves, and compares itself with its predecessor")
	}
	return nil
}

// takenBack returns why this agent has the node back from a successor, "" if it never gave it
// away.
func (a *agent) takenBack() string {
	if host := a.handoverServer.Load(); host != nil {
		if reason, _ := host.TakenBack(); reason != "" {
			return "the node is back from a successor: " + reason
		}
	}
	return ""
}

// readyNotice is what /ready says beside OK; "" for nothing.
func (a *agent) readyNotice() string { return cmp.Or(a.takenBack(), a.http.Problem()) }

// handlers returns the HTTP handlers of g's directives, by address and path.
func (a *agent) handlers(g *generation) endpoint.Handlers {
	want := make(endpoint.Handlers)
	add := func(addr, path string, h http.Handler) {
		if want[addr] == nil {
			want[addr] = make(map[string]http.Handler)
		}
		want[addr][path] = h
	}
	metrics := a.metrics()
	if a.opts.MetricsAddr != "" {
		add(a.opts.MetricsAddr, "/metrics", metrics)
	}
	for _, b := range g.cfg.Blocks {
		if b.Health != nil {
			add(b.Health.Addr, "/health", endpoint.Probe(a.progress.err, nil))
		}
		if b.Ready != nil {
			add(b.Ready.Addr, "/ready", endpoint.Probe(a.ready, a.readyNotice))
		}
		if b.Prometheus != nil {
			add(b.Prometheus.Addr, "/metrics", metrics)
		}
		if b.Pprof != nil {
			endpoint.AddPprof(func(path string, h http.Handler) { add(b.Pprof.Addr, path, h) })
		}
	}
	return want
}
