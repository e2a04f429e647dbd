package wire

// RR is a resource record that is not part of a message. Its names are in wire form and
// uncompressed.
type RR struct {
	Owner []byte // in lower case
	Type  uint16
	TTL   uint32 // in seconds
	Data  []byte // RDATA
}

// Compression remembers where names begin in one reply, so that later names point to them (RFC
// 1035, 4.1.4). Its zero value is for a reply without records, and it is of no use after
// [Reply.Reset]. It has a fixed size: names beyond it are written out.
type Compression struct {
	at   [maxCompressed]uint16 // offset of a label
	size [maxCompressed]uint8  // of the name that begins with the label
	n    int
}

// maxCompressed bounds the labels that a Compression remembers. The labels of the question do not count.
const maxCompressed = 48

// AddRR writes rr, of class IN, with compressed names: its owner, and the names in its RDATA if
// its type is one of RFC 1035 (RFC 3597, 4). The owner may take the letters of an equal name
// before it; names in RDATA keep theirs. What does not fit is left out as by [Reply.Add]. It
// does not allocate, except to grow r's buffer.
func (r *Reply) AddRR(c *Compression, s Section, rr RR) {
	if r.full || r.cut || s < r.section || len(r.b)+MaxName+10+len(rr.Data)+optLen > MaxMessage {
		r.leaveOutOf(s, rr.Owner, rr.Type)
		return
	}
	r.section = s
	r.count[s]++
	r.appendName(c, rr.Owner, true)
	r.b = append16(r.b, rr.Type)
	r.b = append16(r.b, ClassIN)
	r.b = append32(r.b, rr.TTL)
	r.b = append16(r.b, 0)
	at := len(r.b)
	head, names := namesToCompress(rr.Type)
	if len(rr.Data) < head {
		names = 0
	}
	rest := rr.Data
	if names > 0 {
		r.b, rest = append(r.b, rest[:head]...), rest[head:]
	}
	for range names {
		n := skipName(rest, 0)
		if n < 0 {
			break
		}
		r.appendName(c, rest[:n], false)
		rest = rest[n:]
	}
	r.b = append(r.b, rest...)
	put16(r.b[at-2:], uint16(len(r.b)-at))
}

// namesToCompress returns how many names in RDATA of type t are compressed, and the bytes before
// them.
func namesToCompress(t uint16) (head, names int) {
	switch t {
	case TypeNS, TypeCNAME, TypePTR:
		return 0, 1
	case TypeMX:
		return 2, 1
	case TypeSOA:
		return 0, 2
	}
	return 0, 0
}

// appendName writes name with a pointer for the longest part of it that is in r already. With
// fold that part may differ in case.
func (r *Reply) appendName(c *Compression, name []byte, fold bool) {
	for len(name) > 1 {
		if at := r.findName(c, name, fold); at > 0 {
			r.b = append16(r.b, 0xC000|uint16(at))
			return
		}
		if c.n < maxCompressed && len(r.b) <= maxPointed {
			c.at[c.n], c.size[c.n] = uint16(len(r.b)), uint8(len(name))
			c.n++
		}
		n := 1 + int(name[0])
		r.b = append(r.b, name[:n]...)
		name = name[n:]
	}
	r.b = append(r.b, 0)
}

// findName returns the offset of name in the question or in c, 0 if it is in neither.
func (r *Reply) findName(c *Compression, name []byte, fold bool) int {
	for at, left := HeaderLen, r.q.nameLen; left >= len(name); {
		if left == len(name) {
			if r.hasName(at, name, fold) {
				return at
			}
			break
		}
		n := 1 + int(r.b[at])
		at, left = at+n, left-n
	}
	for i := range c.n {
		if int(c.size[i]) == len(name) && r.hasName(int(c.at[i]), name, fold) {
			return int(c.at[i])
		}
	}
	return 0
}

// hasName reports whether the name at off, which is well-formed, is name.
func (r *Reply) hasName(off int, name []byte, fold bool) bool {
	for at := 0; at < len(name); {
		if r.b[off]&0xC0 == 0xC0 {
			off = int(u16(r.b[off:]) & 0x3FFF)
			continue
		}
		n := 1 + int(r.b[off])
		if n > len(name)-at || !equalLabel(r.b[off:off+n], name[at:at+n], fold) {
			return false
		}
		at, off = at+n, off+n
	}
	return true
}

// equalLabel compares labels of the same length, without regard to case if fold is set. Length
// bytes are no letters.
func equalLabel(a, b []byte, fold bool) bool {
	if !fold {
		return string(a) == string(b)
	}
	for i := range a {
		if lower[a[i]] != lower[b[i]] {
			return false
		}
	}
	return true
}

// Canonical compares the names a and b in the canonical order (RFC 4034, 6.1): negative if a
// comes first, 0 if they are equal. Both are in lower case and wire form.
func Canonical(a, b []byte) int {
	var ats, bts [MaxName/2 + 1]uint8
	i, j := labelStarts(&ats, a), labelStarts(&bts, b)
	for i > 0 && j > 0 {
		i, j = i-1, j-1
		x, y := label(a, int(ats[i])), label(b, int(bts[j]))
		switch {
		case string(x) < string(y):
			return -1
		case string(x) > string(y):
			return 1
		}
	}
	return i - j
}

// labelStarts writes the offsets of name's labels to at, and returns their number.
func labelStarts(at *[MaxName/2 + 1]uint8, name []byte) (n int) {
	for off := 0; off < len(name) && name[off] != 0 && n < len(at); off += 1 + int(name[off]) {
		at[n] = uint8(off)
		n++
	}
	return n
}

// label returns the label at off without its length.
func label(name []byte, off int) []byte { return name[off+1 : off+1+int(name[off])] }
