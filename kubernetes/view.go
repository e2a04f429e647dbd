package kubernetes

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/dnspolicy"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/internal/stat"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// Options are the settings of a view besides its directive. The zero value is valid.
type Options struct {
	// Log receives outages and invalid objects; nil logs nothing.
	Log *slog.Logger
	// ServerAddrs are the agent's own addresses: the glue of the zones' NS records, and what
	// identifies the Services that select the agent.
	ServerAddrs []netip.Addr
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Node is the name of the agent's Node, and Zone its topology zone; "" is unknown.
	Node, Zone string
	// NoExternal says that no directive needs the addresses at which Services are reachable from
	// outside of the cluster.
	NoExternal bool
	// WrapTransport wraps the transport to the API server; nil is none.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// PollInterval is how often manifests are checked for changes; 0 is 2 s.
	PollInterval time.Duration
	// Epochs is bumped when answers change, for holders of copies; nil is none.
	Epochs *epoch.Table
	// ObservePod is called whenever an address has another pod of Node, or none any more: the zero
	// NodePod. Calls come one at a time, and must not block. nil is none.
	ObservePod func(netip.Addr, NodePod)
	// PodLabels are the keys of the labels that ObservePod gets; others are not kept.
	PodLabels []string
	// ObservePodCIDRs is called with the ranges from which Node gives its pods addresses, once when
	// the API server has returned them and with nil at the end of [View.Run]. They are asked for only
	// if one of ServerAddrs is an IPv6 address. It must not block. nil is none.
	ObservePodCIDRs func([]netip.Prefix)
	// Policies gets the policies of the pods of Node, of DNSPolicies; nil: none are watched. Only one view may fill a table.
	// PolicyCounters, which may be nil, has their counts.
	// Egress, which may be nil, is told of their sets in the packet filter.
	Policies       *dnspolicy.Table
	PolicyCounters *dnspolicy.Counters
	Egress         *dnspolicy.Egress
	// ObserveNamespace is called whenever the annotation [ClientMetricsAnnotation] of a Namespace has
	// another value; "" is none. Calls come one at a time, and must not block. nil is none.
	ObserveNamespace func(namespace, value string)
}

// View is the index of one cluster, as one node's DNS needs it. It is safe for concurrent
// use. [View.Run] fills it and is called once.
type View struct {
	log           *slog.Logger
	now           func() time.Time
	addrs         []netip.Addr
	converter     converter
	external      bool // external addresses of Services are read
	node          string
	ownNamespace  string               // the agent's, as a label in wire form; "" is unknown
	podSelector   labels.Selector      // selects the pods that may have names
	nodePods      *nodePods            // nil: nobody observes them
	policies      *policySet           // nil: they are not watched
	podCIDRs      func([]netip.Prefix) // see [Options.ObservePodCIDRs]; nil: they are not needed
	annotations   *annotations         // nil: nobody observes them
	source        source
	scope         *scope
	allPods       atomic.Bool   // all pods of the cluster are in view
	firstBackoff  time.Duration // between requests to the API server; 0 is the reflector's default
	maxStartDelay time.Duration // of the first requests
	seed          maphash.Seed  // of the order of equally near endpoints

	mu      sync.RWMutex
	index   index
	imports index // ServiceImports and their slices
	// saved are the positions of the saved view that no reflector has gone on from yet, for records for savedZone, and
	// savedAnnotations the annotations of its Namespaces.
	saved            map[sourceKey]reflector.Position
	savedZone        string
	savedSources     map[string]map[string]uint64 // the floor of the sources of single Services in the saved view
	savedAnnotations map[string]string
	// savedPods is what was observed of the node's pods, by their keys.
	savedPods map[string]*savedNodePod
	// followers are the reflectors but those of slices, which their sources have.
	followers [numResources]follower
	// savedWithoutImports says that the saved view had no lists of ServiceImports. It is set before Run.
	savedWithoutImports bool
	ended               bool // Run has returned, or is about to

	listed [numResources]atomic.Bool
	serial zoneSerial
	// importSerial is the serial of the multicluster zones.
	importSerial zoneSerial
	lastEvent    atomic.Int64  // unix nanoseconds
	changes      atomic.Uint64 // signs of life of the source
	saver        viewSaver
	fingerprint  string // of the options that shape saved records

	outages  *reflector.OutageLog
	history  *reflector.History
	gaps     gapLog
	opened   time.Time
	syncTime atomic.Int64 // from opened to the first sync, in nanoseconds; 0 before

	faults faultLog
	slow   slowLog

	programming [2]*stat.Histogram // clusterIP, headless
	requests    requestCounter
}

// source fills a view until ctx ends. It logs errors and retries.
type source interface {
	run(ctx context.Context)
}

// CheckSelectors reports what is wrong with the label selectors of cfg, with which [Open] fails. The error names the option.
func CheckSelectors(cfg *config.Kubernetes) error {
	if _, err := parseSelector("labels", cfg.Labels); err != nil {
		return err
	}
	_, err := parseSelector("namespace_labels", cfg.NamespaceLabels)
	return err
}

// parseSelector reads the value of an option.
func parseSelector(option, text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s %q is not a label selector such as `app in (web, api), tier!=test`: %w", option, text, err)
	}
	return selector, nil
}

// Open prepares the view of cfg: it reads the API server's address and credentials, or its
// manifests, which make it synced at once. It opens no connection. The view uses cfg's
// source, `labels`, `noendpoints`, `endpoint_pod_names`, `topology`, `zonal` and the
// client's rates; directives that agree on these may share a view. Errors name the option
// at fault.
func Open(cfg *config.Kubernetes, opts Options) (*View, error) {
	v := newView(opts)
	v.converter = newConverter(cfg, opts)
	v.index.nearestOnly = cfg.Topology == config.TopologyHints
	v.bumpSerial()
	selector, err := parseSelector("labels", cfg.Labels)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	v.node, v.scope, v.podCIDRs = opts.Node, newScope(cfg), podCIDRsObserver(&opts)
	if cfg.NoEndpoints || len(cfg.Manifests) > 0 {
		v.index.level = levelAll
		v.scope.level.Store(uint32(levelAll))
	}
	v.listed[endpointSlices].Store(cfg.NoEndpoints)
	for _, r := range []resource{pods, serviceImports, importSlices, dnsPolicies} { // policies know themselves whether they are listed
		v.listed[r].Store(true)
	}
	v.podSelector = selector
	v.ownNamespace = ownNamespace(cfg)
	if len(cfg.Manifests) > 0 {
		v.source, err = openManifestSource(v, cfg, selector, opts.PollInterval)
	} else {
		v.source, err = openAPISource(v, cfg, selector, opts)
	}
	if err != nil {
		return nil, err
	}
	v.fingerprint = fmt.Sprintf("%s %q", v.converter.fingerprint(), []any{
		cfg.Endpoint, cfg.Kubeconfig, cfg.Context, cfg.Labels, cfg.NamespaceLabels, cfg.NoEndpoints, cfg.Multicluster,
	})
	if !v.external {
		v.fingerprint += withoutExternal
	}
	if cfg.Save != "" {
		v.saver.view, v.saver.path = v, cfg.Save
		savedView{v}.restore(cfg.Save)
	}
	v.serial.shared = opts.Epochs.AcquireValue()
	v.serial.Store(v.serial.Load())
	v.index.clients.acquire(opts.Epochs)
	return v, nil
}

// newView returns a view without a source.
func newView(opts Options) *View {
	v := &View{
		log:           opts.Log,
		now:           opts.Now,
		addrs:         reachableAddrs(opts.ServerAddrs),
		external:      !opts.NoExternal,
		maxStartDelay: maxStartDelay,
		seed:          maphash.MakeSeed(),
		faults:        faultLog{seed: maphash.MakeSeed()},
		index:         newIndex(opts.Epochs), imports: newIndex(opts.Epochs),
		scope: newScope(&config.Kubernetes{}), nodePods: newNodePods(opts.ObservePod, opts.PodLabels), annotations: newAnnotations(opts.ObserveNamespace),
		saved: make(map[sourceKey]reflector.Position), savedAnnotations: make(map[string]string), savedPods: make(map[string]*savedNodePod),
		savedSources: make(map[string]map[string]uint64),
		programming: [2]*stat.Histogram{
			stat.NewHistogram(programmingBounds), stat.NewHistogram(programmingBounds),
		},
	}
	v.imports.level = levelAll // all of their few slices are watched
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	v.log = v.log.With("part", "kubernetes")
	if v.now == nil {
		v.now = time.Now
	}
	v.opened = v.now()
	v.policies = newPolicySet(v, opts.Policies, opts.PolicyCounters, opts.Egress)
	v.outages = reflector.NewOutageLog(v.log)
	v.history = reflector.NewHistory(v.noteSetBack)
	return v
}

// Run keeps the view up to date until ctx ends. It retries a source that fails forever, and
// keeps what it knows meanwhile. At the end no address has a pod any more, and no Namespace an
// annotation.
func (v *View) Run(ctx context.Context) {
	defer v.nodePods.close()
	defer v.annotations.close()
	defer v.index.epochs.Release(v.serial.shared)
	defer v.index.epochs.Release(v.index.clients.shared)
	defer func() { // from now on, timers of waits do nothing: what they change is about to be released
		v.mu.Lock()
		defer v.mu.Unlock()
		v.ended = true
	}()
	defer v.policies.close()
	if v.saver.path == "" {
		v.source.run(ctx)
		return
	}
	var saving sync.WaitGroup
	saving.Go(func() { v.saver.run(ctx) })
	v.source.run(ctx)
	saving.Wait()
	v.saver.save() // when no list is between its last object and its position any more
}

// Synced reports whether every resource but those of `multicluster` has been listed once: only
// then is it certain that a name of the cluster that is not in view doesn't exist. Pods that the API server
// refuses to list are not waited for: only names of pods depend on them.
func (v *View) Synced() bool { return v.haveListed(services, pods) && v.knowsPods() }

// knowsPods reports whether the pods have been listed once, or the API server refuses that.
func (v *View) knowsPods() bool { return v.listed[pods].Load() || v.outages.Rejects(pods.plural()) }

// importsListed reports whether the resources of `multicluster` have been listed once.
func (v *View) importsListed() bool { return v.haveListed(serviceImports, dnsPolicies) }

// Loaded reports whether there is nothing left to wait for: every resource has been listed once,
// or all but those of `multicluster` and DNSPolicies, which the API server refuses to list. It has no
// ServiceImports and no DNSPolicies without their CustomResourceDefinition.
func (v *View) Loaded() bool {
	return v.Synced() && v.knowsPolicies() && (v.importsListed() || v.savedWithoutImports || v.outages.Rejects(serviceImports.plural()))
}

// haveListed reports whether the resources from first up to end have been listed once.
func (v *View) haveListed(first, end resource) bool {
	for i := range v.listed[first:end] {
		if !v.listed[first:end][i].Load() {
			return false
		}
	}
	return true
}

// syncedFor reports whether a name of o that is not in view doesn't exist.
func (v *View) syncedFor(o *origin) bool { return v.Synced() && (!o.imports || v.importsListed()) }

// setListed records that all objects of r have been listed once.
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
		"namespaces", s.Namespaces, "pods", s.Pods, "scope", s.Level, "took", took.Round(time.Millisecond))
}

// bumpSerial sets the SOA serials to the current Unix time: the time of the last visible
// change.
func (v *View) bumpSerial() {
	now := uint32(v.now().Unix())
	v.serial.Store(now)
	v.importSerial.Store(now)
}

// change runs f on the index with the lock held, and updates the serial if f reports a
// visible change.
func (v *View) change(f func(*index) bool) { v.changeIn(&v.index, &v.serial, f) }

// changeIn is change for an index and the serial of its zones. It returns the time.
func (v *View) changeIn(x *index, serial *zoneSerial, f func(*index) bool) (now time.Time) {
	v.mu.Lock()
	visible := f(x)
	now = v.now()
	if visible { // f has bumped the epochs
		serial.change(uint32(now.Unix()))
	}
	v.mu.Unlock()
	return now
}

// moveClients moves the counter of what depends on the client.
func (v *View) moveClients() { v.change(func(x *index) bool { x.clients.bump(); return false }) }

// clientMark is [Zone.ClientMark].
func (v *View) clientMark() epoch.Mark { return v.index.clients.mark() }

// noteActivity records a sign of life of the source.
func (v *View) noteActivity() { v.noteActivityAt(v.now()) }

// noteActivityAt is noteActivity at that time.
func (v *View) noteActivityAt(now time.Time) {
	v.changes.Add(1)
	last := time.Unix(0, v.lastEvent.Swap(now.UnixNano()))
	if v.watchesAPI() && now.Sub(last) > SilentAfter && !last.Before(v.opened) {
		v.gaps.silent(now, now.Sub(last))
	}
}

// noteSetBack makes the versions of all slices and sources meaningless: those of the server
// were set back, and all resources are listed again.
func (v *View) noteSetBack(b reflector.SetBack) {
	v.mu.Lock()
	v.index.forgetVersions()
	v.mu.Unlock()
	if v.gaps.setBack(v.now()) {
		v.log.Warn("resourceVersions of the API server were set back, listing all resources again",
			"resource", b.Resource, "seen", b.Seen, "listed", b.Listed)
	}
}

// watchesAPI reports whether the view is filled from an API server.
func (v *View) watchesAPI() bool {
	_, ok := v.source.(*apiSource)
	return ok
}

// setZone sets the node's zone for the slices that are converted from now on.
func (v *View) setZone(zone string) {
	v.mu.Lock()
	v.converter.zone = zone
	v.mu.Unlock()
}

// reportZone logs the result of a request for the zone: the first failure, and the end of
// failures. It reports whether no further request is needed.
func (v *View) reportZone(zone string, err error, failed int) (settled bool) {
	switch {
	case err == nil:
		if failed > 0 && zone != "" {
			v.log.Info("topology zone of the node found, endpoints in it come first", "zone", zone)
		}
		return true
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		v.log.Info("topology zone of the node unknown, endpoints in it don't come first",
			"err", err, "fix", "set --node-zone or NODE_ZONE, or allow the agent to get nodes")
		return true
	case failed == 0:
		v.log.Warn("topology zone of the node not found yet, endpoints in it don't come first",
			"err", reflector.WithoutURL(err), "fix", "set --node-zone or NODE_ZONE")
	}
	return false
}

// setLevel sets the level that is in view.
func (v *View) setLevel(l level) {
	if level(v.scope.level.Load()) == l {
		return
	}
	v.mu.Lock()
	v.index.epochs.BumpAny() // reverse names depend on the level
	v.index.level = l
	v.index.recompute()
	v.mu.Unlock()
	v.scope.level.Store(uint32(l))
	v.scope.broadcast()
}

// requestReconcile makes the sliceManager reconcile. It does not block.
func (v *View) requestReconcile() {
	select {
	case v.scope.reconcileRequests <- struct{}{}:
	default:
	}
}

// requestWholeCluster makes the view watch all that m, which is incomplete, depends on,
// unless that is a single namespace or Service.
func (v *View) requestWholeCluster(m match) {
	switch {
	case m.node != incomplete || m.svc != nil:
	case m.pod:
		v.scope.allPodsOnce.Do(func() { close(v.scope.allPodsNeeded) })
	case m.addr.size > 0 && v.requireReverse(addrKeyOf(string(m.addr.bytes[:m.addr.size]))):
	default:
		v.scope.reverseUsed.Store(v.scope.tick.Load())
		v.requestReconcile()
	}
}

// expireWaiters closes all channels that [View.Endpoints] has returned, so that those who
// still want the endpoints call again.
func (v *View) expireWaiters() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.index.endpointWaiters {
		v.index.broadcast(key)
	}
}

// observeProgramming measures the delay from the change that triggered an update of the
// slice, by the slice controller's clock, to now.
func (v *View) observeProgramming(key, trigger string) {
	if trigger == "" || len(trigger) > len(time.RFC3339Nano) {
		return
	}
	at, err := time.Parse(time.RFC3339Nano, trigger)
	if err != nil {
		return
	}
	s := v.service([]byte(key), false)
	if !s.hasEndpoints() {
		return
	}
	// The clocks of two machines may differ.
	v.programming[s.kind-clusterIP].Observe(max(0, v.now().Sub(at)).Seconds())
}

// noteFaults records the faults of an object, and logs them if they have changed.
func (v *View) noteFaults(r resource, ns, name string, f *faults) {
	if f.n == 0 && v.faults.isEmpty() {
		return
	}
	key := faultKey{r, ns, name}
	text := f.String()
	log, unlogged := v.faults.note(v.now(), key, text)
	if !log {
		return
	}
	args := []any{"resource", r.plural(), "namespace", shorten(ns, maxObjectName), "name", shorten(name, maxObjectName), "problem", text}
	if unlogged > 0 {
		args = append(args, "unlogged", unlogged)
	}
	v.log.Warn("object has values that DNS can't show", args...)
}

// pruneFaults forgets the faults of objects that are not in the list of s.
func (v *View) pruneFaults(s *handler) {
	v.faults.clearMissing(v.now(), s.resource, func(ns, name string) bool {
		if s.source != nil && (s.source.names != nil || s.source.ns != nil && s.source.ns.label[1:] != ns) {
			return false
		}
		_, ok := s.seen[s.indexKey(ns, name)]
		return !ok
	})
}

// noteTime records that an event of an object began at start and ended with the last change.
// One line a minute is logged.
func (v *View) noteTime(start time.Time, r resource, ns, name string) {
	now := time.Unix(0, v.lastEvent.Load()) // saves a look at the clock
	took := now.Sub(start)
	if took < SlowEvent {
		return
	}
	l := &v.slow
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	if now.Sub(l.logged) < faultInterval {
		l.unlogged++
		return
	}
	l.logged = now
	v.log.Warn("change of an object took long, later changes are late", "resource", r.plural(), "namespace", shorten(ns, maxObjectName),
		"name", shorten(name, maxObjectName), "took", took.Round(time.Millisecond), "unlogged", l.unlogged)
	l.unlogged = 0
}
