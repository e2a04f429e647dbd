package app

import (
	"fmt"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// shortHashLength is the number of hex digits of a configuration's hash in logs. The whole
// hash is the metric coredns_reload_version_info's.
const shortHashLength = 12

func shortHash(cfg *config.Config) string { return cfg.Hash[:min(shortHashLength, len(cfg.Hash))] }

// logServing logs that the start is complete, and what the agent serves.
func (a *agent) logServing() {
	g := a.current.Load()
	attrs := []any{
		"version", a.opts.Build.String(), "config", g.cfg.Path, "hash", shortHash(g.cfg),
		"addresses", atMost(maxListed, g.addresses()), "zones", atMost(maxListed, g.zones()), "upstreams", atMost(maxListed, g.upstreams()),
	}
	if len(g.views) > 0 {
		services, endpoints := 0, 0
		for _, v := range g.views {
			st := v.Stats()
			services, endpoints = services+st.Services, endpoints+st.Endpoints
		}
		attrs = append(attrs, "services", services, "endpoints", endpoints)
	}
	if len(a.opts.NoEffect) > 0 {
		a.log.Info("flags without an effect", "flags", a.opts.NoEffect)
	}
	a.log.Info("serving", append(attrs, "took", time.Since(a.created).Round(time.Millisecond))...)
}

// maxListed bounds the zones, addresses and upstreams in a log line. A kube-dns ConfigMap may
// have hundreds of stub domains.
const maxListed = 20

// atMost returns the first n of list, and how many more there are.
func atMost(n int, list []string) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}

// appendNew appends s unless list has it already.
func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
