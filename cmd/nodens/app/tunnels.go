package app

import (
	"fmt"
	"net/netip"

	"github.com/nodens-dns/nodens/internal/clock"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/tunnel"
)

// openTunnel returns the block's detector, which knows whose the clients' addresses are.
func (a *builder) openTunnel(p *blockParts) (any, error) {
	owners := a.clients.owners()
	return tunnel.New(p.block.Tunnel, tunnel.Options{Logger: a.log.With("part", "tunnel"), Owner: func(addr netip.Addr) tunnel.Owner {
		kind, pod := owners.Owner(addr)
		return tunnel.Owner{Namespace: pod.Namespace + kind.String(), Pod: pod.Name, UID: pod.UID}
	}}), nil
}

// detectors returns the detectors of g's blocks.
func (g *generation) detectors() (list []*tunnel.Detector) {
	for _, p := range g.blocks {
		if d := part[*tunnel.Detector](p, "tunnel"); d != nil {
			list = append(list, d)
		}
	}
	return list
}

// readTunnels reads the metrics of all detectors of g.
func readTunnels(s *scrape, g *generation) {
	for _, d := range g.detectors() {
		read(s, d)
		for _, x := range d.Suspects(clock.Now()) {
			read(s, x)
		}
	}
}

// maxTunnelProblems bounds the suspects that nodens status names.
const maxTunnelProblems = 16

// tunnelProblems names the suspects of g, which may be nil.
func tunnelProblems(g *generation) (list []report.Problem) {
	if g == nil {
		return nil
	}
	for _, d := range g.detectors() {
		for _, x := range d.Suspects(clock.Now()) {
			who := x.Client.String()
			if x.Owner.Pod != "" {
				who = x.Owner.Namespace + "/" + x.Owner.Pod
			}
			if len(list) < maxTunnelProblems {
				list = append(list, problem(fmt.Sprintf("%s may send data in names below %s: %d names, %d bytes", who, x.Domain, x.Names, x.Bytes))...)
			}
		}
	}
	return list
}
