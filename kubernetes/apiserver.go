package kubernetes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fieldselectors "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/nodens-dns/nodens/internal/config"
)

// apiServer fills a view from an API server: all Services, the Namespaces' metadata,
// this node's pods, and the EndpointSlices that the keeper asks for.
type apiServer struct {
	view       *View
	clients    *clients
	selector   labels.Selector // of services and slices
	namespaces labels.Selector
	slices     bool
	verified   bool // names of pods are theirs only if they exist
	imports    bool // of other clusters
}

// lastBreath is how long Run waits for the watches once it is told to stop. They
// end at once but for a program that a kubeconfig names to get credentials, which
// nothing stops; half would do, double would be felt when an agent stops.
const lastBreath = time.Second

func openAPI(v *View, cfg *config.Kubernetes, selector labels.Selector, opts Options) (*apiServer, error) {
	namespaces, err := labels.Parse(cfg.NamespaceLabels)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: namespace_labels %q is not a label selector: %w", cfg.NamespaceLabels, err)
	}
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	rc.Wrap(v.requests.wrap)
	if opts.WrapTransport != nil {
		rc.Wrap(opts.WrapTransport)
	}
	c := &apiServer{
		view: v, selector: selector, namespaces: namespaces,
		slices: !cfg.NoEndpoints, verified: cfg.Pods == config.PodsVerified, imports: len(cfg.Multicluster) > 0,
	}
	if c.clients, err = openClients(rc); err != nil {
		return nil, err
	}
	v.listed[pods].Store(v.node == "" && !c.everyPod())
	v.listed[serviceImports].Store(!c.imports)
	v.listed[importSlices].Store(!c.imports || !c.slices)
	return c, nil
}

// run follows the API server until ctx ends.
func (c *apiServer) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.follower(services, c.selector, &sink{}).run(ctx) })
	wg.Go(func() { c.follower(namespaces, c.namespaces, &sink{}).run(ctx) })
	wg.Go(func() { c.followPods(ctx) })
	if c.slices {
		wg.Go(func() { c.runSlices(ctx) })
	}
	if c.imports {
		wg.Go(func() { c.follower(serviceImports, c.selector, &sink{}).run(ctx) })
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(lastBreath):
	}
	c.clients.close()
}

// follower makes a follower of r that fills s.
func (c *apiServer) follower(r resource, selector labels.Selector, s *sink) *follower {
	s.view, s.resource = c.view, r
	f := &follower{
		client: c.clients.core, resource: r, labels: selector, target: s, heard: c.view.heard,
		log: c.view.log, retry: c.view.retry, spread: c.view.spread,
	}
	switch r {
	case services:
		f.example = func() runtime.Object { return &corev1.Service{} }
	case endpointSlices:
		f.client, f.spread = c.clients.discovery, 0 // somebody asks for it
		f.example = func() runtime.Object { return &discoveryv1.EndpointSlice{} }
	case serviceImports:
		f.client, f.example = c.clients.multicluster, func() runtime.Object { return &serviceImport{} }
	case importSlices:
		f.client, f.example = c.clients.discovery, func() runtime.Object { return &discoveryv1.EndpointSlice{} }
	case pods:
		f.example = func() runtime.Object { return &corev1.Pod{} }
	default:
		f.metadata = true
		f.example = func() runtime.Object { return &metav1.PartialObjectMetadata{} }
	}
	return f
}

// runSlices follows slices. Where the node is is asked for meanwhile: that is for their
// order alone, and nothing waits for it longer than other first requests do.
func (c *apiServer) runSlices(ctx context.Context) {
	var wg sync.WaitGroup
	where := newLocation()
	wg.Go(func() { c.locate(ctx, where) })
	if c.imports {
		wg.Go(func() {
			where.headStart(ctx, c.view.spread)
			where.during(ctx, c.view.spread, c.followImportSlices)
		})
	}
	c.mayList(ctx)
	where.headStart(ctx, c.view.spread)
	k := keeper{view: c.view, follow: func(ctx context.Context, src *source) {
		where.during(ctx, c.view.spread, func(ctx context.Context) { c.followSlices(ctx, src) })
	}}
	k.run(ctx)
	wg.Wait()
}

// mayList asks for one slice until the API server gives it. An agent whose node asks
// for no slices yet would find out that it must not read them when it is too late.
func (c *apiServer) mayList(ctx context.Context) {
	if c.view.scope.cluster {
		return // it is going to ask for all
	}
	f := c.follower(endpointSlices, c.selector, &sink{})
	f.trouble = trouble{log: f.log, resource: f.resource}
	for delay := f.retry; ctx.Err() == nil; delay = min(2*delay, backoffMost) {
		err := f.request(&metav1.ListOptions{Limit: 1}).Do(ctx).Error()
		if err == nil {
			f.trouble.recovered(true)
			return
		}
		f.trouble.report("list", err)
		sleep(ctx, delay+rand.N(delay))
	}
}

// followSlices follows the slices of src.
func (c *apiServer) followSlices(ctx context.Context, src *source) {
	f := c.follower(endpointSlices, c.selector, &sink{source: src})
	if src.ns != nil {
		f.namespace = src.ns.label[1:]
	}
	if src.labelled {
		// The error is that of a malformed key or operator.
		if has, err := labels.NewRequirement(corev1.IsHeadlessService, selection.Exists, nil); err == nil {
			f.labels = c.selector.Add(*has)
		}
	}
	f.run(ctx)
}

// followImportSlices follows the slices of ServiceImports, which there are few of.
func (c *apiServer) followImportSlices(ctx context.Context) {
	f := c.follower(importSlices, c.selector, &sink{})
	// The error is that of a malformed key or operator.
	if has, err := labels.NewRequirement(labelImport, selection.Exists, nil); err == nil {
		f.labels = c.selector.Add(*has)
	}
	f.run(ctx)
}

// everyPod reports whether all pods of the cluster are followed from the start.
func (c *apiServer) everyPod() bool { return c.verified && c.view.scope.cluster }

// followPods follows this node's pods, and when somebody waits for the name of
// another's, all pods. Pods that have ended have no address and no name.
func (c *apiServer) followPods(ctx context.Context) {
	running := fieldselectors.AndSelectors(
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		fieldselectors.OneTermNotEqualSelector("status.phase", string(corev1.PodUnknown)),
	)
	if !c.everyPod() {
		here, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-c.view.scope.others:
				stop()
			case <-here.Done():
			}
		}()
		if c.view.node != "" {
			f := c.follower(pods, nil, &sink{})
			f.fields = fieldselectors.AndSelectors(fieldselectors.OneTermEqualSelector("spec.nodeName", c.view.node), running).String()
			f.run(here)
		}
		<-here.Done()
	}
	f := c.follower(pods, nil, &sink{everyPod: true})
	f.fields = running.String()
	f.run(ctx)
}
