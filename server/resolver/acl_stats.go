package resolver

import "github.com/nodens-dns/nodens/internal/wire"

// verdictKey identifies a counter: queries on which a rule of zone came to verdict.
type verdictKey struct {
	zone    wire.Name
	verdict verdicts
}

// mark counts the verdicts on r. c is locked.
func (c *counters) mark(r *Request) {
	if r.verdicts&localhost != 0 {
		c.localhost++
	}
	verdict := r.verdicts & anyVerdict
	if verdict == 0 || verdict == hidden { // which no ACL has decided
		return
	}
	c.countVerdict(verdictKey{r.rule, verdict}, 1)
}

// countVerdict counts n queries with that verdict. c is locked.
func (c *counters) countVerdict(k verdictKey, n uint64) {
	if c.verdicts == nil {
		c.verdicts = make(map[verdictKey]uint64)
	}
	c.verdicts[k] += n
}

// Localhosts returns the number of queries for names below localhost, or that begin with it.
func (s *Stats) Localhosts() uint64 {
	var sum uint64
	s.each(func(c *counters) { sum += c.localhost })
	return sum
}

// Mapped returns the number of queries answered with synthesized addresses.
func (s *Stats) Mapped() uint64 {
	var sum uint64
	s.each(func(c *counters) {
		for rc := range c.responses {
			sum += c.responses[rc][fromDNS64]
		}
	})
	return sum
}

// Verdicts are numbers of queries by the verdict of an ACL and the zone of its rule. CoreDNS
// has no zone label for allowed queries.
type Verdicts struct {
	Allowed                    uint64
	Blocked, Filtered, Dropped map[wire.Name]uint64 // nil if there are none
}

// Verdicts returns the verdicts so far.
func (s *Stats) Verdicts() (v Verdicts) {
	s.each(func(c *counters) {
		for k, n := range c.verdicts {
			switch k.verdict {
			case blocked:
				v.Blocked = plus(v.Blocked, k.zone, n)
			case filtered:
				v.Filtered = plus(v.Filtered, k.zone, n)
			case dropped:
				v.Dropped = plus(v.Dropped, k.zone, n)
			default:
				v.Allowed += n
			}
		}
	})
	return v
}

func plus(m map[wire.Name]uint64, zone wire.Name, n uint64) map[wire.Name]uint64 {
	if m == nil {
		m = make(map[wire.Name]uint64)
	}
	m[zone] += n
	return m
}
