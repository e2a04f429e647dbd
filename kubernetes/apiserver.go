package kubernetes

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/internal/config"
)

// apiServer fills a view from an API server: all Services, the Namespaces' metadata,
// this node's pods, and the EndpointSlices that the keeper asks for.
type apiServer struct {
	view            *View
	core, discovery rest.Interface
	selector        labels.Selector // of services, slices and pods
	namespaces      labels.Selector
	slices          bool
	verified        bool // names of pods are theirs only if they exist
}

func openAPI(v *View, cfg *config.Kubernetes, selector labels.Selector) (*apiServer, error) {
	namespaces, err := labels.Parse(cfg.NamespaceLabels)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: namespace_labels %q is not a label selector: %w", cfg.NamespaceLabels, err)
	}
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	rc.Wrap(v.requests.wrap)
	c := &apiServer{
		view: v, selector: selector, namespaces: namespaces,
		slices: !cfg.NoEndpoints, verified: cfg.Pods == config.PodsVerified,
	}
	if c.core, c.discovery, err = clients(rc); err != nil {
		return nil, err
	}
	v.listed[pods].Store(v.node == "" && !c.everyPod())
	return c, nil
}

// run follows the API server until ctx ends.
func (c *apiServer) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.follower(services, c.selector).run(ctx) })
	wg.Go(func() {
		f := c.follower(namespaces, c.namespaces)
		f.metadata = true
		f.run(ctx)
	})
	wg.Go(func() { c.followPods(ctx) })
	if c.slices {
		k := keeper{view: c.view, follow: c.followSlices}
		wg.Go(func() { k.run(ctx) })
	}
	wg.Wait()
}

func (c *apiServer) follower(r resource, selector labels.Selector) *follower {
	client := c.core
	if r == endpointSlices {
		client = c.discovery
	}
	return &follower{
		view: c.view, client: client, resource: r, labels: selector,
		target: &sink{view: c.view, resource: r},
	}
}

// followSlices follows the slices of src.
func (c *apiServer) followSlices(ctx context.Context, src *source) {
	f := c.follower(endpointSlices, c.selector)
	f.target.source = src
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

// everyPod reports whether all pods of the cluster are followed from the start.
func (c *apiServer) everyPod() bool { return c.verified && c.view.scope.cluster }

// followPods follows this node's pods, and when somebody waits for the name of
// another's, all pods. Pods that have ended have no address and no name.
func (c *apiServer) followPods(ctx context.Context) {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodUnknown)),
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
			f := c.follower(pods, c.selector)
			f.fields = fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", c.view.node), running).String()
			f.run(here)
		}
		<-here.Done()
	}
	f := c.follower(pods, c.selector)
	f.fields = running.String()
	f.target.everyPod = true
	f.run(ctx)
}
