// Internal: tests reflector and History.

package reflector

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Versions that were set back are found by a list after a silence. All reflectors of the
// server list again, the one that found it twice, so that nothing in its handler is from
// before.
func TestReflectorSetBack(t *testing.T) {
	inEncodings(t, func(t *testing.T, w encoding) {
		synctest.Test(t, func(t *testing.T) {
			var seen []SetBack
			h := NewHistory(func(b SetBack) { seen = append(seen, b) })
			f, s, rec, log := newLocalReflector(t, w,
				reply{body: slices.Concat(w.encode(watch.Added, "old", "900"), w.endOfList("1000"), w.encode(watch.Added, "lost", "1001")), open: true},
				reply{body: slices.Concat(w.encode(watch.Added, "old", "900"), w.endOfList("950")), open: true},
				reply{body: slices.Concat(w.encode(watch.Added, "old", "900"), w.endOfList("951"), w.encode(watch.Added, "new", "952")), open: true})
			f.History = h
			other, o, orec, _ := newLocalReflector(t, w,
				reply{body: slices.Concat(w.endOfList("1000"), w.encode(watch.Bookmark, "", "1002")), open: true},
				reply{body: w.endOfList("960"), open: true})
			other.History, other.Resource = h, schema.GroupResource{Resource: "others"}
			other.StartDelay = time.Minute
			f.start(t)
			other.start(t)
			time.Sleep(watchSilenceTimeout + 10*time.Second)
			synctest.Wait()
			rec.expect(t, "begin", "put old@900", "complete 1000", "put lost@1001 live", "begin", "put old@900",
				"begin", "put old@900", "complete 951", "put new@952 live")
			s.wantQueries(t, streamed, streamed, streamed)
			orec.expect(t, "begin", "complete 1000", "begin", "complete 960")
			o.wantQueries(t, streamed, streamed)
			if d := cmp.Diff([]SetBack{{"services", 1001, 950}}, seen); d != "" {
				t.Errorf("set back, -want +got:\n%s", d)
			}
			if got := log.String(); strings.Count(got, "API server unavailable") != 1 || !strings.Contains(got, errSilent.Error()) {
				t.Errorf("the log is\n%s", got)
			}
		})
	})
}

// A server without bookmarks is silent while nothing changes: lists become rarer. One with
// bookmarks is asked for a list after each silence.
func TestReflectorListsAfterSilence(t *testing.T) {
	w := encodings(t)[0]
	const hours = 8
	silences := int(hours * time.Hour / watchSilenceTimeout)
	for name, tt := range map[string]struct {
		first         []byte
		least, atMost int
	}{
		// After 1, 2, 4 … silences.
		"no bookmarks": {w.endOfList("7"), 5, 1 + 6 + silences/maxSilences},
		// A pause follows each silence.
		"bookmarks": {slices.Concat(w.endOfList("7"), w.encode(watch.Bookmark, "", "7")), silences * 7 / 10, silences + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, s, _, _ := newLocalReflector(t, w, reply{body: tt.first, open: true}, reply{open: true})
				s.relist = true
				f.start(t)
				time.Sleep(hours * time.Hour)
				synctest.Wait()
				lists := 0
				for _, q := range s.queries() {
					if q == streamed {
						lists++
					}
				}
				if lists < tt.least || lists > tt.atMost {
					t.Errorf("%d lists in %d hours, want %d to %d", lists, hours, tt.least, tt.atMost)
				}
			})
		})
	}
}

// A History takes versions only from its present era, compares those of one resource only,
// and takes versions that are no numbers for valid.
func TestHistory(t *testing.T) {
	var told []string
	h := NewHistory(func(b SetBack) { told = append(told, fmt.Sprint(b.Resource, b.Seen, b.Listed)) })
	a, b := schema.GroupResource{Resource: "a"}, schema.GroupResource{Resource: "b"}
	at := h.position(a)
	h.see(at, a, 100)
	if !h.listed(at, a, 50) {
		t.Error("a list may be older than what was seen after it began")
	}
	now := h.position(a)
	for _, version := range []uint64{0, 100, 101} {
		if !h.listed(now, a, version) {
			t.Errorf("a list of version %d is invalid", version)
		}
	}
	if !h.listed(h.position(b), b, 5) {
		t.Error("versions of two resources are compared")
	}
	now = h.position(a)
	if h.listed(now, a, 99) || now.era.Err() == nil {
		t.Error("a list of a lower version is valid")
	}
	h.see(now, a, 500)
	if h.listed(now, a, 501) {
		t.Error("a list that began before the end of the era is valid")
	}
	if now := h.position(a); !h.listed(now, a, 60) || !h.listed(h.position(b), b, 1) {
		t.Error("versions from before are kept")
	}
	if d := cmp.Diff([]string{"a101 99"}, told); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
