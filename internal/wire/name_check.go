package wire

import "slices"

// pointed describes a valid name that begins with any label to which a pointer may lead.
type pointed struct {
	end   uint16 // after the first root label or pointer in it
	steps uint16 // of a readBudget that reading it takes
	size  uint8  // written out, with the root label; 0: not known yet
	jumps uint8  // pointers in it
}

// walkedUnknown is how many labels and pointers are read behind pointers before a checker
// remembers names. Most replies have fewer, and need no memory.
const walkedUnknown = 512

// name returns the length of the name at off, written out, and the offset behind it. n is 0 unless it is a valid name that
// ends at or before most and stays the same when TTLs and addresses change. However many names of a long message lead to the
// same labels, these are read once. What reading all of them takes later is charged to c.left.
func (c *checker) name(msg []byte, off, most int) (n, end int) {
	end = skipLabels(msg, off, most)
	if end >= most || end-off >= MaxName {
		return 0, 0
	}
	if msg[end] == 0 {
		return end - off + 1, end + 1
	}
	if msg[end] < 0xC0 || end+2 > most {
		return 0, 0
	}
	p := c.follow(msg, end)
	n = end - off + int(p.size)
	if c.left -= readBudget(p.steps); p.size == 0 || n > MaxName || c.left < 0 {
		return 0, 0
	}
	return n, end + 2
}

// skipLabels returns the offset after the labels at off that begin before most, without a root label.
func skipLabels(msg []byte, off, most int) int {
	for off < most && 0 < msg[off] && msg[off] <= MaxLabel {
		off += 1 + int(msg[off])
	}
	return off
}

// follow returns the name that the pointer at off leads to. Its size is 0 if it is invalid.
func (c *checker) follow(msg []byte, off int) pointed {
	if at := pointerAt(msg, off); at < len(c.pointed) && c.pointed[at].size > 0 && int(c.pointed[at].end) <= off {
		return c.pointed[at]
	}
	p := c.read(msg, off)
	if p.size > 0 && c.walked > walkedUnknown {
		if c.pointed == nil {
			c.pointed = make([]pointed, min(len(msg), maxPointed+1+MaxName+2))
		}
		c.remember(msg, off, p)
	}
	return p
}

// read is follow for a name of which a part may be known. A name must be before the pointer that
// leads to it (RFC 1035, 4.1.4), and not in the header, which changes with the ID and the counts.
//
//nolint:gocyclo // as unpackName
func (c *checker) read(msg []byte, off int) pointed {
	var n struct{ steps, size, jumps int }
	at := pointerAt(msg, off)
	for behind := -1; HeaderLen <= at && at < off && n.size <= MaxName && n.jumps < maxPointers; c.walked++ {
		if at < len(c.pointed) && c.pointed[at].size > 0 {
			p := c.pointed[at]
			if int(p.end) > off {
				break
			}
			return newPointed(n.steps+int(p.steps), n.size+int(p.size), n.jumps+int(p.jumps))
		}
		if behind = c.ttlsBeforeFrom(behind, at); c.isMutable(msg, at, behind) {
			break
		}
		b := int(msg[at])
		n.steps++
		switch {
		case b == 0:
			return newPointed(n.steps, n.size+1, n.jumps)
		case b <= MaxLabel:
			n.steps += b >> 3
			n.size += 1 + b
			at += 1 + b
		case b < 0xC0 || at+2 > off || c.isMutable(msg, at+1, c.ttlsBeforeFrom(behind, at+1)):
			return pointed{}
		default:
			n.jumps++
			off, at, behind = at, pointerAt(msg, at), -1
		}
	}
	return pointed{}
}

// newPointed returns the name of that many steps, bytes and pointers. It is invalid if it or the
// pointer that leads to it are too many.
func newPointed(steps, size, jumps int) pointed {
	if size > MaxName || jumps >= maxPointers {
		return pointed{}
	}
	return pointed{steps: uint16(steps), size: uint8(size), jumps: uint8(jumps)}
}

// remember keeps p, the name that the pointer at off leads to, and the names that begin with its
// other labels and pointers.
func (c *checker) remember(msg []byte, off int, p pointed) {
	for {
		at := pointerAt(msg, off)
		p.end = uint16(skipName(msg, at))
		for ; ; at += 1 + int(msg[at]) {
			if c.pointed[at].size > 0 {
				return
			}
			c.pointed[at] = p
			p.steps--
			if msg[at] == 0 {
				return
			}
			if msg[at] >= 0xC0 {
				break
			}
			p.steps -= uint16(msg[at] >> 3)
			p.size -= 1 + msg[at]
		}
		p.jumps--
		off = at
	}
}

// pointerAt returns the offset in the compression pointer at off.
func pointerAt(msg []byte, off int) int { return int(u16(msg[off:]) & maxPointed) }

// mutableRanges returns the ranges of a record that differ between two replies: its TTL, at
// ttl, and the bytes from..to if they are an address that [Reply.Shuffle] moves.
func mutableRanges(msg []byte, ttl int) (at, from, to int) {
	from = ttl + 6
	return ttl, from, from + addressLen(u16(msg[ttl-4:]))
}

// ttlsBefore returns the number of TTLs that begin at or before off.
func (c *checker) ttlsBefore(off int) int {
	if len(c.ttls) == 0 || off < int(c.ttls[0]) {
		return 0 // the question or the first owner: most pointers lead there
	}
	i, found := slices.BinarySearch(c.ttls, uint16(off))
	if found {
		i++
	}
	return i
}

// ttlsBeforeFrom is ttlsBefore for an off at or after the one for which behind is the result. That
// is -1 if there is none.
func (c *checker) ttlsBeforeFrom(behind, off int) int {
	if behind < 0 {
		return c.ttlsBefore(off)
	}
	for behind < len(c.ttls) && int(c.ttls[behind]) <= off {
		behind++
	}
	return behind
}

// isMutable reports whether the byte at off belongs to a TTL or to an address that may change.
// behind is ttlsBefore(off).
func (c *checker) isMutable(msg []byte, off, behind int) bool {
	if behind == 0 {
		return false
	}
	ttl, from, to := mutableRanges(msg, int(c.ttls[behind-1]))
	return off < ttl+4 || from <= off && off < to
}
