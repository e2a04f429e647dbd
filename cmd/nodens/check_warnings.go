package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

// warnings returns what is valid and probably a mistake.
func warnings(in *checkInput) []finding {
	list := []finding{}
	for _, text := range slices.Concat(in.refused, in.cfg.Warnings) {
		text = in.show.Replace(text)
		list = append(list, finding{Message: text, text: text})
	}
	return append(list, suspicions(in)...)
}

// suspicions returns the warnings that migrate does not print itself: all but the parser's.
func suspicions(in *checkInput) (list []finding) {
	for _, e := range in.cfg.Suspicious {
		if in.assumed && strings.Contains(e.Text, "--localip") {
			continue // the addresses are not the cluster's
		}
		list = append(list, newFinding(in, e))
	}
	for _, e := range slices.Concat(in.zoneWarnings, healthWarnings(in), probeWarnings(in), reloadWarnings(in), portWarnings(in)) {
		list = append(list, newFinding(in, e))
	}
	return list
}

// newFinding returns e with the names of files and placeholders as they are shown.
func newFinding(in *checkInput, e *config.ParseError) finding {
	return finding{
		File: in.show.Replace(e.File), Line: e.Line, Directive: e.Directive, Option: e.Option, Word: in.show.Replace(e.Word),
		Message: in.show.Replace(e.Text), Nearest: e.Nearest, Allowed: e.Allowed, text: in.show.Replace(e.Error()),
	}
}

// healthWarnings reports health endpoints on another port than the rules are for.
func healthWarnings(in *checkInput) (list []*config.ParseError) {
	if a := in.flags; !a.SetsUpNetwork() || !a.SetupIptables || a.HealthPort == 0 {
		return nil
	}
	for _, b := range in.cfg.Blocks {
		if b.Health == nil || portOf(b.Health.Addr) == strconv.Itoa(int(in.flags.HealthPort)) {
			continue
		}
		list = append(list, blockError(b, "health", fmt.Sprintf("it listens on port %s, and the rules are for --health-port %d; set both to the same port", portOf(b.Health.Addr), in.flags.HealthPort)))
	}
	return list
}

// probeWarnings reports HTTP probes of the DaemonSet that nothing answers.
func probeWarnings(in *checkInput) (list []*config.ParseError) {
	for _, p := range in.probes {
		var addrs []string
		for _, b := range in.cfg.Blocks {
			switch {
			case p.Path == "/health" && b.Health != nil:
				addrs = append(addrs, b.Health.Addr)
			case p.Path == "/ready" && b.Ready != nil:
				addrs = append(addrs, b.Ready.Addr)
			}
		}
		directive := map[string]string{"/health": "health", "/ready": "ready"}[p.Path]
		if directive == "" || slices.ContainsFunc(addrs, func(a string) bool { return portOf(a) == p.Port }) {
			continue
		}
		if _, err := strconv.Atoi(p.Port); err != nil {
			continue // the name of a port
		}
		list = append(list, &config.ParseError{File: in.cfg.Path, Text: fmt.Sprintf(
			"the DaemonSet's %s asks %s on port %s, where no `%s` listens: the probe fails; write `%s %s`", p.Name, p.Path, p.Port, directive, directive, net.JoinHostPort(p.Host, p.Port))})
	}
	return list
}

// reloadWarnings reports a Corefile in a DaemonSet's ConfigMap that is read only once.
func reloadWarnings(in *checkInput) []*config.ParseError {
	if !in.daemonSet || in.flags.ReloadBySignal ||
		slices.ContainsFunc(in.cfg.Blocks, func(b *config.Block) bool { return b.Reload != nil && b.Reload.Interval > 0 }) {
		return nil
	}
	return []*config.ParseError{{File: in.cfg.Path, Text: "no block has `reload`: a change of the ConfigMap takes effect when a pod starts; add `reload`"}}
}

// portWarnings reports addresses of HTTP endpoints that can't both be listened on, or that a server block has for DNS.
func portWarnings(in *checkInput) (list []*config.ParseError) {
	ends := httpEndpoints(in)
	for i, e := range ends {
		if e.block == nil {
			continue
		}
		for _, o := range ends[:i] {
			if e.addr != o.addr && meet(e.addr, o.addr) {
				list = append(list, blockError(e.block, e.directive, fmt.Sprintf("%s and %s of %s need one port; give one of them another", e.addr, o.addr, o.directive)))
			}
		}
		for _, b := range in.cfg.Blocks {
			for _, at := range b.Listen {
				if meet(e.addr, at.String()) {
					list = append(list, blockError(e.block, e.directive, fmt.Sprintf("%s is the address %s of DNS, too; give it another port", e.addr, at)))
				}
			}
		}
	}
	return list
}

// httpEndpoint is an address of an HTTP endpoint. block is nil for one that a flag sets.
type httpEndpoint struct {
	block           *config.Block
	directive, addr string
}

// httpEndpoints returns the HTTP endpoints of the agent.
func httpEndpoints(in *checkInput) []httpEndpoint {
	ends := []httpEndpoint{{nil, "--metrics-listen-address", in.flags.MetricsAddr}}
	for _, b := range in.cfg.Blocks {
		if b.Health != nil {
			ends = append(ends, httpEndpoint{b, "health", b.Health.Addr})
		}
		if b.Ready != nil {
			ends = append(ends, httpEndpoint{b, "ready", b.Ready.Addr})
		}
		if b.Prometheus != nil {
			ends = append(ends, httpEndpoint{b, "prometheus", b.Prometheus.Addr})
		}
		if b.Pprof != nil {
			ends = append(ends, httpEndpoint{b, "pprof", b.Pprof.Addr})
		}
	}
	return ends
}

// meet reports whether two addresses, of which one may be all of the node's, have a port in common.
func meet(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	all := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return hostA == hostB || all(hostA) || all(hostB)
}

// blockError returns a warning about a directive of b.
func blockError(b *config.Block, directive, text string) *config.ParseError {
	return &config.ParseError{File: b.File, Line: b.Line, Directive: directive, Text: text}
}

// portOf returns the port of host:port.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return port
}
