package config

import "slices"

// Cluster returns the block whose view has the endpoints for b's upstreams of the form
// k8s:NAMESPACE/NAME: b itself, else the first block with a kubernetes directive, or nil.
func Cluster(blocks []*Block, b *Block) *Block {
	if b.Kubernetes != nil {
		return b
	}
	i := slices.IndexFunc(blocks, func(b *Block) bool { return b.Kubernetes != nil })
	if i < 0 {
		return nil
	}
	return blocks[i]
}

// checkServices reports upstreams that are Services if no view has their endpoints.
func (p *parser) checkServices(blocks []*Block) {
	defer func() { p.name = "" }()
	for _, b := range blocks {
		for f := b.Forward; f != nil; f = f.Next {
			p.name = f.Name()
			for _, to := range f.To {
				if to.Service != "" {
					p.service(blocks, b, to)
				}
			}
		}
	}
}

func (p *parser) service(blocks []*Block, b *Block, to Target) {
	at := token{text: to.String(), file: b.File, line: b.Line}
	switch c := Cluster(blocks, b); {
	case c == nil:
		p.errorf(at, "the endpoints of %s are those that a kubernetes directive sees, and no block has one; add it, such as `kubernetes cluster.local`, or write the IP address of the Service", to)
	case c.Kubernetes.NoEndpoints:
		p.errorf(at, "the endpoints of %s are those that the kubernetes directive of the block at %s:%d sees, which has noendpoints; take that out, or write the IP address of the Service", to, c.File, c.Line)
	}
}
