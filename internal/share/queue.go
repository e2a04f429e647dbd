package share

import "time"

// Queue orders what waits for a slot or a token: the clients take turns. A client that has fewer waiters than others waits
// for at most one turn of each. The zero value is an empty queue. It is not safe for concurrent use. All
// operations take constant time; [Queue.Push] allocates only if the client's number is greater than all before.
//
// The waiters of one client are served in the order of their arrival, unless it is overloaded: its oldest waiter is late
// (see [Waiter]), and since that one arrived, more have arrived than were served. Then the newest is served first. In order,
// all would be served late: those at the front when it is almost too late for them, and those behind not in time. A client
// that asks for no more than its turns serve keeps the order, and so does one that recovers from a burst.
type Queue[T any] struct {
	lines []line[T] // by the client's number
	turn  Client    // whose turn is next, if n > 0
	n     int
}

// line is the waiters of one client; next and prev are its neighbours in the circle of clients that wait.
type line[T any] struct {
	first, last *Waiter[T]
	n           int
	next, prev  Client
	// arrived and served count the waiters that were pushed and popped; they wrap around.
	arrived, served uint32
}

// overloaded reports whether the newest waiter is to be served first; l is not empty.
func (l *line[T]) overloaded(now time.Time) bool {
	w := l.first
	return !w.Late.IsZero() && !now.Before(w.Late) && l.arrived-w.arrived > l.served-w.served
}

// Waiter is an entry of a [Queue]. It is a field of what waits, so that waiting allocates
// nothing. A Waiter is in one queue at most.
type Waiter[T any] struct {
	Value T
	// Late is when it has waited for so long that the order matters less than that others are served in time; zero: never.
	Late time.Time

	client          Client
	queued          bool
	next, prev      *Waiter[T]
	arrived, served uint32 // the counters of the line when it was pushed, itself included
}

// Len returns the number of waiters.
func (q *Queue[T]) Len() int { return q.n }

// Push adds w, which is in no queue, as the newest waiter of c.
func (q *Queue[T]) Push(c Client, w *Waiter[T]) {
	if n := int(c) + 1 - len(q.lines); n > 0 {
		q.lines = append(q.lines, make([]line[T], n)...)
	}
	l := &q.lines[c]
	w.client, w.queued, w.next, w.prev = c, true, nil, l.last
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
		q.join(c)
	}
	l.last = w
	l.arrived++
	w.arrived, w.served = l.arrived, l.served
	l.n++
	q.n++
}

// join inserts c into the circle, to be served last in the current round.
func (q *Queue[T]) join(c Client) {
	l := &q.lines[c]
	if q.n == 0 {
		q.turn, l.next, l.prev = c, c, c
		return
	}
	l.next, l.prev = q.turn, q.lines[q.turn].prev
	q.lines[l.prev].next, q.lines[l.next].prev = c, c
}

// Turn returns the client that [Queue.Pop] serves next. The queue must not be empty.
func (q *Queue[T]) Turn() Client { return q.turn }

// Skip passes the turn to the next client.
func (q *Queue[T]) Skip() {
	if q.n > 0 {
		q.turn = q.lines[q.turn].next
	}
}

// Pop removes and returns the waiter whose turn it is at now; nil if the queue is empty.
func (q *Queue[T]) Pop(now time.Time) *Waiter[T] {
	if q.n == 0 {
		return nil
	}
	c := q.turn
	l := &q.lines[c]
	w := l.first
	if l.overloaded(now) {
		w = l.last
	}
	l.served++
	q.Remove(w)
	if q.turn == c { // it has more waiters
		q.Skip()
	}
	return w
}

// Remove removes w, and reports whether it was in the queue.
func (q *Queue[T]) Remove(w *Waiter[T]) bool {
	if !w.queued {
		return false
	}
	l := &q.lines[w.client]
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.queued, w.next, w.prev = false, nil, nil
	q.n--
	if l.n--; l.n == 0 {
		q.leave(w.client)
	}
	return true
}

// leave takes c out of the circle.
func (q *Queue[T]) leave(c Client) {
	l := &q.lines[c]
	q.lines[l.prev].next, q.lines[l.next].prev = l.next, l.prev
	if q.turn == c {
		q.turn = l.next
	}
}

// EachClient calls f for each client that waits, in the order of their turns, with its oldest waiter and the number of
// its waiters.
func (q *Queue[T]) EachClient(f func(oldest *Waiter[T], n int)) {
	if q.n == 0 {
		return
	}
	c := q.turn
	for {
		l := &q.lines[c]
		f(l.first, l.n)
		if c = l.next; c == q.turn {
			return
		}
	}
}
