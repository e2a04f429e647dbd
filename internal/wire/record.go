package wire

// Record is where one resource record stands in a message.
type Record struct {
	// Start is the offset of the owner name, Data that of the RDATA, End the
	// one behind it.
	Start, Data, End int
	Type, Class      uint16
	TTL              uint32
}

// ttlOffset is where the record's TTL stands: four bytes and the RDLENGTH
// before its RDATA.
func (r Record) ttlOffset() int { return r.Data - 6 }

// readRecord reads the record at off; ok is false if it leaves msg.
func readRecord(msg []byte, off int) (r Record, ok bool) {
	r.Start = off
	off = skipName(msg, off)
	if off < 0 || off+10 > len(msg) {
		return r, false
	}
	r.Type = u16(msg[off:])
	r.Class = u16(msg[off+2:])
	r.TTL = u32(msg[off+4:])
	r.Data = off + 10
	r.End = r.Data + int(u16(msg[off+8:]))
	return r, r.End <= len(msg)
}

// rdataNames says, for the types whose RDATA may hold compressed names (RFC
// 3597, section 4), how the RDATA is laid out: bytes before the names, the
// number of names, bytes behind them. tail -1: anything.
var rdataNames = map[uint16]struct{ head, names, tail int }{
	TypeNS:    {0, 1, 0},
	3:         {0, 1, 0}, // MD
	4:         {0, 1, 0}, // MF
	TypeCNAME: {0, 1, 0},
	TypeSOA:   {0, 2, 20},
	7:         {0, 1, 0}, // MB
	8:         {0, 1, 0}, // MG
	9:         {0, 1, 0}, // MR
	TypePTR:   {0, 1, 0},
	14:        {0, 2, 0}, // MINFO
	TypeMX:    {2, 1, 0},
	17:        {0, 2, 0},   // RP
	18:        {2, 1, 0},   // AFSDB
	21:        {2, 1, 0},   // RT
	TypeSIG:   {18, 1, -1}, // SIG
	26:        {2, 2, 0},   // PX
	30:        {0, 1, -1},  // NXT
	TypeSRV:   {6, 1, 0},
	36:        {2, 1, 0}, // KX
	39:        {0, 1, 0}, // DNAME
}

// rdataLen is the RDATA length of the types that have a fixed one.
var rdataLen = map[uint16]int{TypeA: 4, TypeAAAA: 16}

// checkRdata reports whether r's RDATA is what its type says, as far as a
// client could trip over it: fixed sizes, and names that end, don't loop and
// don't leave the RDATA.
func checkRdata(msg []byte, r Record) bool {
	if n, ok := rdataLen[r.Type]; ok {
		return r.End-r.Data == n
	}
	shape, ok := rdataNames[r.Type]
	if !ok {
		return true
	}
	var buf [MaxName]byte
	off := r.Data + shape.head
	for range shape.names {
		n, end := unpackName(buf[:], msg, off)
		if n == 0 || end > r.End {
			return false
		}
		off = end
	}
	return shape.tail < 0 || r.End-off == shape.tail
}
