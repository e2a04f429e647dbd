// Package kubernetes is the cluster zone: the names of Services, endpoints and
// pods, answered from an index that follows the API server.
//
// A [View] is one cluster as DNS sees it from one node. Followers, or manifest files,
// feed sinks; a sink turns each object into its records and lets the object go. The
// index has one immutable service value per name, found by the wire bytes of its two
// labels, so that a query takes them straight out of its qname: one map look-up under
// a read lock, and no lock while the answer is written. Events come in any order:
// slices that arrive before their Service wait in an orphan value under the same key,
// and every event publishes a new value made from the whole of what is known. A
// keeper decides whose slices are followed at all.
//
// A [Zone] answers the names of one `kubernetes` directive from a view, and an
// [External] those of a `k8s_external` directive. They split the qname into labels,
// find the node of the DNS tree they name, and write that node's records, or the SOA
// of a negative answer, into the server's reply. They say in an [Outcome] whether the
// server is done.
package kubernetes

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/stat"
)

// Options is what a view needs beyond its directive. The zero value works.
type Options struct {
	// Log takes what an operator must know; nil logs nothing.
	Log *slog.Logger
	// ServerAddrs are the agent's own addresses: the glue of the zones' NS, and
	// what tells which Services select the agent.
	ServerAddrs []netip.Addr
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Node is the name of the Node object that the agent runs on, and Zone its
	// topology zone; "" is unknown.
	Node, Zone string
	// WrapTransport, if not nil, is put around the transport to the API server: to count what
	// goes through it.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// PollInterval is how often manifests are looked at; 0 is 2 s: an editor's save is
	// seen while its author switches windows, and stat of a folder costs nothing.
	PollInterval time.Duration
	// Epochs are moved when answers change, for those who keep copies; nil is nobody.
	Epochs *epoch.Table
}

// View is the index of one cluster. It is safe for concurrent use; [View.Run]
// fills it and is called once.
type View struct {
	log           *slog.Logger
	now           func() time.Time
	addrs         []netip.Addr
	converter     converter
	node          string
	podSelector   labels.Selector // of pods that have names; nil is all
	source        source
	scope         *scope
	allPods       atomic.Bool   // all pods of the cluster are in view
	firstBackoff  time.Duration // the first back-off from the API server
	maxStartDelay time.Duration // what the first requests are spread over
	seed          maphash.Seed  // of the order among endpoints equally near

	mu      sync.RWMutex
	index   index
	imports index // of ServiceImports and their slices

	listed [numResources]atomic.Bool
	serial zoneSerial
	// importSerial is the serial of the multicluster zones.
	importSerial zoneSerial
	lastEvent    atomic.Int64 // unix nanoseconds
	changes      atomic.Uint64
	savePath     string // a file; "" is none
	fingerprint  string // what shapes the records, for those that are saved

	outages  *outageLog
	opened   time.Time
	syncTime atomic.Int64 // from opened to the first sync, in nanoseconds; 0 before

	faultsMu sync.Mutex
	faulty   map[string]string // object → what is wrong with it
	faults   uint64

	programming [2]*stat.Histogram // clusterIP, headless
	requests    requestCounter
}

// source fills a view until ctx ends. It logs what goes wrong and goes on.
type source interface {
	run(ctx context.Context)
}

// Open prepares the view of cfg: where the API server is and how to log in, or a
// first read of its manifests, which then is synced at once. It opens no
// connection. Of cfg, the view takes the source, `labels`, `noendpoints`,
// `endpoint_pod_names`, `topology`, `zonal` and the client's rates; directives that agree on these may
// share a view. Errors name the option at fault.
func Open(cfg *config.Kubernetes, opts Options) (*View, error) {
	v := newView(opts)
	v.converter = newConverter(cfg, opts)
	v.index.nearestOnly = cfg.Topology == config.TopologyHints
	v.bumpSerial()
	selector, err := labels.Parse(cfg.Labels)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: labels %q is not a label selector: %w", cfg.Labels, err)
	}
	v.node, v.scope = opts.Node, newScope(cfg)
	if cfg.NoEndpoints || len(cfg.Manifests) > 0 {
		v.index.level = levelAll
		v.scope.level.Store(uint32(levelAll))
	}
	v.listed[endpointSlices].Store(cfg.NoEndpoints)
	for _, r := range []resource{pods, serviceImports, importSlices} {
		v.listed[r].Store(true)
	}
	v.podSelector = selector
	if len(cfg.Manifests) > 0 {
		v.source, err = openManifestSource(v, cfg, selector, opts.PollInterval)
	} else {
		v.source, err = openAPISource(v, cfg, selector, opts)
	}
	if err != nil {
		return nil, err
	}
	v.fingerprint = fmt.Sprintf("%+v %q", v.converter, []any{
		cfg.Endpoint, cfg.Kubeconfig, cfg.Context, cfg.Labels, cfg.NamespaceLabels, cfg.NoEndpoints, cfg.Multicluster,
	})
	if v.savePath = cfg.Save; v.savePath != "" {
		v.restore(v.savePath)
	}
	v.serial.shared = opts.Epochs.AcquireValue()
	v.serial.Store(v.serial.Load())
	return v, nil
}

// newView makes a view that has no source yet.
func newView(opts Options) *View {
	v := &View{
		log:           opts.Log,
		now:           opts.Now,
		addrs:         reachableAddrs(opts.ServerAddrs),
		firstBackoff:  minBackoff,
		maxStartDelay: maxStartDelay,
		seed:          maphash.MakeSeed(),
		index:         newIndex(opts.Epochs), imports: newIndex(opts.Epochs),
		scope:  newScope(&config.Kubernetes{}),
		faulty: map[string]string{},
		programming: [2]*stat.Histogram{
			stat.NewHistogram(programmingBounds), stat.NewHistogram(programmingBounds),
		},
	}
	v.imports.level = levelAll // their slices are few and all followed
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	v.log = v.log.With("part", "kubernetes")
	if v.now == nil {
		v.now = time.Now
	}
	v.opened = v.now()
	v.outages = newOutageLog(v.log, v.now)
	return v
}

// Run keeps the view up to date until ctx ends: a source that is away is tried
// again for ever, and what was known stays known.
func (v *View) Run(ctx context.Context) {
	defer v.index.epochs.Release(v.serial.shared)
	if v.savePath == "" {
		v.source.run(ctx)
		return
	}
	var saving sync.WaitGroup
	s := viewSaver{view: v, path: v.savePath}
	saving.Go(func() { s.run(ctx) })
	v.source.run(ctx)
	saving.Wait()
}

// Synced reports whether every resource has been listed once: only then is a
// name that is not in view known not to exist.
func (v *View) Synced() bool {
	for i := range v.listed {
		if !v.listed[i].Load() {
			return false
		}
	}
	return true
}

// Stats is a snapshot. It walks the slices: for scrapes, not for packets.
func (v *View) Stats() Stats {
	s := Stats{
		Synced:    v.Synced(),
		SyncTime:  time.Duration(v.syncTime.Load()),
		Serial:    v.serial.Load(),
		LastEvent: time.Unix(0, v.lastEvent.Load()),
		Programming: map[string]stat.Snapshot{
			"cluster_ip":             v.programming[0].Read(),
			"headless_with_selector": v.programming[1].Read(),
		},
		Requests: v.requests.snapshot(),
	}
	v.faultsMu.Lock()
	s.Faulty, s.Faults = len(v.faulty), v.faults
	v.faultsMu.Unlock()
	v.mu.RLock()
	defer v.mu.RUnlock()
	s.Slices, s.Pods, s.Level = len(v.index.slices), len(v.index.pods), v.index.level.String()
	for _, ns := range v.index.namespaces {
		if ns.exists() {
			s.Namespaces++
		}
		s.Sources += ns.sourceCount
	}
	for _, svc := range v.index.services {
		if svc.kind != orphan {
			s.Services++
		}
	}
	for _, sl := range v.index.slices {
		s.Endpoints += sl.len()
	}
	return s
}

// setListed notes that all objects of r have been seen once.
func (v *View) setListed(r resource) {
	if v.listed[r].Swap(true) {
		return
	}
	v.log.Debug("first list complete", "resource", r.plural())
	if v.Synced() {
		v.setSynced()
	}
	v.requestReconcile()
}

// setSynced logs that the view is synced, once.
func (v *View) setSynced() {
	took := max(v.now().Sub(v.opened), 1)
	if !v.syncTime.CompareAndSwap(0, int64(took)) {
		return
	}
	s := v.Stats()
	v.log.Info("view synced", "services", s.Services, "endpointslices", s.Slices, "endpoints", s.Endpoints,
		"namespaces", s.Namespaces, "pods", s.Pods, "level", s.Level, "took", took.Round(time.Millisecond))
}

// bumpSerial moves the SOA serial: the unix time of the last change that DNS can see.
func (v *View) bumpSerial() {
	now := uint32(v.now().Unix())
	v.serial.Store(now)
	v.importSerial.Store(now)
}

// change runs f on the index under the lock, and moves the serial if f says that
// the change can be seen.
func (v *View) change(f func(*index) bool) { v.changeIn(&v.index, &v.serial, f) }

// changeImports is change for the ServiceImports, whose zones have a serial of their
// own.
func (v *View) changeImports(f func(*index) bool) { v.changeIn(&v.imports, &v.importSerial, f) }

func (v *View) changeIn(x *index, serial *zoneSerial, f func(*index) bool) {
	v.mu.Lock()
	visible := f(x)
	now := v.now()
	if visible { // f has moved the epochs, and the serial is of the same change
		serial.Store(uint32(now.Unix()))
	}
	v.mu.Unlock()
	v.lastEvent.Store(now.UnixNano())
	v.changes.Add(1)
}

// noteActivity notes that the source has said something.
func (v *View) noteActivity() { v.lastEvent.Store(v.now().UnixNano()) }

// noteFaults keeps track of objects that DNS can't show in full. A fault is logged once
// for as long as it stays the same.
func (v *View) noteFaults(r resource, ns, name string, f faults) {
	v.faultsMu.Lock()
	if len(f) == 0 && len(v.faulty) == 0 {
		v.faultsMu.Unlock()
		return
	}
	key := r.plural() + "/" + objectKey(ns, name)
	text := f.String()
	isNew := text != "" && v.faulty[key] != text
	if text == "" {
		delete(v.faulty, key)
	} else {
		v.faulty[key] = text
	}
	if isNew {
		v.faults++
	}
	v.faultsMu.Unlock()
	if isNew {
		v.log.Warn("object has values that DNS can't show",
			"resource", r.plural(), "namespace", ns, "name", name, "problem", text)
	}
}

// pruneFaults forgets the faults of objects that a list of s should have shown, and
// did not.
func (v *View) pruneFaults(s *handler) {
	v.faultsMu.Lock()
	defer v.faultsMu.Unlock()
	for key := range v.faulty {
		object, ok := strings.CutPrefix(key, s.resource.plural()+"/")
		if !ok {
			continue
		}
		ns, name, _ := strings.Cut(object, "/")
		if s.source != nil && s.source.ns != nil && s.source.ns.label[1:] != ns {
			continue
		}
		if _, ok := s.seen[s.indexKey(ns, name)]; !ok {
			delete(v.faulty, key)
		}
	}
}

// importsInto reports whether there is a ServiceImport, or a slice of one, in the
// namespace of that label (in wire form).
func (v *View) importsInto(label []byte) bool {
	v.mu.RLock()
	ok := v.imports.namespaces[string(label)].exists()
	v.mu.RUnlock()
	return ok
}

// service is what the index, or that of ServiceImports, has under a service's key, nil
// if nothing.
func (v *View) service(key []byte, imports bool) *service {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.indexFor(imports).services[string(key)]
}

// indexFor is the index of Services, or that of ServiceImports.
func (v *View) indexFor(imports bool) *index {
	if imports {
		return &v.imports
	}
	return &v.index
}

// hasNamespaceObject reports whether the object of that namespace (a label in wire form) is in
// view.
func (v *View) hasNamespaceObject(label []byte) bool {
	v.mu.RLock()
	ns := v.index.namespaces[string(label)]
	ok := ns != nil && ns.hasObject
	v.mu.RUnlock()
	return ok
}

// hasNamespace reports whether there is one of that label (in wire form).
func (v *View) hasNamespace(label []byte) bool {
	v.mu.RLock()
	ok := v.index.namespaces[string(label)].exists()
	v.mu.RUnlock()
	return ok
}
