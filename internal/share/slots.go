package share

import "time"

// reservedPart is the part of the slots that one client, or all background work together, leaves free for others: one
// eighth.
const reservedPart = 8

// Slots are a fixed number of slots and the [Queue] of those that wait for one. One client may have seven eighths
// of the slots, so that the next client finds a free one. [NoClient] gets a slot only while more than an eighth is free.
// It is not safe for concurrent use. The zero value has no slots.
type Slots[T any] struct {
	limit int
	used  Counts
	queue Queue[T]
}

// NewSlots makes n slots.
func NewSlots[T any](n int) Slots[T] { return Slots[T]{limit: n} }

// InUse returns the number of slots in use.
func (s *Slots[T]) InUse() int { return s.used.Total() }

// Waiting returns the number of waiters.
func (s *Slots[T]) Waiting() int { return s.queue.Len() }

// Try takes a slot for c, and reports whether there was one. It does not overtake waiters.
func (s *Slots[T]) Try(c Client) bool {
	if s.queue.Len() > 0 && !s.onlyCapped() || !s.allowed(c) {
		return false
	}
	s.used.Add(c)
	return true
}

// onlyCapped reports whether the waiters are all of one client that has as many slots as it may have, so that free
// slots are for others.
func (s *Slots[T]) onlyCapped() bool {
	c := s.queue.Turn()
	return s.queue.lines[c].next == c && !s.allowed(c)
}

// allowed reports whether a slot is free for c.
func (s *Slots[T]) allowed(c Client) bool {
	most := s.limit - s.limit/reservedPart
	if c == NoClient {
		return s.used.Total() < most
	}
	return s.used.Total() < s.limit && s.used.Of(c) < most
}

// Wait adds w, for which [Slots.Try] found no slot, to the queue.
func (s *Slots[T]) Wait(c Client, w *Waiter[T]) { s.queue.Push(c, w) }

// Cancel removes w from the queue, and reports whether it was there.
func (s *Slots[T]) Cancel(w *Waiter[T]) bool { return s.queue.Remove(w) }

// Release returns a slot of c, which must have one. While [Slots.Waiting] is not 0, call [Slots.Next] afterwards.
func (s *Slots[T]) Release(c Client) { s.used.Remove(c) }

// Next gives a free slot to the waiter whose turn it is at now, and returns it; nil if there is no waiter or no slot
// for it.
func (s *Slots[T]) Next(now time.Time) *Waiter[T] {
	if s.queue.Len() == 0 {
		return nil
	}
	if !s.allowed(s.queue.Turn()) { // at most one client can have seven eighths
		s.queue.Skip()
	}
	next := s.queue.Turn()
	if !s.allowed(next) {
		return nil
	}
	w := s.queue.Pop(now)
	s.used.Add(next)
	return w
}
