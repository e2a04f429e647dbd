package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Back-off between tries at an API server that doesn't answer, each lengthened at
// random up to twofold so that the nodes of a cluster don't come back in step. It
// starts under a second, because most gaps are a restart behind a load balancer,
// and ends at half a minute: 5,000 nodes are then under 200 requests a second per
// resource.
const (
	backoffFirst = 800 * time.Millisecond
	backoffMost  = 30 * time.Second
	maxDoublings = 32 // of the Reflector's own back-off, which its cap ends long before
)

// repeatLog is how often the same trouble is logged again while it lasts.
const repeatLog = time.Minute

// lastBreath is how long Run waits for the watches once it is told to stop. They
// end at once but for a Reflector that sleeps off a server's error, which nothing
// wakes; it finds its context done when it wakes by itself.
const lastBreath = time.Second

// follower keeps one resource of a view up to date. It is the lister and watcher
// that a client-go Reflector asks, and repeats, in place and until ctx ends, every
// request that fails for a reason that may pass. So a server that comes back is
// asked for the changes since the last one seen, and not for everything again; the
// Reflector only sees the errors that it must act on.
type follower struct {
	view      *View
	client    rest.Interface
	resource  resource
	namespace string
	labels    labels.Selector
	fields    string
	metadata  bool
	target    *sink

	trouble  string // the last error, "" if all is well
	loggedAt time.Time
}

func (f *follower) run(ctx context.Context) {
	first := f.view.retry
	r := cache.NewReflectorWithOptions(f, nil, &reflected{f.target},
		cache.ReflectorOptions{
			Name:    f.resource.plural(),
			Backoff: &wait.Backoff{Duration: first, Cap: backoffMost, Steps: maxDoublings, Factor: 2, Jitter: 1},
		})
	for delay := first; ctx.Err() == nil; delay = min(2*delay, backoffMost) {
		start := time.Now()
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			f.report("watch", err)
		}
		if time.Since(start) > backoffMost {
			delay = first // it worked for a while
		}
		sleep(ctx, delay)
	}
}

// sleep waits for d to 2d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// List implements the Reflector's lister.
func (f *follower) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch implements the Reflector's watcher.
func (f *follower) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// ListWithContext lists once, for servers that can't stream a list.
func (f *follower) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return attempt(ctx, f, "list", func() (runtime.Object, error) {
		return f.request(&o).Do(ctx).Get()
	})
}

// WatchWithContext opens a watch.
func (f *follower) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return attempt(ctx, f, "watch", func() (watch.Interface, error) {
		return f.request(&o).Watch(ctx)
	})
}

func (f *follower) request(o *metav1.ListOptions) *rest.Request {
	if f.labels != nil && !f.labels.Empty() {
		o.LabelSelector = f.labels.String()
	}
	o.FieldSelector = f.fields
	req := f.client.Get().NamespaceIfScoped(f.namespace, f.namespace != "").Resource(f.resource.plural()).VersionedParams(o, metav1.ParameterCodec)
	if o.TimeoutSeconds != nil {
		req = req.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return req
}

// attempt makes one request until it succeeds, fails for good, or ctx ends.
func attempt[T any](ctx context.Context, f *follower, verb string, do func() (T, error)) (T, error) {
	for delay := f.view.retry; ; delay = min(2*delay, backoffMost) {
		v, err := do()
		if err == nil {
			f.recovered()
			return v, nil
		}
		if ctx.Err() != nil || !passing(err) {
			return v, err
		}
		f.report(verb, err)
		sleep(ctx, delay)
		if ctx.Err() != nil {
			return v, fmt.Errorf("%s %s: %w", verb, f.resource.plural(), ctx.Err())
		}
	}
}

// passing reports whether the same request may succeed later. Those that can't are
// the Reflector's: a version that is too old or too new makes it list again, and
// a refused parameter makes it list in the old way.
func passing(err error) bool {
	switch {
	case apierrors.IsGone(err), apierrors.IsResourceExpired(err), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return false
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err):
		return false
	}
	return true
}

// report logs what keeps a resource from being followed: a new trouble at once, the
// same one every minute.
func (f *follower) report(verb string, err error) {
	now := time.Now()
	text := err.Error()
	if text == f.trouble && now.Sub(f.loggedAt) < repeatLog {
		return
	}
	f.trouble, f.loggedAt = text, now
	args := []any{"verb", verb, "resource", f.resource.plural(), "error", err}
	var status apierrors.APIStatus
	if errors.As(err, &status) && apierrors.IsForbidden(err) {
		args = append(args, "fix", fmt.Sprintf(
			`add to the ClusterRole of the agent's ServiceAccount: {apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`,
			f.resource.group(), f.resource.plural()))
	}
	f.view.log.Error("cluster zone: the API server can't be followed; what is known stays", args...)
}

func (f *follower) recovered() {
	if f.trouble != "" {
		f.trouble = ""
		f.view.log.Info("cluster zone: the API server is followed again", "resource", f.resource.plural())
	}
}

type reflected struct{ *sink }

func (r *reflected) Add(obj any) error    { r.put(obj.(runtime.Object), true); return nil }
func (r *reflected) Update(obj any) error { r.put(obj.(runtime.Object), true); return nil }
func (r *reflected) Delete(obj any) error { r.drop(obj.(runtime.Object)); return nil }
func (r *reflected) Resync() error        { return nil }
func (r *reflected) Replace(list []any, version string) error {
	r.begin()
	for _, o := range list {
		r.put(o.(runtime.Object), false)
	}
	n, _ := strconv.ParseUint(version, 10, 64)
	r.complete(n)
	return nil
}
