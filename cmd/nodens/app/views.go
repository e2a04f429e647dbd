package app

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes"
)

// openViews opens the views of g, so that a block can forward to what another one's view
// knows.
func (a *builder) openViews(g *generation, old *generation) error {
	for _, b := range g.cfg.Blocks {
		if b.Kubernetes == nil {
			continue
		}
		if _, err := a.openView(g, b, old); err != nil {
			return err
		}
	}
	return nil
}

// endpointsView is the view that has the endpoints of b's upstreams; nil if none of
// them is a Service.
func (a *builder) endpointsView(g *generation, b *config.Block, old *generation) (*kubernetes.View, error) {
	for f := b.Forward; f != nil; f = f.Next {
		for _, to := range f.To {
			if to.Service != "" {
				return a.openView(g, config.Cluster(g.cfg.Blocks, b), old)
			}
		}
	}
	return nil, nil
}
