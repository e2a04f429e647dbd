package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Back-off between tries at an API server that doesn't answer, each lengthened at
// random up to twofold so that the nodes of a cluster don't come back in step. It
// starts under a second, because most gaps are a restart behind a load balancer,
// and ends at half a minute: 5,000 nodes are then under 200 requests a second per
// resource. A watch that has lasted for the most starts it anew.
const (
	minBackoff = 800 * time.Millisecond
	maxBackoff = 30 * time.Second
)

const (
	// maxStartDelay is what the first requests of a process are spread over, at
	// random, so that a cluster that updates its agents, or gets its power back,
	// doesn't ask for everything at one instant. Half would double the peak, double
	// would be seen in how long a start takes.
	maxStartDelay = 500 * time.Millisecond
	// watchSilenceTimeout is how long a watch may deliver nothing. A healthy server sends a
	// bookmark about once a minute. At half of it the second would only have to be
	// late, on a server that is strained already, for all its nodes to come again;
	// double is more than what the watch is asked to last.
	watchSilenceTimeout = 3 * time.Minute
	// minWatchDuration is how long a watch is asked to last, at least; up to twice as long
	// at random, as client-go has it: so watches spread over servers that
	// come back. Half is twice the requests, double leaves them where they are for
	// twenty minutes.
	minWatchDuration = 5 * time.Minute
	// watchEndTolerance is how much before its time the end of a watch is still its time:
	// the server's timer starts before ours, by a request's way. Ten times what it
	// takes across a continent; more would hide servers that end watches.
	watchEndTolerance = 5 * time.Second
)

// acceptMetadata asks for objects without spec and status.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

var (
	// errSilent ends a watch that neither ends nor delivers.
	errSilent = errors.New("the server sends nothing, not even the bookmarks that it should once a minute")
	// errEndedEarly is a watch that the server ended before its time.
	errEndedEarly = errors.New("the server ends the watch early")
	// errNoVersion is a list or an event that nothing can be resumed from.
	errNoVersion = errors.New("the list has no resourceVersion")
)

// eventHandler is where a follower's objects go. Its methods are called one at a time,
// and must not wait for another follower: all followers of a view share its
// connection's window.
type eventHandler interface {
	// BeginList: a list starts. Objects put from now on are the list's until complete.
	// A list that broke off is followed by another begin.
	BeginList()
	// Upsert: the object is there in this version. live: it comes from the watch, not
	// from a list. obj, with the maps and slices in it, is valid until put returns;
	// its strings may be kept. An EndpointSlice has only what DNS needs (see
	// scratch).
	Upsert(obj runtime.Object, live bool)
	// Delete: it is gone; obj is its last state, its resourceVersion that of the
	// deletion, valid as for put.
	Delete(obj runtime.Object)
	// EndList: all of the list has been put; what wasn't is gone. version is the
	// list's resourceVersion, 0 if that isn't a number.
	EndList(version uint64)
}

// reflector keeps one set of objects up to date: it lists them, by a streamed list
// where the server can, and then watches them. Each object goes to the target as
// it arrives and is forgotten. Whatever breaks is resumed from the last version
// seen, and listed again only if the server no longer knows that version. The
// fields are set before run and then left alone.
type reflector struct {
	client     rest.Interface
	resource   resource
	namespace  string          // "" is all
	labels     labels.Selector // nil or empty is all
	fields     string          // a field selector, "" is all
	metadata   bool            // ask for the objects' metadata only
	newObject  func() runtime.Object
	handler    eventHandler
	onActivity func() // if not nil, called whenever the server says anything of the objects
	log        *slog.Logger
	outages    *outageLog // shared by all reflectors of the view

	firstBackoff   time.Duration // the first back-off; 0 is backoffFirst
	startDelay     time.Duration // the first request waits for up to this; 0 is not at all
	silenceTimeout time.Duration // the longest silence of a watch; 0 is watchSilence

	errors  errorLog
	version string // the last resourceVersion seen, "" if a list is due
	// cannotStream says that the server can't stream lists, pageOnce that it may not be
	// able to.
	cannotStream, tryPaging bool
}

// run follows until ctx ends, and returns as soon as what it asked for is torn down.
func (f *reflector) run(ctx context.Context) {
	f.errors = newErrorLog(f.log, f.outages, f.resource, f.namespace)
	defer f.errors.close()
	if f.firstBackoff == 0 {
		f.firstBackoff = minBackoff
	}
	if f.silenceTimeout == 0 {
		f.silenceTimeout = watchSilenceTimeout
	}
	if f.startDelay > 0 {
		sleep(ctx, rand.N(f.startDelay))
	}
	relisted := false
	for failed := 0; ctx.Err() == nil; {
		start := time.Now()
		verb, err := f.listOrWatch(ctx)
		if time.Since(start) > maxBackoff {
			failed, relisted = 0, false // it worked for a while
		}
		if expired(err) && !relisted {
			// The server is back, and has forgotten the version: what came before does not
			// put off the list. Once; it might forget that list's version as well.
			failed, relisted = min(failed, 1), true
		}
		if ctx.Err() != nil || f.handleResult(verb, err, failed > 0) {
			continue
		}
		sleep(ctx, max(f.backoff(failed), retryAfter(err)))
		failed++
	}
}

// listOrWatch lists or watches once.
func (f *reflector) listOrWatch(ctx context.Context) (verb string, err error) {
	if f.version == "" && (f.cannotStream || f.tryPaging) {
		return "list", f.list(ctx)
	}
	return "watch", f.watch(ctx)
}

// handleResult takes in how a try ended, and reports whether the next may follow at once.
// again says that the try before it failed too.
func (f *reflector) handleResult(verb string, err error, again bool) bool {
	if err == nil {
		f.tryPaging = false
		return true
	}
	if f.version != "" {
		if expired(err) || rejected(err) {
			f.version = ""
		}
	} else if f.switchListMode(err) {
		return true
	}
	if again || !transient(err) {
		f.errors.report(verb, err)
	}
	return false
}

// switchListMode decides, after a list that failed, how the next is asked for, and
// reports whether that is known to be better.
func (f *reflector) switchListMode(err error) bool {
	if !f.cannotStream && rejected(err) {
		f.cannotStream = true
		return true
	}
	if errors.Is(err, errSilent) {
		// A server from before streamed lists takes one for a watch, without end.
		f.tryPaging = !f.tryPaging
	}
	return false
}

// transient reports whether err is none that an operator must know of, if the next
// try goes well: a connection breaks when a server restarts, and what an expired
// version needs is a list.
func transient(err error) bool {
	return errors.Is(err, errConnBroken) || errors.Is(err, errEndedEarly) || expired(err)
}

// retryAfter is how long the server asks to be left alone.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(max(seconds, 0))*time.Second, maxBackoff)
}

// backoff is how long to wait after so many failures before this one.
func (f *reflector) backoff(failed int) time.Duration {
	if failed == 0 {
		return rand.N(f.firstBackoff)
	}
	d := f.firstBackoff
	for i := 1; i < failed && d < maxBackoff; i++ {
		d *= 2
	}
	d = min(d, maxBackoff)
	return d + rand.N(d)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// rejected reports whether the server doesn't take the request as it is.
func rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotAcceptable(err)
}

// expired reports whether the server can't go on from the version that it was
// given: it is too old, or, on a server whose state was set back, too new.
func expired(err error) bool {
	return apierrors.IsGone(err) || apierrors.IsResourceExpired(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// streamError is an error that came out of a request that was answered well.
type streamError struct{ error }

func (e streamError) Unwrap() error { return e.error }

// newRequest is a request for the follower's objects. It is not tried again inside of
// client-go, which would wait without a word.
func (f *reflector) newRequest(o *metav1.ListOptions) *rest.Request {
	if f.labels != nil && !f.labels.Empty() {
		o.LabelSelector = f.labels.String()
	}
	o.FieldSelector = f.fields
	req := f.client.Get().Resource(f.resource.plural()).VersionedParams(o, metav1.ParameterCodec).MaxRetries(0)
	if f.namespace != "" {
		req.Namespace(f.namespace)
	}
	if f.metadata {
		req.SetHeader("Accept", acceptMetadata)
	}
	return req
}

// withSilenceTimeout ends the context it gives with errSilent when it isn't told for as long as
// f.silence that there was a sign of life. release must be called.
func (f *reflector) withSilenceTimeout(ctx context.Context) (guarded context.Context, alive, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(f.silenceTimeout, func() { cancel(errSilent) })
	return guarded, func() { timer.Reset(f.silenceTimeout) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// silenceOr is err, or why ctx ended if that made it.
func silenceOr(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// list lists page by page.
func (f *reflector) list(ctx context.Context) error {
	f.handler.BeginList()
	for p := (listPage{}); ; {
		var err error
		if p, err = f.fetchPage(ctx, p.token); err != nil {
			return err
		}
		f.noteActivity()
		if p.token != "" {
			continue
		}
		return f.endList(p.version)
	}
}

// fetchPage asks for one page of a list.
func (f *reflector) fetchPage(ctx context.Context, token string) (listPage, error) {
	guarded, _, release := f.withSilenceTimeout(ctx)
	defer release()
	body, err := f.newRequest(&metav1.ListOptions{Limit: pageSize, Continue: token}).Stream(guarded)
	if err != nil {
		return listPage{}, silenceOr(guarded, err)
	}
	defer body.Close()
	p, err := f.newDecoder().decodePage(body, func(obj runtime.Object) { f.upsert(obj, false) }, f.errors.skip)
	return p, silenceOr(guarded, err)
}

func (f *reflector) newDecoder() *decoder {
	return &decoder{newObject: f.newObject, metadata: f.metadata}
}

// endList notes that all of a list was put.
func (f *reflector) endList(version string) error {
	if version == "" {
		return errNoVersion
	}
	f.version = version
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		n = 0
	}
	f.handler.EndList(n)
	return nil
}

// noteActivity notes that the server said something of the objects.
func (f *reflector) noteActivity() {
	f.errors.recovered(true)
	if f.onActivity != nil {
		f.onActivity()
	}
}

// upsert hands an object on.
func (f *reflector) upsert(obj runtime.Object, live bool) {
	if _, ok := obj.(*metav1.Status); ok {
		f.errors.skip(errors.New("a Status in place of an object"))
		return
	}
	f.handler.Upsert(obj, live)
}

// watch watches from the last version on, or from a streamed list on if there is
// none, until the stream ends. It is nil if that was its time.
func (f *reflector) watch(ctx context.Context) error {
	lasts := minWatchDuration + rand.N(minWatchDuration)
	seconds := int64(lasts / time.Second)
	o := metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: &seconds, ResourceVersion: f.version}
	if f.version == "" {
		whole := true
		o.SendInitialEvents, o.ResourceVersionMatch = &whole, metav1.ResourceVersionMatchNotOlderThan
	}
	guarded, alive, release := f.withSilenceTimeout(ctx)
	defer release()
	start := time.Now()
	// A watch isn't held back by the client's rate, as nowhere in client-go.
	body, err := f.newRequest(&o).Throttle(nil).Stream(guarded)
	if err != nil {
		return silenceOr(guarded, err)
	}
	defer body.Close()
	f.errors.recovered(false)
	err = f.readEvents(body, alive)
	switch {
	case !errors.Is(err, io.EOF):
		return streamError{silenceOr(guarded, err)}
	case f.version == "" || time.Since(start) < lasts-watchEndTolerance:
		return streamError{errEndedEarly}
	}
	return nil
}

// readEvents reads the stream of a watch up to its end, io.EOF if that is a clean one.
func (f *reflector) readEvents(body io.Reader, alive func()) error {
	if f.version == "" {
		f.handler.BeginList()
	}
	form := f.newDecoder()
	defer form.release()
	s, err := openWatchStream(body, form)
	for err == nil {
		var kind watch.EventType
		var obj runtime.Object
		kind, obj, err = s.next()
		alive()
		var lost decodeError
		if errors.As(err, &lost) {
			f.errors.skip(err)
			err = nil
			continue
		}
		if err == nil {
			err = f.handleEvent(kind, obj)
		}
	}
	return err
}

// handleEvent takes in one event.
func (f *reflector) handleEvent(kind watch.EventType, obj runtime.Object) error {
	if kind == watch.Error {
		return fmt.Errorf("in the stream: %w", apierrors.FromObject(obj))
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		f.errors.skip(fmt.Errorf("an event %q has a %T", kind, obj))
		return nil
	}
	f.noteActivity()
	listing := f.version == ""
	switch kind {
	case watch.Added, watch.Modified:
		f.handler.Upsert(obj, !listing)
	case watch.Deleted:
		f.handler.Delete(obj)
	case watch.Bookmark:
		if listing {
			return f.handleBookmark(o)
		}
	default:
		f.errors.skip(fmt.Errorf("an event of the unknown type %q", kind))
		return nil
	}
	// The objects of a list come in any order of their versions.
	if v := o.GetResourceVersion(); !listing && v != "" {
		f.version = v
	}
	return nil
}

// handleBookmark takes in one that comes before the list is complete: it may say that it
// is.
func (f *reflector) handleBookmark(o metav1.Object) error {
	if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		return nil
	}
	return f.endList(o.GetResourceVersion())
}

// getNodeTimeout is how long getNode may take. Half would give up on a server under strain,
// double would put off the next try.
const getNodeTimeout = 2 * time.Second

// zoneLabelKey is the label of a Node that names its topology zone.
const zoneLabelKey = "topology.kubernetes.io/zone"

// getNodeZone asks core for the topology zone of the node of that name; "" without an
// error is a node without one. It blocks for nodeWait at most.
func getNodeZone(ctx context.Context, core rest.Interface, name string) (zone string, err error) {
	ctx, cancel := context.WithTimeout(ctx, getNodeTimeout)
	defer cancel()
	body, err := core.Get().Resource("nodes").Name(name).SetHeader("Accept", acceptMetadata).MaxRetries(0).Stream(ctx)
	if err != nil {
		return "", fmt.Errorf("getting the node %s: %w", name, err)
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxEventBytes))
	if err != nil {
		return "", fmt.Errorf("getting the node %s: %w", name, err)
	}
	f := decoder{metadata: true, newObject: func() runtime.Object { return &metav1.PartialObjectMetadata{} }}
	f.acquire()
	obj, err := f.decode(data)
	if err != nil {
		return "", fmt.Errorf("getting the node %s: %w", name, err)
	}
	node, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return "", fmt.Errorf("getting the node %s: the answer is a %T", name, obj)
	}
	return node.Labels[zoneLabelKey], nil
}
