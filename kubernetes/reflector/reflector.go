package reflector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// watchSilenceTimeout ends a watch that delivers nothing. A healthy server sends a
	// bookmark about once a minute.
	watchSilenceTimeout = 3 * time.Minute
	// maxSilences bounds the silent watches in a row between two lists.
	maxSilences = 32
	// minWatchDuration is the shortest duration that a watch asks for; up to the same is
	// added at random, as in client-go, which spreads watches over API servers that come
	// back.
	minWatchDuration = 5 * time.Minute
	// watchEndTolerance is how early a watch may end without an error: the server's timer
	// starts before ours, by a request's travel time.
	watchEndTolerance = 5 * time.Second
)

var (
	// errSilent ends a watch that neither ends nor delivers.
	errSilent = errors.New("no data from the server, not even bookmarks")
	// errEndedEarly is a watch that the server ended too early.
	errEndedEarly = errors.New("the server ended the watch early")
	// errNoVersion is a list without a resourceVersion to watch from.
	errNoVersion = errors.New("the list has no resourceVersion")
)

// Handler receives the objects of a [Reflector]. Its methods are called one at a time. They
// must not wait for another reflector of the same [Connection]: the reflectors share its
// flow-control window.
type Handler interface {
	// BeginList starts a list: the objects upserted until EndList are its items. A list that
	// breaks off is followed by another BeginList.
	BeginList()
	// Upsert adds obj or replaces its previous version. live says that it comes from a watch
	// and not from a list. obj, with its maps and slices, is valid until Upsert returns; its
	// strings may be kept. An EndpointSlice that was sent in protobuf lacks the fields that
	// the package doc excludes.
	Upsert(obj runtime.Object, live bool)
	// Delete removes obj. obj is its last state, with the resourceVersion of the deletion,
	// and valid as for Upsert. Deletions occur during a streamed list, too.
	Delete(obj runtime.Object)
	// EndList ends a list: objects that were not in it no longer exist. version is the list's
	// resourceVersion, 0 if that isn't a number.
	EndList(version uint64)
}

// Reflector keeps one set of objects up to date: it lists and watches them and passes each
// to its Handler. Set the exported fields before Run or CheckAccess, and don't change them
// afterwards. Call one of the two, once.
type Reflector struct {
	Client       rest.Interface // of the resource's API group
	Resource     schema.GroupResource
	Namespace    string                // "" is all
	Labels       labels.Selector       // nil or empty is all
	Fields       string                // a field selector, "" is all
	Unstreamed   bool                  // list by a request of its own where the watch could begin with the list
	MetadataOnly bool                  // request PartialObjectMetadata, which NewObject returns
	NewObject    func() runtime.Object // returns an empty object of the type to decode
	Handler      Handler
	OnActivity   func() // called for each object, page and bookmark, before the handler; may be nil
	Log          *slog.Logger
	Outages      *OutageLog // shared by the reflectors of one API server
	History      *History   // shared by the reflectors of one API server; nil: not shared

	// Resume is where the Handler is already, as [Reflector.Verify] confirms: Run begins with a watch from there. The zero
	// Position is nowhere, and Run begins with a list.
	Resume Position

	FirstBackoff time.Duration // the first pause after a failure; 0 is 800 ms
	StartDelay   time.Duration // bound of a random delay before the first request; 0 is none

	errors  errorLog
	version string   // the last resourceVersion seen; "" if a list is due
	at      position // when the last list was requested
	tracker tracker
	awaits  bool // a request failed, and none has succeeded since
	// silences counts the silent watches since the last list, patience those that lead to a
	// list; 0 is one.
	silences, patience int
	// cannotStream says that the server can't stream lists; tryList that it may be unable
	// to. paging says that a list is too long for one page.
	cannotStream, tryList, paging bool
}

// Run lists and watches until ctx ends. It logs errors and retries. It returns as soon as
// its requests are torn down.
func (f *Reflector) Run(ctx context.Context) {
	f.errors = newErrorLog(f.Log, f.Outages, f.Resource, f.Namespace)
	defer f.errors.close()
	defer f.Outages.noteReply(f) // one of the others probes then
	f.resume()
	if f.StartDelay > 0 {
		sleep(ctx, rand.N(f.StartDelay))
	}
	relisted := false
	for failed := 0; ctx.Err() == nil; {
		start := time.Now()
		verb, err := f.listOrWatch(ctx)
		if time.Since(start) > maxBackoff {
			failed, relisted = 0, false // it worked for a while
		}
		relisted = relisted && !lost(err)
		again := failed > 0
		if expired(err) && !relisted {
			// The server is back but no longer knows the version: earlier failures must not
			// delay the list, and it is no failure. Only once until it is lost again, since the
			// server might not know that list's version either.
			failed, relisted, again = min(failed, 1), true, false
		}
		if ctx.Err() != nil || f.handleResult(verb, err, again) {
			continue
		}
		if failed++; f.pause(ctx, failed-1, err) {
			failed = 0 // the server is back, and may not be ready for all at once
		}
	}
}

// resume makes the first request a watch from Resume, if that is set. A History that is not shared begins here.
func (f *Reflector) resume() {
	if f.History == nil {
		f.History = NewHistory(nil)
	}
	if f.Resume.Version == 0 {
		return
	}
	f.version, f.errors.listed = strconv.FormatUint(f.Resume.Version, 10), true
	f.at = f.History.position(f.Resource)
	f.History.see(f.at, f.Resource, f.Resume.Version)
	f.tracker.set(f.Resume)
}

// CheckAccess lists the metadata of one object, without the handler, until the API server allows it or ctx
// ends. It logs errors as Run does.
func (f *Reflector) CheckAccess(ctx context.Context) {
	f.errors = newErrorLog(f.Log, f.Outages, f.Resource, "")
	defer f.errors.close()
	defer f.Outages.noteReply(f)
	f.MetadataOnly = true
	for failed := 0; ctx.Err() == nil; {
		err := f.newRequest(&metav1.ListOptions{Limit: 1}).Do(ctx).Error()
		if err == nil {
			f.errors.recovered(true)
			return
		}
		f.errors.report("list", err)
		if failed++; f.pause(ctx, failed-1, err) {
			failed = 0
		}
	}
}

// listOrWatch lists or watches once and returns the verb and the error.
func (f *Reflector) listOrWatch(ctx context.Context) (verb string, err error) {
	if f.version == "" {
		f.at = f.History.position(f.Resource) // before the request
		if f.Unstreamed || f.cannotStream || f.tryList {
			return "list", f.list(ctx)
		}
	}
	return "watch", f.watch(ctx)
}

// handleResult processes the result of a request, and reports whether the next request may
// follow at once. again says that the request before failed as well.
func (f *Reflector) handleResult(verb string, err error, again bool) bool {
	if err == nil {
		f.tryList = false
		return true
	}
	if f.version != "" {
		if f.needsList(err) {
			f.version = ""
			f.tracker.set(Position{})
		}
	} else if f.switchListMode(err) {
		return true
	}
	if (again || !transient(err)) && !errors.Is(err, errSetBack) { // which History reports
		f.errors.report(verb, err)
	}
	return false
}

// needsList reports whether a list must follow err, the end of a watch.
func (f *Reflector) needsList(err error) bool {
	return expired(err) || rejected(err) || errors.Is(err, errSetBack) || f.listsAfterSilence(err)
}

// listsAfterSilence reports whether err, of a watch, is a silence that a list must follow: a
// watch from a version that the server does not have yet delivers nothing, not even bookmarks.
// A server without bookmarks is silent whenever nothing changes: after each list without a
// bookmark since, the next list takes twice as many silent watches.
func (f *Reflector) listsAfterSilence(err error) bool {
	if !errors.Is(err, errSilent) {
		return false
	}
	if f.silences++; f.silences < f.patience {
		return false
	}
	f.silences, f.patience = 0, min(2*max(f.patience, 1), maxSilences)
	return true
}

// switchListMode chooses, after a failed list, between a streamed list, one of a single page, and pages, and reports
// whether the next mode is known to work.
func (f *Reflector) switchListMode(err error) bool {
	if !f.cannotStream && rejected(err) {
		f.cannotStream = true
		return true
	}
	if !f.paging && errors.Is(err, errLongPage) {
		f.paging = true
		return true
	}
	if errors.Is(err, errSilent) {
		// A server that does not know streamed lists treats one as a watch without end.
		f.tryList = !f.tryList
	}
	return false
}

// transient reports whether err need not be logged if the next request succeeds: a
// connection breaks when a server restarts, and an expired version only needs a list.
func transient(err error) bool {
	return errors.Is(err, errConnBroken) || errors.Is(err, errEndedEarly) || expired(err)
}

// lost reports whether err says that the server can't be reached, or that it has ended.
func lost(err error) bool {
	var noReply *url.Error
	return errors.Is(err, errConnBroken) || errors.As(err, &noReply)
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
func (f *Reflector) newRequest(o *metav1.ListOptions) *rest.Request {
	if f.Labels != nil && !f.Labels.Empty() {
		o.LabelSelector = f.Labels.String()
	}
	o.FieldSelector = f.Fields
	req := f.Client.Get().Resource(f.Resource.Resource).VersionedParams(o, metav1.ParameterCodec).MaxRetries(0)
	if f.Namespace != "" {
		req.Namespace(f.Namespace)
	}
	switch {
	case f.MetadataOnly && o.Watch:
		req.SetHeader("Accept", acceptMetadata)
	case f.MetadataOnly:
		req.SetHeader("Accept", acceptMetadataList)
	}
	return req
}

// guard returns a context that ends with errSilent when alive isn't called for
// watchSilenceTimeout, and with errSetBack when versions are set back. release must be called.
func (f *Reflector) guard(ctx context.Context) (guarded context.Context, alive, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(watchSilenceTimeout, func() { cancel(errSilent) })
	stop := context.AfterFunc(f.at.era, func() { cancel(errSetBack) })
	return guarded, func() { timer.Reset(watchSilenceTimeout) }, func() {
		timer.Stop()
		stop()
		cancel(nil)
	}
}

// guardOr returns the error with which a guard ended ctx, else err.
func guardOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errSilent) || errors.Is(cause, errSetBack)) {
		return cause
	}
	return err
}

// beginList starts a list.
func (f *Reflector) beginList() error {
	f.tracker.set(Position{})
	f.Handler.BeginList()
	// The handler may have learned of an end of the era before this list. Later it learns of it
	// during the list.
	return context.Cause(f.at.era)
}

// list lists in one page or several.
func (f *Reflector) list(ctx context.Context) error {
	err := f.beginList()
	for p := (listPage{}); err == nil; {
		if p, err = f.fetchPage(ctx, p.token); err != nil {
			return err
		}
		f.noteActivity()
		if p.token != "" {
			continue
		}
		return f.endList(p.version)
	}
	return err
}

// fetchPage reads one page of a list.
func (f *Reflector) fetchPage(ctx context.Context, token string) (listPage, error) {
	guarded, alive, release := f.guard(ctx)
	defer release()
	options := metav1.ListOptions{Continue: token}
	if _, ok := f.NewObject().(protobufObject); !ok || f.paging {
		options.Limit = pageSize
	}
	req := f.newRequest(&options)
	if f.Unstreamed {
		req.Throttle(nil) // as watches: there is one request at a time, and a watch follows
	}
	body, err := req.Stream(guarded)
	if err != nil {
		return listPage{}, guardOr(guarded, err)
	}
	defer body.Close()
	p, err := f.newDecoder().decodePage(body, func(obj runtime.Object) {
		alive()
		f.upsert(obj, false)
	}, f.errors.skip)
	return p, guardOr(guarded, err)
}

func (f *Reflector) newDecoder() *decoder {
	return &decoder{newObject: f.NewObject, metadata: f.MetadataOnly}
}

// endList ends a list at its resourceVersion.
func (f *Reflector) endList(version string) error {
	if version == "" {
		return errNoVersion
	}
	n := parseVersion(version)
	if !f.History.listed(f.at, f.Resource, n) {
		return errSetBack
	}
	f.version, f.errors.listed = version, true
	f.Handler.EndList(n)
	f.tracker.reach(n)
	return nil
}

// parseVersion returns a resourceVersion as a number, 0 if it isn't one.
func parseVersion(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// noteActivity records that the server has delivered something.
func (f *Reflector) noteActivity() {
	f.errors.recovered(true)
	f.Outages.noteReply(f)
	if f.OnActivity != nil {
		f.OnActivity()
	}
}

// upsert passes an object to the handler.
func (f *Reflector) upsert(obj runtime.Object, live bool) {
	if _, ok := obj.(*metav1.Status); ok {
		f.errors.skip(errors.New("a Status in place of an object"))
		return
	}
	f.Handler.Upsert(obj, live)
	if o, ok := obj.(metav1.Object); ok {
		f.tracker.note(o, false, live)
	}
}

// watch watches from the last resourceVersion, or from a streamed list if there is none,
// until the stream ends. It returns nil if the stream ended at its time.
func (f *Reflector) watch(ctx context.Context) error {
	lasts := minWatchDuration + rand.N(minWatchDuration)
	seconds := int64(lasts / time.Second)
	o := metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: &seconds, ResourceVersion: f.version}
	if f.version == "" {
		whole := true
		o.SendInitialEvents, o.ResourceVersionMatch = &whole, metav1.ResourceVersionMatchNotOlderThan
	}
	guarded, alive, release := f.guard(ctx)
	defer release()
	start := time.Now()
	// As in client-go, the client's rate limit does not apply to watches.
	body, err := f.newRequest(&o).Throttle(nil).Stream(guarded)
	if err != nil {
		return guardOr(guarded, err)
	}
	defer body.Close()
	f.errors.recovered(false)
	f.Outages.noteReply(f)
	err = f.readEvents(body, alive)
	switch {
	case !errors.Is(err, io.EOF):
		return streamError{guardOr(guarded, err)}
	case f.version == "" || time.Since(start) < lasts-watchEndTolerance:
		return streamError{errEndedEarly}
	}
	return nil
}

// readEvents reads the stream of a watch. It returns io.EOF at its regular end.
func (f *Reflector) readEvents(body io.Reader, alive func()) error {
	if f.version == "" {
		if err := f.beginList(); err != nil {
			return err
		}
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
func (f *Reflector) handleEvent(kind watch.EventType, obj runtime.Object) error {
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
		f.Handler.Upsert(obj, !listing)
		f.tracker.note(o, false, !listing)
	case watch.Deleted:
		f.Handler.Delete(obj)
		f.tracker.note(o, true, !listing)
	case watch.Bookmark:
		if listing {
			return f.handleBookmark(o)
		}
		f.silences, f.patience = 0, 0
		f.tracker.reach(parseVersion(o.GetResourceVersion()))
	default:
		f.errors.skip(fmt.Errorf("event of unknown type %q", kind))
		return nil
	}
	// The objects of a list are not in the order of their versions.
	if v := o.GetResourceVersion(); !listing && v != "" {
		f.version = v
		f.History.see(f.at, f.Resource, parseVersion(v))
	}
	return nil
}

// handleBookmark processes a bookmark during a streamed list; one of them ends the list.
func (f *Reflector) handleBookmark(o metav1.Object) error {
	if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		return nil
	}
	return f.endList(o.GetResourceVersion())
}

// pause waits before the request that follows a failure, the one after failed others. It ends soon after a request of
// another reflector has succeeded or, if the server has asked this one to wait, after the server has started. It reports whether it
// ended early for that reason.
func (f *Reflector) pause(ctx context.Context, failed int, err error) (early bool) {
	d := Backoff(f.FirstBackoff, failed, err)
	if f.Outages.rejects(err) {
		f.Outages.noteReply(f)
		sleep(ctx, d)
		return false
	}
	asked := retryAfter(err)
	probes, end := f.Outages.awaitReply(f, err)
	if probes {
		d = max(min(d, probePause+rand.N(probePause)), asked)
	}
	if asked > 0 && f.Outages.asksWhetherReady() {
		return f.awaitReady(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-end:
		sleep(ctx, min(d, rand.N(firstBackoff(f.FirstBackoff))))
		return true
	}
	return false
}

// awaitReady waits for d, or until the server says that it is ready, and reports whether it has. A server that starts asks
// for up to half a minute, the longer it takes, and does not say when that is over. To ask whether it is ready is cheap, and exempt from
// its flow control (https://kubernetes.io/docs/reference/using-api/health-checks/).
func (f *Reflector) awaitReady(ctx context.Context, d time.Duration) (ready bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for !ready && ctx.Err() == nil {
		sleep(ctx, probePause+rand.N(probePause))
		ready = f.Client.Get().AbsPath("/readyz").MaxRetries(0).Throttle(nil).Do(ctx).Error() == nil
	}
	f.Outages.noteReady(ready)
	return ready
}
