package reflector

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// errSetBack ends a request that follows resourceVersions which the server no longer has.
var errSetBack = errors.New("the server's resourceVersions were set back")

// History knows the latest resourceVersion of each resource of one API server. Its
// reflectors share it. Versions only grow, until the server's data are restored from a
// backup. The server accepts a watch from a version that it does not have yet, and sends
// nothing. So when one list has a lower version than a reflector has seen, all of them list
// again. Safe for concurrent use.
type History struct {
	onSetBack func(SetBack)

	mu     sync.Mutex
	latest map[schema.GroupResource]uint64
	// era ends when the versions are set back.
	era context.Context
	end context.CancelCauseFunc
}

// SetBack is a list whose version is lower than one that was seen before the list began.
type SetBack struct {
	Resource     string
	Seen, Listed uint64
}

// NewHistory returns a History without versions. onSetBack is called each time that versions
// are set back, before any reflector lists again. It must not wait for a reflector.
func NewHistory(onSetBack func(SetBack)) *History {
	h := &History{onSetBack: onSetBack}
	h.begin()
	return h
}

// begin starts an era. The lock is held, or h is new.
func (h *History) begin() {
	h.latest = map[schema.GroupResource]uint64{}
	h.era, h.end = context.WithCancelCause(context.Background())
}

// position is where a reflector is in a History.
type position struct {
	era context.Context
	// least is the lowest version that the list may have: a list is at least as recent as what
	// was seen before its request. Versions of two resources are not compared: they may be in
	// different databases (--etcd-servers-overrides).
	least uint64
}

// position returns the present one for a request for r.
func (h *History) position(r schema.GroupResource) position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return position{h.era, h.latest[r]}
}

// see records that an object or bookmark had that version.
func (h *History) see(at position, r schema.GroupResource, version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.era == h.era {
		h.latest[r] = max(h.latest[r], version)
	}
}

// listed reports whether a list that began at that position, and has that version, is valid.
// 0 is a version that is not a number.
func (h *History) listed(at position, r schema.GroupResource, version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case at.era != h.era:
		return false
	case version == 0 || version >= at.least:
		h.latest[r] = max(h.latest[r], version)
		return true
	}
	h.end(errSetBack)
	h.begin()
	if h.onSetBack != nil {
		h.onSetBack(SetBack{r.Resource, at.least, version})
	}
	return false
}
