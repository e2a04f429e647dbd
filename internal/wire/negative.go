package wire

// Deny makes r the denial of its name that follows from p, the denial of the same name or of
// one above it: NXDOMAIN with p's SOA and the TTL ttl in seconds (RFC 8020, 2; RFC 2308, 3).
// The flags are taken from p, except AD, because nobody has validated them for this name. Deny
// returns false and leaves r unchanged if p has answers, or no SOA of a zone that the denied
// name is in. It allocates only to grow r's buffer.
func (r *Reply) Deny(p Packed, ttl uint32) bool {
	msg := p.message()
	denied := p.Name()
	flags := u16(msg[2:])
	if Rcode(flags&rcodeMask) != NXDomain || p.Answers() > 0 || !Under(r.q.Name(), Name(denied)) {
		return false
	}
	for it := recordsOf(msg, HeaderLen+len(denied)+4); it.next() && it.section == Authority; {
		if it.Type == TypeSOA && it.Class == ClassIN {
			if !r.writeDenial(msg, it.Record, denied, ttl) {
				return false
			}
			r.flags, r.rcode = flags&(flagAA|flagRA), NXDomain
			return true
		}
	}
	return false
}

// writeDenial makes the SOA of msg, the denial of the name denied, the only record of r.
func (r *Reply) writeDenial(msg []byte, soa Record, denied []byte, ttl uint32) bool {
	left := newReadBudget(len(msg)) // for three names
	var zone [MaxName]byte
	n, _ := unpackName(zone[:], msg, soa.Start, &left)
	if n == 0 || len(denied) < n || string(denied[len(denied)-n:]) != string(zone[:n]) || !Under(denied, Name(zone[:n])) {
		return false
	}
	var rdata [2*MaxName + soaNumbers]byte
	mname, off := unpackName(rdata[:MaxName], msg, soa.Data, &left)
	if mname == 0 {
		return false
	}
	rname, off := unpackName(rdata[mname:mname+MaxName], msg, off, &left)
	if rname == 0 || off+soaNumbers != soa.End {
		return false
	}
	end := mname + rname + copy(rdata[mname+rname:], msg[off:soa.End])
	r.Reset()
	r.Add(Authority, r.Suffix(n), TypeSOA, ttl, rdata[:end])
	return true
}

// soaNumbers is the size of what follows the names in an SOA.
const soaNumbers = 20
