package reflector

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// maxNewest is the number of objects in a Position. The newest are those that are likely to change again, and then tell
	// nothing.
	maxNewest = 64
	// maxVerified is the number of objects that Verify asks for: the newest, then each one twice as far down.
	maxVerified = 8
	// verifyTimeout bounds a request of Verify.
	verifyTimeout = 5 * time.Second
	// maxVerifyFailures bounds the failed requests: a server that is too busy for one object is not asked for all of them
	// at once.
	maxVerifyFailures = 5
)

// Position is how far a handler has followed the objects of a [Reflector]: a watch from Version goes on there. The zero
// Position is nowhere.
type Position struct {
	Version uint64 // the resourceVersion
	// Newest are the latest of the objects that exist at Version, the newest first, 64 at most: see [Reflector.Verify].
	Newest []ObjectVersion
}

// ObjectVersion is the state of an object.
type ObjectVersion struct {
	Namespace, Name string // Namespace is "" for objects that have none
	Version         uint64 // the resourceVersion
}

// tracker keeps the Position of a reflector. It is safe for concurrent use.
type tracker struct {
	mu sync.Mutex
	at Position
}

// set replaces the Position; a version of 0 says that a list is due.
func (t *tracker) set(p Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = p
}

// reach sets the version.
func (t *tracker) reach(version uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.Version = version
}

// note records what the handler has got: an object, or its deletion. live says that it comes from a watch, so that its
// version is the one reached.
func (t *tracker) note(o metav1.Object, deleted, live bool) {
	v := ObjectVersion{o.GetNamespace(), o.GetName(), parseVersion(o.GetResourceVersion())}
	t.mu.Lock()
	defer t.mu.Unlock()
	if live {
		t.at.Version = v.Version
	}
	list := t.at.Newest
	if len(list) == maxNewest && v.Version < list[maxNewest-1].Version {
		return // most objects of a list
	}
	list = slices.DeleteFunc(list, func(have ObjectVersion) bool { return have.Name == v.Name && have.Namespace == v.Namespace })
	if !deleted && v.Version > 0 {
		i := 0
		for i < len(list) && list[i].Version > v.Version {
			i++
		}
		list = slices.Insert(list, i, v)
	}
	t.at.Newest = list[:min(len(list), maxNewest)]
}

// Position returns how far the handler has followed the objects, the zero Position during a list, before the first one,
// and if versions are no numbers. The handler may already have the next event. It is safe for concurrent use.
func (f *Reflector) Position() Position {
	f.tracker.mu.Lock()
	defer f.tracker.mu.Unlock()
	if f.tracker.at.Version == 0 {
		return Position{}
	}
	return Position{f.tracker.at.Version, slices.Clone(f.tracker.at.Newest)}
}

// Verdict says what the API server's data are to a saved [Position].
type Verdict int

const (
	// Unknown: the objects that tell have all changed, or can't be read.
	Unknown Verdict = iota
	// SameHistory: the data have been at the Position. A watch from there misses nothing.
	SameHistory
	// OtherHistory: the data were set back, or are another cluster's.
	OtherHistory
)

// Verify asks whether the API server has been at the positions saved, which are of f's resource in any namespaces. A
// server accepts a watch from a version that it has not reached, or of another history, and then is silent or leaves
// out changes. Two facts tell: the server has reached the versions, and an object still has exactly the version that
// it had then, which no other history gives it.
//
// Verify reads the metadata of one object after the other until one tells, 8 at most, from the newest on. It retries a request that fails
// and logs that like Run, but returns Unknown after some failures, which last a minute at most, and if ctx ends.
// Versions that were set back are reported to f's History. Call it instead of Run; only Client, Resource, Log, Outages,
// History and FirstBackoff are used.
func (f *Reflector) Verify(ctx context.Context, saved []Position) Verdict {
	f.errors = newErrorLog(f.Log, f.Outages, f.Resource, "")
	defer f.errors.close()
	f.errors.listed = true // what was saved is served
	f.MetadataOnly, f.NewObject = true, func() runtime.Object { return &metav1.PartialObjectMetadata{} }
	known := knownObjects(saved)
	for _, p := range saved {
		f.History.see(f.History.position(f.Resource), f.Resource, p.Version)
	}
	for i, asked, failed := 0, 0, 0; i < len(known) && asked < maxVerified && failed < maxVerifyFailures && ctx.Err() == nil; {
		verdict, err := f.verifyObject(ctx, known[i])
		switch {
		case verdict != Unknown:
			return verdict
		case err == nil || isRejection(err):
			i, asked = max(i+1, 2*i), asked+1
			continue
		}
		f.errors.report("list", err)
		if failed++; failed < maxVerifyFailures {
			sleep(ctx, Backoff(f.FirstBackoff, failed-1, err))
		}
	}
	return Unknown
}

// knownObject is an object of a Position, with the Position's version.
type knownObject struct {
	ObjectVersion
	at uint64
}

// knownObjects returns the objects of all positions, the newest first.
func knownObjects(saved []Position) (known []knownObject) {
	for _, p := range saved {
		for _, o := range p.Newest {
			known = append(known, knownObject{o, p.Version})
		}
	}
	slices.SortFunc(known, func(a, b knownObject) int { return cmp.Compare(b.Version, a.Version) })
	return known
}

// verifyObject says what the present version of o tells.
func (f *Reflector) verifyObject(ctx context.Context, o knownObject) (Verdict, error) {
	at := f.History.position(f.Resource)
	list, version, err := f.versionOf(ctx, o.ObjectVersion)
	switch {
	case err != nil:
		return Unknown, err
	case list == 0: // not a number
		return Unknown, nil
	}
	f.errors.recovered(true)
	switch {
	case !f.History.listed(at, f.Resource, list):
		return OtherHistory, nil
	case version == o.Version:
		return SameHistory, nil
	case version == 0 || version > o.at: // deleted or changed since
		return Unknown, nil
	}
	return OtherHistory, nil
}

// versionOf returns the resourceVersion of a list of o alone, and that of o, 0 if it does not exist.
func (f *Reflector) versionOf(ctx context.Context, o ObjectVersion) (list, version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	f.Namespace, f.Fields = o.Namespace, fields.OneTermEqualSelector("metadata.name", o.Name).String()
	body, err := f.newRequest(&metav1.ListOptions{}).Stream(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer body.Close()
	p, err := f.newDecoder().decodePage(body, func(obj runtime.Object) {
		if found, ok := obj.(metav1.Object); ok && found.GetName() == o.Name {
			version = parseVersion(found.GetResourceVersion())
		}
	}, f.errors.skip)
	return parseVersion(p.version), version, err
}
