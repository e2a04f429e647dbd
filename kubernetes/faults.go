package kubernetes

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// maxFaults is the number of faults of an object that are described. Tenants decide how
	// many there are, and how long the values are.
	maxFaults = 3
	// maxFaultText bounds the description of an object's faults, maxFaultValue each value in
	// it, in bytes.
	maxFaultText  = 200
	maxFaultValue = 40
	// faultInterval is the shortest time between two lines in the log about one object, and
	// maxFaultLines bounds the lines about all objects in that time.
	faultInterval = time.Minute
	maxFaultLines = 60
	// maxFaulty bounds the objects whose faults are remembered. Others count, but are not
	// logged.
	maxFaulty = 4096
)

// faults are the values of an object that DNS can't use. The rest of the object is used. It
// describes the first [maxFaults] and counts the others.
type faults struct {
	first []string
	n     int
}

// add adds a fault. It shortens strings among args.
func (f *faults) add(format string, args ...any) {
	if f.n < maxFaults {
		for i, a := range args {
			if text, ok := a.(string); ok {
				args[i] = shorten(text, maxFaultValue)
			}
		}
		f.first = append(f.first, fmt.Sprintf(format, args...))
	}
	f.n++
}

// String describes f in at most [maxFaultText] bytes; "" if there are no faults.
func (f *faults) String() string {
	text, more := strings.Join(f.first, "; "), ""
	if f.n > maxFaults {
		more = fmt.Sprintf("; %d more", f.n-maxFaults)
	}
	return shorten(text, maxFaultText-len(more)) + more
}

// shorten returns text if it has at most n bytes, else its beginning with an ellipsis.
func shorten(text string, n int) string {
	const ellipsis = "…"
	if len(text) <= n {
		return text
	}
	end := n - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// faultLog decides which faults are logged. It is safe for concurrent use.
type faultLog struct {
	seed    maphash.Seed // of the descriptions' hashes
	mu      sync.Mutex
	objects map[faultKey]faultState
	total   uint64 // times that an object became faulty
	// began is when the current interval began; lines have been logged in it, and unlogged
	// changes have not since the last line.
	began           time.Time
	lines, unlogged int
}

// faultKey identifies an object.
type faultKey struct {
	resource resource
	ns, name string
}

// faultState is what is known of an object that is faulty, or was within the last
// [faultInterval].
type faultState struct {
	text   uint64 // the hash of the description; 0 if it has no faults any more
	logged time.Time
}

// note records the description of an object's faults, "" for none. It reports whether to log
// it, and how many changes have not been logged before.
func (l *faultLog) note(now time.Time, key faultKey, text string) (log bool, unlogged int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text == "" {
		l.clear(now, key)
		return false, 0
	}
	if now.Sub(l.began) >= faultInterval {
		l.began, l.lines = now, 0
		l.prune(now)
	}
	state, known := l.objects[key]
	hash := maphash.String(l.seed, text) | 1
	if state.text == hash {
		return false, 0
	}
	l.total++
	state.text = hash
	kept := known || len(l.objects) < maxFaulty
	log = kept && now.Sub(state.logged) >= faultInterval && l.lines < maxFaultLines
	if log {
		state.logged = now
		l.lines++
		unlogged, l.unlogged = l.unlogged, 0
	} else {
		l.unlogged++
	}
	if kept {
		if l.objects == nil {
			l.objects = make(map[faultKey]faultState)
		}
		l.objects[key] = state
	}
	return log, unlogged
}

// clear records that an object has no faults any more. It stays known for a while, so that
// one that becomes faulty again and again is not logged each time.
func (l *faultLog) clear(now time.Time, key faultKey) {
	state, ok := l.objects[key]
	switch {
	case !ok:
	case now.Sub(state.logged) >= faultInterval:
		delete(l.objects, key)
	default:
		l.objects[key] = faultState{logged: state.logged}
	}
}

// prune forgets objects that were faulty.
func (l *faultLog) prune(now time.Time) {
	for key, state := range l.objects {
		if state.text == 0 && now.Sub(state.logged) >= faultInterval {
			delete(l.objects, key)
		}
	}
}

// clearMissing records that the objects of a resource for which missing returns true have
// been deleted.
func (l *faultLog) clearMissing(now time.Time, r resource, missing func(ns, name string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.objects {
		if key.resource == r && missing(key.ns, key.name) {
			l.clear(now, key)
		}
	}
}

// faulty returns the objects that have faults.
func (l *faultLog) faulty() (list []faultKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, state := range l.objects {
		if state.text != 0 {
			list = append(list, key)
		}
	}
	return list
}

// restore records that an object has faults, of which the description is lost.
func (l *faultLog) restore(key faultKey) {
	if l.objects == nil {
		l.objects = make(map[faultKey]faultState)
	}
	if len(l.objects) < maxFaulty {
		l.objects[key] = faultState{text: 1}
	}
}

// isEmpty reports whether no object is known.
func (l *faultLog) isEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.objects) == 0
}

// counts returns the number of objects that are faulty, and how often one became so.
func (l *faultLog) counts() (faulty int, total uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, state := range l.objects {
		if state.text != 0 {
			faulty++
		}
	}
	return faulty, l.total
}

// SlowEvent is the time from which on the conversion of an object counts as slow: queries
// see later changes late by as much.
const SlowEvent = 100 * time.Millisecond

// slowLog counts events that take long. The zero value is ready. It is safe for concurrent
// use.
type slowLog struct {
	mu       sync.Mutex
	total    uint64
	logged   time.Time
	unlogged int
}

func (l *slowLog) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}
