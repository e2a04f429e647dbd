package config

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"time"
)

// Scope is the `scope` option.
type Scope uint8

// The scopes.
const (
	// ScopeNode watches the namespaces that this node's pods query.
	ScopeNode Scope = iota
	// ScopeCluster watches the whole cluster.
	ScopeCluster
)

// Topology is the `topology` option: how the location of endpoints affects an answer.
type Topology uint8

// The topologies.
const (
	// TopologyHints returns only the nearest endpoints of Services with hints enabled,
	// and TopologyOrder's answer for all others. It is the default.
	TopologyHints Topology = iota
	// TopologyOrder returns all endpoints: this node's first, then those in its zone.
	TopologyOrder
	// TopologyOff returns all endpoints in any order.
	TopologyOff
)

const (
	// defaultScopeIdle keeps namespaces that an hourly job uses.
	defaultScopeIdle = time.Hour
	// minScopeIdle avoids that a namespace used every minute is listed each time: a list costs
	// the API server more than the watch.
	minScopeIdle = time.Minute
	// maxScopeIdle covers daily jobs. If a node kept namespaces longer, `scope cluster` would
	// be cheaper.
	maxScopeIdle = 24 * time.Hour
	// defaultScopeMax is far more than the namespaces that a node's pods usually use. A watch
	// costs the API server some 80 KiB.
	defaultScopeMax = 32
	// maxScopeMax is more than the pods that a node can run.
	maxScopeMax = 1000
)

// scopeOptions returns the options that limit what is watched and returned.
func (k *Kubernetes) scopeOptions(p *parser) options {
	return options{
		opt("scope node|cluster", toChoice(p, &k.Scope, "value", map[string]Scope{"node": ScopeNode, "cluster": ScopeCluster})),
		opt("scope_idle DURATION", p.toDuration(&k.ScopeIdle, minScopeIdle, maxScopeIdle)),
		opt("scope_max NUMBER", toNumber(p, &k.ScopeMax, 1, maxScopeMax)),
		opt("endpoints all", toChoice(p, &k.AllEndpoints, "value", map[string]bool{"all": true})),
		opt("topology off|order|hints", toChoice(p, &k.Topology, "value", map[string]Topology{
			"off": TopologyOff, "order": TopologyOrder, "hints": TopologyHints,
		})),
		opt("save FILE", func(args []token) { k.save(p, args[0]) }),
	}
}

// rooted reports whether a path is absolute, on this machine or on a node. On Windows a node's
// paths, such as /etc/hosts, are not absolute for package filepath.
func rooted(name string) bool { return path.IsAbs(name) || filepath.IsAbs(name) }

// save checks the file's folder, so that a missing mount is an error at the start, not at the
// next restart.
func (k *Kubernetes) save(p *parser, w token) {
	if !rooted(w.text) {
		p.errorf(w, "%q is not an absolute path such as /var/lib/nodens/view", w.text)
		return
	}
	if p.offNode(w.text) {
		k.Save = path.Clean(w.text)
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

// checkSaves reports blocks that save different views to one file.
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

// watchedOnly returns k without the options that only affect answers.
func (k Kubernetes) watchedOnly() Kubernetes {
	k.Zones, k.Multicluster, k.Namespaces, k.Fallthrough = nil, nil, nil, nil
	k.TTL, k.Pods, k.Topology, k.StartupTimeout = 0, 0, 0, 0
	k.IgnoreEmptyService, k.Zonal = false, false
	return k
}
