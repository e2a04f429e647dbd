// Package share divides what queries need while they wait fairly among clients.
//
// [Limiter] divides places. A client may hold all of them. When none is free and another
// client comes, the client that holds most loses the place that it has held longest. So a
// client that holds fewer places than the others always gets one, and loses none. [Place]
// is the context of the query that holds it: it ends when the place is lost.
//
// The Limiter identifies clients by address, and gives each that has a place a small number.
// What else a client uses while it has a place is divided by that number, which needs no
// lookup: a client gets seven eighths of [Slots] and [Turns], and half of a [Room]. Those
// that wait take turns, see [Queue].
package share

// Client is the number that [Limiter] gives a client, 1 or more. It belongs to the client
// until the last of its places is released.
type Client int32

// NoClient is for work that no client waits for. All such work together counts as one client.
const NoClient Client = 0

// Counts are numbers of what clients hold. It is not safe for concurrent use. The zero value
// is ready.
type Counts struct {
	total int
	held  []int32 // by the client's number
}

// Total returns what all clients hold together.
func (n *Counts) Total() int { return n.total }

// Of returns what c holds.
func (n *Counts) Of(c Client) int {
	if int(c) >= len(n.held) {
		return 0
	}
	return int(n.held[c])
}

// Add counts another one for c. It allocates only if c is greater than all clients before.
func (n *Counts) Add(c Client) {
	if more := int(c) + 1 - len(n.held); more > 0 {
		n.held = append(n.held, make([]int32, more)...)
	}
	n.held[c]++
	n.total++
}

// Remove takes back one of c, which must have one.
func (n *Counts) Remove(c Client) {
	n.held[c]--
	n.total--
}
