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
	p.body(s, slices.Concat(k.options(p), k.accessOptions(p), k.scopeOptions(p))...)
	k.check(p, s)
}

func (k *Kubernetes) options(p *parser) options {
	return options{
		opt("namespaces NAMESPACES…", func(args []token) { k.Namespaces = append(k.Namespaces, texts(args)...) }),
		opt("namespace_labels SELECTOR…", toText(&k.NamespaceLabels)),
		opt("labels SELECTOR…", toText(&k.Labels)),
		opt("ttl SECONDS", toNumber(p, &k.TTL, 0, 3600)),
		opt("pods disabled|insecure|verified", toChoice(p, &k.Pods, "value", map[string]PodMode{
			"disabled": PodsDisabled, "insecure": PodsInsecure, "verified": PodsVerified,
		})),
		flag("endpoint_pod_names", &k.EndpointPodNames),
		flag("noendpoints", &k.NoEndpoints),
		opt("ignore empty_service", toChoice(p, &k.IgnoreEmptyService, "value", map[string]bool{"empty_service": true})),
		opt("startup_timeout DURATION", p.toDuration(&k.StartupTimeout, 0, longest)),
		p.fallthroughs(&k.Fallthrough),
		opt("multicluster ZONES…", func(args []token) { k.multicluster(p, args) }),
		flag("zonal", &k.Zonal),
	}
}

// accessOptions returns the options for the source of the objects.
func (k *Kubernetes) accessOptions(p *parser) options {
	return options{
		opt("endpoint URL…", func(args []token) {
			if len(args) > 1 {
				p.suspect(args[1], "only the first URL is used, as in CoreDNS; take the others out, or write the address of a load balancer")
			}
			k.Endpoint = args[0].text
			if u, err := url.Parse(k.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				p.errorf(args[0], "%q is not the URL of an API server such as https://10.0.0.1:6443", k.Endpoint)
			}
		}),
		opt("tls CERT KEY CACERT", func(args []token) { k.TLS = &TLS{Cert: args[0].text, Key: args[1].text, CA: args[2].text} }),
		opt("kubeconfig FILE [CONTEXT]", func(args []token) {
			k.Kubeconfig = args[0].text
			if len(args) == 2 {
				k.Context = args[1].text
			}
		}),
		opt("manifests PATHS…", func(args []token) { k.manifests(p, args) }),
		opt("apiserver_qps NUMBER", func(args []token) {
			n, err := strconv.ParseFloat(args[0].text, 32)
			if k.QPS = float32(n); err != nil || !(n >= 0) || n > math.MaxFloat32 {
				p.errorf(args[0], "%q is not a number of requests per second; allowed: 0 or more", args[0].text)
			}
		}),
		opt("apiserver_burst NUMBER", toNumber(p, &k.Burst, 0, math.MaxInt32)),
		// No limit on requests in flight is needed: there is one list or watch for each
		// of a few kinds, and for a few sets of Services and namespaces in use, which are bounded.
		opt("apiserver_max_inflight NUMBER", toNumber(p, new(int), 0, math.MaxInt32)),
	}
}

// multicluster reads zones, each of which must be one of the directive's.
func (k *Kubernetes) multicluster(p *parser, words []token) {
	own := slices.DeleteFunc(slices.Clone(k.Zones), reverse)
	for _, w := range words {
		for _, zone := range p.zones([]token{w}) {
			if !slices.Contains(own, zone) {
				f := p.errorf(w, "%q is none of the zones that this directive answers; write it behind `kubernetes` too", w.text)
				f.Allowed = allTexts(own)
				break
			}
			if !slices.Contains(k.Multicluster, zone) {
				k.Multicluster = append(k.Multicluster, zone)
			}
		}
	}
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

// check reports options of s that exclude each other.
func (k *Kubernetes) check(p *parser, s statement) {
	for _, c := range conflicts {
		w, ok := s.last(c.name)
		if with, both := s.last(c.with); ok && both {
			p.errorf(w.name(), "%q and %q (line %d) can't both be set: %s", c.name, c.with, with.name().line, c.why)
		}
	}
	// CoreDNS uses the kubeconfig if both are given.
	if k.Kubeconfig != "" {
		k.Endpoint, k.TLS = "", nil
	}
}
