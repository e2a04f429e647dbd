package server

import (
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/share"
)

const (
	// turnsPerCore is how many queries for each core have a turn: a reader is about to forward them, or they are with a worker that has
	// not run yet. They keep the cores busy until a turn is passed on. More would make the goroutines that can run, the readers among
	// them, wait for longer, and the query of another client for more of a flood's.
	turnsPerCore = 4
	// standingTime is for how long some query of a client must have waited for a turn, without a
	// pause, until queries of the client are dropped. In that time one core
	// forwards more than a thousand queries. A burst that is over earlier loses nothing, however large it is.
	standingTime = 20 * time.Millisecond
	// maxStandingLine is how many queries of such a client may wait for a turn: more than the program of a pod has outstanding
	// that waits for answers, which loses none even if all clients together ask more than the cores can forward.
	maxStandingLine = 128
	// calmTime is how long after its last dropped query a client is treated as any other again,
	// and how long after the last query of another client a client is alone.
	calmTime = time.Second
)

// workerTurns starts the queries that have to wait for an upstream or a view. Each such query costs ten times the CPU time of a hit. If
// readers forwarded all at once, or started a worker for each, every other query, hits included, would wait for a flood.
//
// So a query takes a turn before it is started, and the reader passes the turn on when it forwards the query, or the worker as soon as
// it runs. While there is no turn, queries wait in one line for each client, and the clients
// take turns (the fair queue of RFC 8290). A line that has not been empty for [standingTime] is a
// flood and no burst (RFC 8289, section 3.2): its client has more than its share of the
// CPU. Then the reader drops what exceeds [maxStandingLine] of that client, unless it is alone.
//
// It is safe for concurrent use. All methods take constant time, and allocate only when more clients wait
// than ever before.
type workerTurns struct {
	mu      sync.Mutex
	slots   share.Slots[*pendingQuery]
	clients []turnClient // by the client's number
	last    share.Client // the client of the last query
	// sharedAt is when the client of a query last differed from that of the query before.
	sharedAt time.Duration
	// askedAt is when the last query came, and resumedAt when the last one came after a pause of
	// standingTime, in which the process may have been stopped or throttled.
	askedAt, resumedAt time.Duration
}

// turnClient is what workerTurns knows of a client. Times are by package clock.
type turnClient struct {
	addr      netip.Addr    // of its last query; numbers are used for other clients later
	waiting   int           // its queries that wait for a turn
	emptyAt   time.Duration // when a query of the client came last while none waited
	droppedAt time.Duration // when its last query was dropped
}

// turnOutcome is what happens to a query that needs a turn.
type turnOutcome int

const (
	turnTaken   turnOutcome = iota // a worker may start it
	turnQueued                     // [workerTurns.release] returns it later
	turnRefused                    // its client has more than its share
)

func newWorkerTurns(n int) *workerTurns {
	return &workerTurns{slots: share.NewSlots[*pendingQuery](n), sharedAt: -calmTime}
}

// acquire takes a turn for w, which has a place, or queues w. now is the time by package clock.
func (t *workerTurns) acquire(w *pendingQuery, now time.Duration) turnOutcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.client(w, now)
	if k.waiting == 0 {
		k.emptyAt = now
	}
	if t.slots.Try(w.Place) {
		return turnTaken
	}
	if t.exceedsShare(k, now) {
		k.droppedAt = now
		return turnRefused
	}
	k.waiting++
	w.waiter.Value, w.state = w, queued
	t.slots.Wait(w.Place, &w.waiter)
	return turnQueued
}

// exceedsShare reports whether k, for which there is no turn, may not have another query waiting for one.
func (t *workerTurns) exceedsShare(k *turnClient, now time.Duration) bool {
	if k.waiting < maxStandingLine || t.isAlone(now) {
		return false
	}
	return now-max(k.emptyAt, t.resumedAt) > standingTime || now-k.droppedAt < calmTime
}

// alone reports whether all queries of the last [calmTime] are of one client.
func (t *workerTurns) alone(now time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isAlone(now)
}

// isAlone is alone with t locked.
func (t *workerTurns) isAlone(now time.Duration) bool { return now-t.sharedAt >= calmTime }

// client returns what is known of w's client, and notes that it has asked.
func (t *workerTurns) client(w *pendingQuery, now time.Duration) *turnClient {
	if now-t.askedAt > standingTime {
		t.resumedAt = now
	}
	t.askedAt = now
	if w.Place != t.last {
		if t.last != share.NoClient {
			t.sharedAt = now
		}
		t.last = w.Place
	}
	if n := int(w.Place) + 1 - len(t.clients); n > 0 {
		t.clients = append(t.clients, make([]turnClient, n)...)
	}
	k := &t.clients[w.Place]
	if addr := w.Client.Addr(); k.addr != addr {
		if k.waiting == 0 {
			k.droppedAt = -calmTime
		}
		k.addr = addr
	}
	return k
}

// release returns a turn of c. The caller starts the query that it returns, which has the turn now; nil
// is none.
func (t *workerTurns) release(c share.Client) *pendingQuery {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.Release(c)
	next := t.slots.Next(time.Time{}) // no waiter is ever late: lines are in order
	if next == nil {
		return nil
	}
	w := next.Value
	t.clients[w.Place].waiting--
	return w
}
