// Package share divides what queries need while they wait fairly among clients.
//
// [Limiter] divides places. A client may hold all of them. When none is free and another
// client comes, the client that holds most loses the place that it has held longest. So a
// client that holds fewer places than the others always gets one, and loses none. [Place]
// is the context of the query that holds it: it ends when the place is lost.
//
// The Limiter identifies clients by address, and gives each that has a place a small number.
// [FairShare] identifies them by that number, for other resources that a client uses while
// it has a place: it needs no lookup. Of those, a client gets another one while it has fewer
// than are free: a single client gets half of them, two clients get a third each.
package share

// Client is the number that [Limiter] gives a client, 1 or more. It belongs to the client
// until the last of its places is released.
type Client int32

// NoClient is for work that no client waits for. All such work together counts as one client.
const NoClient Client = 0

// Availability says whether a slot is available.
type Availability uint8

const (
	// Available: a slot is free for the client.
	Available Availability = iota
	// Full: all slots are in use.
	Full
	// OverShare: slots are free, but the client has as many already.
	OverShare
)

// FairShare counts the slots of clients. It is not safe for concurrent use. The zero value
// has no slots.
type FairShare struct {
	limit, used int
	held        []int32 // by the client's number
}

// NewFairShare makes a FairShare with n slots.
func NewFairShare(n int) FairShare { return FairShare{limit: n} }

// InUse returns the number of slots in use.
func (d *FairShare) InUse() int { return d.used }

// Check says whether c may have another slot. It changes nothing.
func (d *FairShare) Check(c Client) Availability {
	switch free := d.limit - d.used; {
	case free <= 0:
		return Full
	case d.InUseBy(c) >= free:
		return OverShare
	}
	return Available
}

// InUseBy returns the number of c's slots.
func (d *FairShare) InUseBy(c Client) int {
	if int(c) >= len(d.held) {
		return 0
	}
	return int(d.held[c])
}

// Add counts another slot for c, whatever [FairShare.Check] says. It allocates only if c is
// greater than all clients before.
func (d *FairShare) Add(c Client) {
	if n := int(c) + 1 - len(d.held); n > 0 {
		d.held = append(d.held, make([]int32, n)...)
	}
	d.held[c]++
	d.used++
}

// Remove takes back one slot of c, which must have one.
func (d *FairShare) Remove(c Client) {
	d.held[c]--
	d.used--
}
