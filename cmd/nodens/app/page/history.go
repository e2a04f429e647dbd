package page

import "time"

const (
	// HistoryInterval is the time between two samples, and HistoryLength the number of samples of an
	// hour.
	HistoryInterval = 10 * time.Second
	HistoryLength   = 360
	// MaxUpstreams is the number of upstreams that a [Sample] counts one by one.
	MaxUpstreams = 6
)

// History is the last hour of an agent, or the time since its start if that is less.
type History struct {
	// End is when the last sample was taken.
	End time.Time
	// Samples are the samples, the oldest first, HistoryLength at most.
	Samples []Sample
	// Upstreams are the addresses of the upstreams that samples count one by one.
	Upstreams []string
}

// Sample has the queries of one HistoryInterval.
type Sample struct {
	// Cluster, Cache, Upstream and Others are the numbers of replies by their source. Kernel is the
	// number of them that were made in the kernel.
	Cluster, Cache, Upstream, Others, Kernel uint32
	NXDomain, ServFail                       uint32
	// P50 and P99 are percentiles of the time to a reply, in seconds; 0 without replies.
	P50, P99 float32
	// Exchanges are the exchanges with each of [History.Upstreams], and at the end with all others.
	Exchanges [MaxUpstreams + 1]uint32
}

// queries returns the number of queries.
func (s *Sample) queries() float64 {
	return float64(s.Cluster) + float64(s.Cache) + float64(s.Upstream) + float64(s.Others)
}
