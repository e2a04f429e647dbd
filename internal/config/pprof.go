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
	*x = Pprof{Addr: "localhost:6053"}
	if p.count(s, 0, 1, "pprof [ADDRESS]") && len(s.args()) == 1 {
		x.Addr, _ = p.listen(s.args()[0])
	}
	p.body(s, options{
		"block": {usage: "block [RATE]", most: 1, set: func(args []token) {
			x.BlockRate = 1
			if len(args) > 0 {
				n, _ := p.number(args[0], 0, math.MaxInt32)
				x.BlockRate = int(n)
			}
		}},
	})
}
