package harness

import (
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// The sizes of the short form. A set has more names than a workload of it has sockets, so that
// each socket asks something.
const (
	shortNames  = 16
	shortPasses = 4 // over the names of a set, for dnsperf
	shortCount  = shortPasses * shortNames
	shortRate   = 1000
	// shortPatience is longer than any machine takes over an answer that comes.
	shortPatience = time.Minute
)

// Rate returns how many queries a second are sent where a run that measures sends n.
func (p Plan) Rate(n int) int {
	if p.Short {
		return min(n, shortRate)
	}
	return n
}

// Number returns how many of something a run takes that otherwise takes n.
func (p Plan) Number(n int) int {
	if p.Short {
		return min(n, shortNames)
	}
	return n
}

// Wait returns how long a run waits that otherwise waits for d.
func (p Plan) Wait(d time.Duration) time.Duration {
	if p.Short {
		return min(d, p.Length)
	}
	return d
}

// Patience is how long a stream of package load waits for an answer; 0 is its own default.
func (p Plan) Patience() time.Duration {
	if p.Short {
		return shortPatience
	}
	return 0
}

// Sized returns the workloads with as many names as the form of the run has.
func (p Plan) Sized(list []Workload) []Workload {
	list = slices.Clone(list)
	for i := range list {
		list[i].QuerySet = p.sizedSet(list[i].QuerySet)
	}
	return list
}

func (p Plan) sizedSet(q QuerySet) QuerySet {
	if !p.Short {
		return q
	}
	q.Size = p.Number(q.Count())
	if q.Names != nil {
		q.Names = q.Names[:min(q.Size, len(q.Names))]
	}
	return q
}

// Job returns the job of a measurement. In the short form its streams end after a number of queries
// and not after a time, and wait for the answers as long as it takes.
func (p Plan) Job(j load.LoopJob) load.LoopJob {
	j.Length = p.Length
	if !p.Short {
		return j
	}
	j.Length, j.Streams = 0, slices.Clone(j.Streams)
	for i := range j.Streams {
		s := &j.Streams[i]
		s.Rate, s.Count, s.Patience = p.Rate(s.Rate), shortCount, p.Patience()
	}
	return j
}

// RunAll runs the functions one after the other until one fails; in the short form side by side. It
// returns the first error of the list.
func (p Plan) RunAll(list []func() error) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, f := range list {
		if p.Short {
			wg.Go(func() { errs[i] = f() })
		} else if err := f(); err != nil {
			return err
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
