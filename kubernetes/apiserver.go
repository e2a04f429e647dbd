package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fieldselectors "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// apiSource fills a view from an API server: all Services, the metadata of all Namespaces,
// this node's pods, and the EndpointSlices that the sliceManager asks for.
type apiSource struct {
	view         *View
	clients      *clients
	selector     labels.Selector // of services and slices
	namespaces   labels.Selector
	withSlices   bool
	podsVerified bool // names of pods need an existing pod (`pods verified`)
	multicluster bool // ServiceImports are watched, too
}

// stopTimeout is how long run waits for the reflectors to stop. They stop at once, except
// for a credential plugin of a kubeconfig, which nothing interrupts.
const stopTimeout = time.Second

// maxStartDelay bounds the random delay of a process's first requests, so that a cluster
// that updates its agents or gets its power back doesn't list everything at once.
const maxStartDelay = 500 * time.Millisecond

func openAPISource(v *View, cfg *config.Kubernetes, selector labels.Selector, opts Options) (*apiSource, error) {
	namespaces, err := parseSelector("namespace_labels", cfg.NamespaceLabels)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	rc.Wrap(v.requests.wrap)
	if opts.WrapTransport != nil {
		rc.Wrap(opts.WrapTransport)
	}
	c := &apiSource{
		view: v, selector: selector, namespaces: namespaces,
		withSlices: !cfg.NoEndpoints, podsVerified: cfg.Pods == config.PodsVerified, multicluster: len(cfg.Multicluster) > 0,
	}
	if c.clients, err = newClients(rc); err != nil {
		return nil, err
	}
	v.listed[pods].Store(v.node == "" && !c.reflectsAllPods())
	v.listed[serviceImports].Store(!c.multicluster)
	v.listed[importSlices].Store(!c.multicluster || !c.withSlices)
	return c, nil
}

// run watches the API server until ctx ends.
func (c *apiSource) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.findPodCIDRs(ctx) })
	if c.view.policies != nil { // which are listed in any case: an older agent can't read a position of theirs
		wg.Go(func() { c.newReflector(dnsPolicies, nil, &handler{}).Run(ctx) })
	}
	wg.Go(func() {
		resumed := c.verifySaved(ctx)
		wg.Go(func() { c.reflectPods(ctx) })
		wg.Go(func() { c.follow(ctx, services, c.selector) })
		wg.Go(func() { c.follow(ctx, namespaces, c.namespaces) })
		if c.withSlices {
			wg.Go(func() { c.runSliceReflectors(ctx, resumed) })
		}
		if c.multicluster {
			wg.Go(func() { c.follow(ctx, serviceImports, c.selector) })
		}
	})
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(stopTimeout):
	}
	c.clients.close()
}

// follow watches a resource until ctx ends.
func (c *apiSource) follow(ctx context.Context, r resource, selector labels.Selector) {
	h := &handler{}
	f := c.newReflector(r, selector, h)
	h.follow(f)
	f.Run(ctx)
}

// verifySaved drops the positions of the saved view that the API server's data can't be watched from. It blocks until
// the API server has answered, or a minute if it does not. It reports whether the slices can be watched from theirs.
func (c *apiSource) verifySaved(ctx context.Context) (slicesResumed bool) {
	v := c.view
	verdicts := c.verdicts(ctx)
	other := slices.Contains(verdicts[:], reflector.OtherHistory)
	if other {
		v.log.Info("API server has not the data of the saved view, listing all resources")
	}
	for r, verdict := range verdicts {
		if other || verdict != reflector.SameHistory {
			v.dropSaved(resource(r))
		}
	}
	if n := len(v.saved); n > 0 {
		v.log.Info("watching on from the saved view", "watches", n)
	}
	return !other && verdicts[endpointSlices] == reflector.SameHistory
}

// verdicts asks about the positions of all resources at the same time.
func (c *apiSource) verdicts(ctx context.Context) (list [numResources]reflector.Verdict) {
	var saved [numResources][]reflector.Position
	for key, p := range c.view.saved {
		saved[key.Resource] = append(saved[key.Resource], p)
	}
	var wg sync.WaitGroup
	for r, positions := range saved {
		if positions != nil {
			wg.Go(func() { list[r] = c.newReflector(resource(r), nil, &handler{}).Verify(ctx, positions) })
		}
	}
	wg.Wait()
	return list
}

// newReflector returns a reflector of r that feeds h. It is not running.
func (c *apiSource) newReflector(r resource, selector labels.Selector, h *handler) *reflector.Reflector {
	h.view, h.resource = c.view, r
	k := &kinds[r]
	f := &reflector.Reflector{
		Client: c.clients.groups[k.version.Group], Resource: schema.GroupResource{Group: k.version.Group, Resource: k.plural}, NewObject: k.object,
		Labels: selector, Handler: h, OnActivity: c.view.noteActivity, MetadataOnly: k.metadataOnly, Unstreamed: k.unstreamed,
		Log: c.view.log, Outages: c.view.outages, History: c.view.history, FirstBackoff: c.view.firstBackoff, StartDelay: c.view.maxStartDelay,
	}
	if k.metadataOnly {
		f.NewObject = func() runtime.Object { return &metav1.PartialObjectMetadata{} }
	}
	if r == endpointSlices {
		f.StartDelay = 0 // a query waits for it
	}
	return f
}

// runSliceReflectors watches EndpointSlices until ctx ends. It asks for the node's zone at
// the same time; the zone only affects the order of answers, so the first lists wait for it
// no longer than for the start delay. allowed says that the API server has just shown slices to this agent.
func (c *apiSource) runSliceReflectors(ctx context.Context, allowed bool) {
	var wg sync.WaitGroup
	where := newNodeLocation()
	wg.Go(func() { c.findNodeZone(ctx, where) })
	if c.multicluster {
		wg.Go(func() {
			where.waitFirstReply(ctx, maxStartDelay)
			where.runWithZone(ctx, c.view.maxStartDelay, func(ctx context.Context) {
				c.follow(ctx, importSlices, c.requiring(labelImport, selection.Exists))
			})
		})
	}
	if !c.view.scope.cluster && !allowed {
		// Otherwise an agent that needs no slices yet would notice missing RBAC rights only when a pod asks.
		c.newReflector(endpointSlices, c.selector, &handler{}).CheckAccess(ctx)
	}
	where.waitFirstReply(ctx, maxStartDelay)
	k := sliceManager{view: c.view, reflect: func(ctx context.Context, src *sliceSource) {
		where.runWithZone(ctx, c.view.maxStartDelay, func(ctx context.Context) { c.reflectSlices(ctx, src) })
	}}
	k.run(ctx)
	wg.Wait()
}

// reflectSlices watches the EndpointSlices of src until ctx ends.
func (c *apiSource) reflectSlices(ctx context.Context, src *sliceSource) {
	h := &handler{source: src}
	f := c.newReflector(endpointSlices, c.selector, h)
	if src.ns != nil {
		f.Namespace, f.Unstreamed = src.ns.label[1:], true
	}
	if src.names != nil {
		f.Labels = c.requiring(discoveryv1.LabelServiceName, selection.In, src.names.names()...)
	}
	switch src.only {
	case headlessSlice:
		f.Labels = c.requiring(corev1.IsHeadlessService, selection.Exists)
	case foreignSlice:
		f.Labels = c.requiring(corev1.IsHeadlessService, selection.DoesNotExist)
		if not, err := labels.NewRequirement(discoveryv1.LabelManagedBy, selection.NotIn, []string{sliceController}); err == nil {
			f.Labels = f.Labels.Add(*not)
		}
	}
	h.follow(f)
	f.Run(ctx)
}

// requiring returns the selector of slices with a requirement about a label. The key and the operator must be valid.
func (c *apiSource) requiring(key string, op selection.Operator, values ...string) labels.Selector {
	r, err := labels.NewRequirement(key, op, values)
	if err != nil {
		return c.selector
	}
	return c.selector.Add(*r)
}

// reflectsAllPods reports whether all pods of the cluster are watched from the start.
func (c *apiSource) reflectsAllPods() bool { return c.podsVerified && c.view.scope.cluster }

// reflectPods watches this node's pods and, from the first query that needs another node's
// pod, all pods. Pods that have ended are left out: they have no address.
func (c *apiSource) reflectPods(ctx context.Context) {
	running := fieldselectors.AndSelectors(
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodUnknown)),
	)
	if c.reflectsAllPods() || c.view.node == "" {
		c.view.dropSaved(pods)
	}
	if !c.reflectsAllPods() {
		here, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-c.view.scope.allPodsNeeded:
				stop()
			case <-here.Done():
			}
		}()
		if c.view.node != "" {
			h := &handler{}
			f := c.newReflector(pods, nil, h)
			f.Unstreamed = true
			f.Fields = fieldselectors.AndSelectors(fieldselectors.OneTermEqualSelector("spec.nodeName", c.view.node), running).String()
			h.follow(f)
			f.Run(here)
			if ctx.Err() == nil { // the pods are going to be newer than f
				c.view.unfollow(pods)
			}
		}
		<-here.Done()
	}
	f := c.newReflector(pods, nil, &handler{everyPod: true})
	f.Fields = running.String()
	f.Run(ctx)
}
