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

// The back-off between requests to an API server that fails. Each pause is lengthened at
// random by up to its own length, so that the nodes of a cluster don't retry in step. At
// the longest pause, 5,000 nodes make under 200 requests a second per resource.
const (
	minBackoff = 800 * time.Millisecond
	maxBackoff = 30 * time.Second
)

const (
	// maxStartDelay bounds the random delay of a process's first requests, so that a cluster
	// that updates its agents or gets its power back doesn't list everything at once.
	maxStartDelay = 500 * time.Millisecond
	// watchSilenceTimeout ends a watch that delivers nothing. A healthy server sends a
	// bookmark about once a minute.
	watchSilenceTimeout = 3 * time.Minute
	// minWatchDuration is the shortest duration that a watch asks for; up to the same is
	// added at random, as in client-go, which spreads watches over API servers that come
	// back.
	minWatchDuration = 5 * time.Minute
	// watchEndTolerance is how early a watch may end without an error: the server's timer
	// starts before ours, by a request's travel time.
	watchEndTolerance = 5 * time.Second
)

// acceptMetadata is the Accept header that asks for objects without spec and status.
const acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

var (
	// errSilent ends a watch that neither ends nor delivers.
	errSilent = errors.New("no data from the server, not even bookmarks")
	// errEndedEarly is a watch that the server ended too early.
	errEndedEarly = errors.New("the server ended the watch early")
	// errNoVersion is a list without a resourceVersion to watch from.
	errNoVersion = errors.New("the list has no resourceVersion")
)

// eventHandler receives a reflector's objects. Its methods are called one at a time. They
// must not wait for another reflector: all reflectors of a view share one connection and
// its flow-control window.
type eventHandler interface {
	// BeginList starts a list: the objects upserted until EndList are its items. A list that
	// breaks off is followed by another BeginList.
	BeginList()
	// Upsert adds obj or replaces its previous version. live says that it comes from a watch
	// and not from a list. obj, with its maps and slices, is valid until Upsert returns; its
	// strings may be kept. An EndpointSlice has only the fields that DNS needs (see
	// sliceDecoder).
	Upsert(obj runtime.Object, live bool)
	// Delete removes obj. obj is its last state, with the resourceVersion of the deletion,
	// and valid as for Upsert.
	Delete(obj runtime.Object)
	// EndList ends a list: objects that were not in it no longer exist. version is the list's
	// resourceVersion, 0 if that isn't a number.
	EndList(version uint64)
}

// reflector keeps one set of objects up to date. It lists them, as a streamed list if the
// server can, and then watches them. Each object goes to the handler as it arrives and is
// not kept. After a failure the reflector resumes from the last resourceVersion, and lists
// again only if the server no longer knows that version. The fields up to silenceTimeout
// are set before run and not changed afterwards. run is called once.
type reflector struct {
	client     rest.Interface
	resource   resource
	namespace  string          // "" is all
	labels     labels.Selector // nil or empty is all
	fields     string          // a field selector, "" is all
	metadata   bool            // ask for metadata only
	newObject  func() runtime.Object
	handler    eventHandler
	onActivity func() // called on every sign of life of the objects; may be nil
	log        *slog.Logger
	outages    *outageLog // shared by all reflectors of the view

	firstBackoff   time.Duration // 0 is minBackoff
	startDelay     time.Duration // bound of the random delay of the first request; 0 is none
	silenceTimeout time.Duration // 0 is watchSilenceTimeout

	errors  errorLog
	version string // the last resourceVersion seen; "" if a list is due
	// cannotStream says that the server can't stream lists; tryPaging that it may be unable
	// to.
	cannotStream, tryPaging bool
}

// run lists and watches until ctx ends. It returns as soon as its requests are torn down.
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
			// The server is back but no longer knows the version: earlier failures must not
			// delay the list. Only once, since it might not know that list's version either.
			failed, relisted = min(failed, 1), true
		}
		if ctx.Err() != nil || f.handleResult(verb, err, failed > 0) {
			continue
		}
		sleep(ctx, max(f.backoff(failed), retryAfter(err)))
		failed++
	}
}

// listOrWatch lists or watches once and returns the verb and the error.
func (f *reflector) listOrWatch(ctx context.Context) (verb string, err error) {
	if f.version == "" && (f.cannotStream || f.tryPaging) {
		return "list", f.list(ctx)
	}
	return "watch", f.watch(ctx)
}

// handleResult processes the result of a request, and reports whether the next request may
// follow at once. again says that the request before failed as well.
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

// switchListMode chooses, after a failed list, between streaming and paging, and reports
// whether the other mode is known to work.
func (f *reflector) switchListMode(err error) bool {
	if !f.cannotStream && rejected(err) {
		f.cannotStream = true
		return true
	}
	if errors.Is(err, errSilent) {
		// A server that does not know streamed lists treats one as a watch without end.
		f.tryPaging = !f.tryPaging
	}
	return false
}

// transient reports whether err need not be logged if the next request succeeds: a
// connection breaks when a server restarts, and an expired version only needs a list.
func transient(err error) bool {
	return errors.Is(err, errConnBroken) || errors.Is(err, errEndedEarly) || expired(err)
}

// retryAfter returns the delay that the server asks for, at most maxBackoff.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return min(time.Duration(max(seconds, 0))*time.Second, maxBackoff)
}

// backoff returns the pause after a failure that failed others came before.
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

// rejected reports whether the server doesn't accept this kind of request.
func rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotAcceptable(err)
}

// expired reports whether the server can't resume from the resourceVersion: it is too old
// or, after the server's state was restored, too new.
func expired(err error) bool {
	return apierrors.IsGone(err) || apierrors.IsResourceExpired(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// streamError is an error that occurred after a response had begun.
type streamError struct{ error }

func (e streamError) Unwrap() error { return e.error }

// newRequest returns a request for the reflector's objects. client-go must not retry it: it
// would do so without a log line.
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

// withSilenceTimeout returns a context that ends with errSilent when alive isn't called for
// f.silenceTimeout. release must be called.
func (f *reflector) withSilenceTimeout(ctx context.Context) (guarded context.Context, alive, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(f.silenceTimeout, func() { cancel(errSilent) })
	return guarded, func() { timer.Reset(f.silenceTimeout) }, func() {
		timer.Stop()
		cancel(nil)
	}
}

// silenceOr returns errSilent if that ended ctx, else err.
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

// fetchPage reads one page of a list.
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

// endList ends a list at its resourceVersion.
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

// noteActivity records that the server has delivered something.
func (f *reflector) noteActivity() {
	f.errors.recovered(true)
	if f.onActivity != nil {
		f.onActivity()
	}
}

// upsert passes an object to the handler.
func (f *reflector) upsert(obj runtime.Object, live bool) {
	if _, ok := obj.(*metav1.Status); ok {
		f.errors.skip(errors.New("a Status in place of an object"))
		return
	}
	f.handler.Upsert(obj, live)
}

// watch watches from the last resourceVersion, or from a streamed list if there is none,
// until the stream ends. It returns nil if the stream ended at its time.
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
	// As in client-go, the client's rate limit does not apply to watches.
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

// readEvents reads the stream of a watch. It returns io.EOF at its regular end.
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

// handleEvent processes one event.
func (f *reflector) handleEvent(kind watch.EventType, obj runtime.Object) error {
	if kind == watch.Error {
		return fmt.Errorf("error event: %w", apierrors.FromObject(obj))
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		f.errors.skip(fmt.Errorf("event %q has a %T", kind, obj))
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
		f.errors.skip(fmt.Errorf("event of unknown type %q", kind))
		return nil
	}
	// The objects of a list are not in the order of their versions.
	if v := o.GetResourceVersion(); !listing && v != "" {
		f.version = v
	}
	return nil
}

// handleBookmark processes a bookmark during a streamed list; one of them ends the list.
func (f *reflector) handleBookmark(o metav1.Object) error {
	if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		return nil
	}
	return f.endList(o.GetResourceVersion())
}

// getNodeTimeout bounds one getNodeZone.
const getNodeTimeout = 2 * time.Second

// zoneLabelKey is the Node label that holds the topology zone.
const zoneLabelKey = "topology.kubernetes.io/zone"

// getNodeZone returns the topology zone of a Node, "" if it has none. It blocks for
// getNodeTimeout at most.
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
		return "", fmt.Errorf("getting the node %s: the reply is a %T", name, obj)
	}
	return node.Labels[zoneLabelKey], nil
}
