package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"time"
)

// Scope is the `scope` option.
type Scope uint8

// The scopes.
const (
	// ScopeNode watches what this node's pods ask for.
	ScopeNode Scope = iota
	// ScopeCluster watches all of the cluster.
	ScopeCluster
)

// Topology is the `topology` option: what an answer of endpoints makes of where
// they are.
type Topology uint8

// The topologies.
const (
	// TopologyHints gives only the nearest endpoints of services that ask for it,
	// and those of all others in order. It is the default.
	TopologyHints Topology = iota
	// TopologyOrder gives all, those of this node first, then those of its zone.
	TopologyOrder
	// TopologyOff gives all in any order.
	TopologyOff
)

const (
	// defaultScopeIdle keeps what an hourly job asks for in view between its runs.
	// With half of it each run would find its namespace gone; twice as much keeps
	// the namespaces of pods that have long left the node.
	defaultScopeIdle = time.Hour
	// minScopeIdle: what is asked for every minute would be listed anew every
	// minute with less, and a list costs the API server more than the watch saved.
	minScopeIdle = time.Minute
	// maxScopeIdle covers what happens daily. A node that keeps namespaces for
	// longer ends up with those of every pod it ever had, which is `scope cluster`.
	maxScopeIdle = 24 * time.Hour
	// defaultScopeMax is more namespaces than a node's pods use by far, so that a
	// cluster's many small namespaces make no node watch all of it; a watch takes
	// some 80 KiB of the API server, so twice as many would be 5 MiB for one node.
	defaultScopeMax = 32
	// maxScopeMax is above the number of pods that a node can run, so a larger
	// number means the same; half of it is within reach of the largest nodes.
	maxScopeMax = 1000
)

// scopeOptions adds the options that say how much is watched and what of it is given.
func (k *Kubernetes) scopeOptions(p *parser, table options) {
	table["scope"] = option{usage: "scope node|cluster", least: 1, most: 1, set: func(args []token) {
		k.Scope, _ = choice(p, args[0], "value", map[string]Scope{"node": ScopeNode, "cluster": ScopeCluster})
	}}
	table["scope_idle"] = option{usage: "scope_idle DURATION", least: 1, most: 1, set: func(args []token) {
		k.ScopeIdle, _ = p.duration(args[0], minScopeIdle, maxScopeIdle)
	}}
	table["scope_max"] = option{usage: "scope_max NUMBER", least: 1, most: 1, set: func(args []token) {
		n, _ := p.number(args[0], 1, maxScopeMax)
		k.ScopeMax = int(n)
	}}
	table["endpoints"] = option{usage: "endpoints all", least: 1, most: 1, set: func(args []token) {
		k.AllEndpoints, _ = choice(p, args[0], "value", map[string]bool{"all": true})
	}}
	table["topology"] = option{usage: "topology off|order|hints", least: 1, most: 1, set: func(args []token) {
		k.Topology, _ = choice(p, args[0], "value", map[string]Topology{
			"off": TopologyOff, "order": TopologyOrder, "hints": TopologyHints,
		})
	}}
	table["save"] = option{usage: "save FILE", least: 1, most: 1, set: func(args []token) { k.save(p, args[0]) }}
}

// save checks that there is a place for the file, so that a mount that was forgotten
// is seen at the start and not at the next one, which would find nothing saved.
func (k *Kubernetes) save(p *parser, w token) {
	if !filepath.IsAbs(w.text) {
		p.errorf(w, "%q is not an absolute path such as /var/lib/nodens/view", w.text)
		return
	}
	folder := filepath.Dir(w.text)
	switch info, err := os.Stat(folder); {
	case errors.Is(err, os.ErrNotExist):
		p.errorf(w, "the folder %s does not exist; make it, or mount it into the pod", folder)
		return
	case err != nil:
		p.errorf(w, "can't look at the folder of %q: %v", w.text, err)
		return
	case !info.IsDir():
		p.errorf(w, "%s is not a folder, so that %q can't be in it", folder, w.text)
		return
	}
	if info, err := os.Stat(w.text); err == nil && info.IsDir() {
		p.errorf(w, "%q is a folder; name a file in it", w.text)
		return
	}
	k.Save = filepath.Clean(w.text)
}

// checkSaves notes views that would be saved over each other: after a restart one block
// would start from what the other one watches.
func (p *parser) checkSaves(blocks []*Block) {
	p.name, p.option = "kubernetes", "save"
	defer func() { p.name, p.option = "", "" }()
	firsts := make(map[string]*Block)
	for _, b := range blocks {
		if b.Kubernetes == nil || b.Kubernetes.Save == "" {
			continue
		}
		path := b.Kubernetes.Save
		first := firsts[path]
		if first == nil {
			firsts[path] = b
			continue
		}
		if !reflect.DeepEqual(first.Kubernetes.watchedOnly(), b.Kubernetes.watchedOnly()) {
			at := token{text: path, file: b.File, line: b.Line}
			p.errorf(at, "the block at %s:%d saves to %s too, and watches something else; name another file", first.File, first.Line, path)
		}
	}
}

// watchedOnly is k without what only answers depend on.
func (k Kubernetes) watchedOnly() Kubernetes {
	k.Zones, k.Multicluster, k.Namespaces, k.Fallthrough = nil, nil, nil, nil
	k.TTL, k.Pods, k.Topology, k.StartupTimeout = 0, 0, 0, 0
	k.IgnoreEmptyService, k.Zonal = false, false
	return k
}
