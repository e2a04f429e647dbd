package config

import (
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Kubernetes is the `kubernetes [ZONES…] { … }` directive.
type Kubernetes struct {
	Zones []wire.Name // the block's zones by default
	// Endpoint, TLS and Kubeconfig locate the API server; if all are empty, the pod's
	// service account does. Manifests replaces it by files or folders.
	Endpoint           string
	TLS                *TLS
	Kubeconfig         string
	Context            string
	Manifests          []string // as written: files, folders or glob patterns
	Namespaces         []string // empty: all
	NamespaceLabels    string   // a selector: only names in matching namespaces exist
	Labels             string
	TTL                uint32 // seconds, 5 by default
	Pods               PodMode
	EndpointPodNames   bool
	NoEndpoints        bool
	IgnoreEmptyService bool
	StartupTimeout     time.Duration // 5s by default
	QPS                float32       // apiserver_qps; 0: client-go's default
	Burst              int           // apiserver_burst; 0: client-go's default
	Fallthrough        *Fallthrough
	Multicluster       []wire.Name // zones with the names of ServiceImports
	Zonal              bool
	// Scope says how much of the cluster is watched; ScopeIdle and ScopeMax are
	// [ScopeNode]'s: how long a namespace that nobody asks for stays in view (1h by
	// default), and how many may before the whole cluster is watched (32 by default).
	Scope     Scope
	ScopeIdle time.Duration
	ScopeMax  int
	// AllEndpoints is `endpoints all`: endpoints of Services with a cluster IP
	// have names too.
	AllEndpoints bool
	Topology     Topology
	// Save is the file to which the view is saved; "": none. The next start reads it.
	Save string
}

// TLS names PEM files.
type TLS struct {
	Cert, Key, CA string
}

// PodMode is the `pods` option.
type PodMode uint8

// The pod modes.
const (
	PodsDisabled PodMode = iota
	PodsInsecure
	PodsVerified
)

func (k *Kubernetes) parse(p *parser, s statement) {
	*k = Kubernetes{
		Zones: p.zonesOr(s.args()), TTL: 5, StartupTimeout: 5 * time.Second,
		ScopeIdle: defaultScopeIdle, ScopeMax: defaultScopeMax,
	}
	if len(k.Zones) > 0 && !slices.ContainsFunc(k.Zones, func(z wire.Name) bool { return !reverse(z) }) {
		p.errorf(s.name(), "all zones are reverse zones; name the cluster's own zone too, such as cluster.local")
	}
	given := make(map[string]token)
	for _, line := range s.body {
		given[line.name().text] = line.name()
	}
	p.body(s, k.options(p))
	k.check(p, given)
}

func (k *Kubernetes) options(p *parser) options {
	table := options{
		"namespaces": {usage: "namespaces NAMESPACES…", least: 1, most: -1, set: func(args []token) {
			k.Namespaces = append(k.Namespaces, texts(args)...)
		}},
		"namespace_labels": {usage: "namespace_labels SELECTOR", least: 1, most: -1, set: func(args []token) {
			k.NamespaceLabels = strings.Join(texts(args), " ")
		}},
		"labels": {usage: "labels SELECTOR", least: 1, most: -1, set: func(args []token) {
			k.Labels = strings.Join(texts(args), " ")
		}},
		"ttl": {usage: "ttl SECONDS", least: 1, most: 1, set: func(args []token) {
			n, _ := p.number(args[0], 0, 3600)
			k.TTL = uint32(n)
		}},
		"pods": {usage: "pods disabled|insecure|verified", least: 1, most: 1, set: func(args []token) {
			k.Pods, _ = choice(p, args[0], "value", map[string]PodMode{
				"disabled": PodsDisabled, "insecure": PodsInsecure, "verified": PodsVerified,
			})
		}},
		"endpoint_pod_names": flag("endpoint_pod_names", &k.EndpointPodNames),
		"noendpoints":        flag("noendpoints", &k.NoEndpoints),
		"ignore": {usage: "ignore empty_service", least: 1, most: 1, set: func(args []token) {
			k.IgnoreEmptyService, _ = choice(p, args[0], "value", map[string]bool{"empty_service": true})
		}},
		"startup_timeout": {usage: "startup_timeout DURATION", least: 1, most: 1, set: func(args []token) {
			k.StartupTimeout, _ = p.duration(args[0], 0, longest)
		}},
		"fallthrough":  p.fallthroughs(&k.Fallthrough),
		"multicluster": {usage: "multicluster ZONES…", least: 1, most: -1, set: func(args []token) { k.multicluster(p, args) }},
		"zonal":        flag("zonal", &k.Zonal),
	}
	k.access(p, table)
	k.scopeOptions(p, table)
	return table
}

// access adds the options for the source of the objects.
func (k *Kubernetes) access(p *parser, table options) {
	table["endpoint"] = option{usage: "endpoint URL", least: 1, most: 1, set: func(args []token) { k.endpoint(p, args[0]) }}
	table["tls"] = option{usage: "tls CERT KEY CACERT", least: 3, most: 3, set: func(args []token) {
		k.TLS = &TLS{Cert: args[0].text, Key: args[1].text, CA: args[2].text}
	}}
	table["kubeconfig"] = option{usage: "kubeconfig FILE [CONTEXT]", least: 1, most: 2, set: func(args []token) {
		k.Kubeconfig = args[0].text
		if len(args) == 2 {
			k.Context = args[1].text
		}
	}}
	table["manifests"] = option{usage: "manifests PATHS…", least: 1, most: -1, set: func(args []token) { k.manifests(p, args) }}
	table["apiserver_qps"] = option{usage: "apiserver_qps NUMBER", least: 1, most: 1, set: func(args []token) { k.qps(p, args[0]) }}
	table["apiserver_burst"] = option{usage: "apiserver_burst NUMBER", least: 1, most: 1, set: func(args []token) {
		n, _ := p.number(args[0], 0, 1<<31-1)
		k.Burst = int(n)
	}}
	// No limit on requests in flight is needed: there is one list or watch for each
	// of a few kinds and for each namespace in use, and scope_max bounds those.
	table["apiserver_max_inflight"] = option{usage: "apiserver_max_inflight NUMBER", least: 1, most: 1, set: func(args []token) {
		p.number(args[0], 0, 1<<31-1)
	}}
}

// multicluster reads zones, each of which must be one of the directive's.
func (k *Kubernetes) multicluster(p *parser, words []token) {
	own := slices.DeleteFunc(slices.Clone(k.Zones), reverse)
	for _, w := range words {
		for _, zone := range p.zones([]token{w}) {
			if !slices.Contains(own, zone) {
				f := p.errorf(w, "%q is none of the zones that this directive answers; write it behind `kubernetes` too", w.text)
				f.Allowed = displayNames(own)
				break
			}
			if !slices.Contains(k.Multicluster, zone) {
				k.Multicluster = append(k.Multicluster, zone)
			}
		}
	}
}

// displayNames returns the zones as errors show them.
func displayNames(zones []wire.Name) []string {
	list := make([]string, len(zones))
	for i, zone := range zones {
		list[i] = zone.String()
	}
	return list
}

func (k *Kubernetes) endpoint(p *parser, w token) {
	u, err := url.Parse(w.text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.errorf(w, "%q is not the URL of an API server such as https://10.0.0.1:6443", w.text)
		return
	}
	k.Endpoint = w.text
}

func (k *Kubernetes) qps(p *parser, w token) {
	n, err := strconv.ParseFloat(w.text, 32)
	if err != nil || !(n >= 0) || n > math.MaxFloat32 {
		p.errorf(w, "%q is not a number of requests per second; allowed: 0 or more", w.text)
		return
	}
	k.QPS = float32(n)
}

// manifests checks that each path matches a file, so that a typo is an error at the start.
func (k *Kubernetes) manifests(p *parser, words []token) {
	for _, w := range words {
		k.Manifests = append(k.Manifests, w.text)
		if p.offNode(w.text) {
			continue
		}
		_, err := os.Stat(w.text)
		if err == nil {
			continue
		}
		if !strings.ContainsAny(w.text, "*?[") {
			if errors.Is(err, os.ErrNotExist) {
				err = os.ErrNotExist
			}
			p.errorf(w, "can't read the manifests at %q: %v", w.text, err)
			continue
		}
		if paths, err := filepath.Glob(w.text); err != nil {
			p.errorf(w, "%q is not a glob pattern: %v", w.text, err)
		} else if len(paths) == 0 {
			p.errorf(w, "no file matches %q", w.text)
		}
	}
}

// conflicts are options that exclude each other, with the reason.
var conflicts = []struct{ name, with, why string }{
	{"endpoint", "manifests", "manifests stand in for the API server"},
	{"kubeconfig", "manifests", "manifests stand in for the API server"},
	{"tls", "manifests", "manifests stand in for the API server"},
	{"save", "manifests", "manifests are files that the view starts from already"},
	{"namespace_labels", "namespaces", "list the namespaces, or select them by their labels"},
	{"zonal", "noendpoints", "zonal names are made of endpoints; take one of the two out"},
	{"endpoints", "noendpoints", "one asks for endpoints and the other for none; take one of the two out"},
}

// check reports options that exclude each other. given holds the options in the block.
func (k *Kubernetes) check(p *parser, given map[string]token) {
	for _, c := range conflicts {
		w, ok := given[c.name]
		with, both := given[c.with]
		if ok && both {
			p.errorf(w, "%q and %q (line %d) can't both be set: %s", c.name, c.with, with.line, c.why)
		}
	}
	// CoreDNS uses the kubeconfig if both are given.
	if k.Kubeconfig != "" {
		k.Endpoint, k.TLS = "", nil
	}
}
