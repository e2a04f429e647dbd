package wire

// Name is the name that p is the reply about, lower case and in wire form. p is not the
// zero Packed, and the bytes are p's.
func (p Packed) Name() []byte {
	end := HeaderLen
	for p.data[end] != 0 {
		end += 1 + int(p.data[end])
	}
	return p.data[HeaderLen : end+1]
}

// Answers is the number of records in p's answer section. p is not the zero Packed.
func (p Packed) Answers() int { return int(u16(p.data[6:])) }

// Deny makes r the denial of its name by p, the denial of the same name or of one above
// it: NXDOMAIN with the SOA of p (RFC 8020, 2; RFC 2308, 3), whose TTL becomes ttl, with
// the flags of p but AD, which nobody has validated for this name. It is false, and r
// untouched, where p has answers, or no SOA of a zone that the denied name is in.
// Nothing is allocated but what r's buffer needs to grow.
func (r *Reply) Deny(p Packed, ttl uint32) bool {
	msg := p.message()
	denied := p.Name()
	flags := u16(msg[2:])
	if Rcode(flags&rcodeMask) != NXDomain || p.Answers() > 0 || !Under(r.q.Name(), Name(denied)) {
		return false
	}
	off := HeaderLen + len(denied) + 4
	for range u16(msg[8:]) {
		rr, ok := readRecord(msg, off)
		if !ok {
			return false
		}
		if off = rr.End; rr.Type == TypeSOA && rr.Class == ClassIN {
			return r.writeDenial(msg, rr, denied, ttl) && r.setDenialHeader(flags)
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

// setDenialHeader gives r the rest of a denial.
func (r *Reply) setDenialHeader(flags uint16) bool {
	r.flags, r.rcode = flags&(flagAA|flagRA), NXDomain
	return true
}
