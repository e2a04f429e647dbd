package config

import "math"

// PprofPath is the path of the profiles, as `go tool pprof` expects it.
const PprofPath = "/debug/pprof/"

// Pprof is `pprof [ADDRESS] { block [RATE] }`: profiles over HTTP.
type Pprof struct {
	Addr string // "localhost:6053" by default
	// BlockRate is the sampling rate of the block profile: one sample for as many
	// nanoseconds of blocking; 0: none.
	BlockRate int
}

func (x *Pprof) parse(p *parser, s statement) {
	x.Addr = p.listenArgument(s, "pprof [ADDRESS]", "localhost:6053")
	p.body(s, opt("block [RATE]", func(args []token) {
		if x.BlockRate = 1; len(args) > 0 {
			toNumber(p, &x.BlockRate, 0, math.MaxInt32)(args)
		}
	}))
}
