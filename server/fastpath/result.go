package fastpath

// results are the names of the program's results.
var results = [...]string{
	programResultANSWERED: "answered",
	programResultMISS:     "miss",
	programResultSHAPE:    "unsupported",
	programResultEXPIRED:  "expired",
	programResultCHANGED:  "outdated",
	programResultLAPSED:   "heartbeat_expired",
	programResultSTRANGER: "unknown_client",
	programResultMOVED:    "client_moved",
	programResultRENEWAL:  "client_recheck",
	programResultBUSY:     "busy",
	programResultFAILED:   "failed",
	programResultLIMITED:  "client_limit",
	programResultEXCEEDED: "client_limit_passed",
}

// Counters returns the sums over all CPUs.
func (p *Program) Counters() Counters {
	c := Counters{Results: make(map[string]uint64, len(results)), SamplesDropped: p.count(programResultDROPPED)}
	for i, name := range results {
		c.Results[name] = p.count(programResult(i))
	}
	return c
}

// count returns one counter, summed over all CPUs.
func (p *Program) count(at programResult) (n uint64) {
	var each []uint64
	if p.objects.Counters.Lookup(uint32(at), &each) != nil {
		return 0
	}
	for _, v := range each {
		n += v
	}
	return n
}
