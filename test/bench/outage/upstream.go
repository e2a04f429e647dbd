package outage

import (
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// upstreamOptions configure an upstream.
type upstreamOptions struct {
	fakedns.Options
	// Delay is the time from a query to its answer.
	Delay time.Duration
	// TTL is the TTL of the answers in seconds.
	TTL uint32
}

// openUpstream starts an upstream that answers every query of type A with one address, and all
// others with NODATA. The caller closes it.
func openUpstream(o upstreamOptions) (*fakedns.Server, error) {
	return fakedns.Open(func(q *fakedns.Query) {
		m := fakedns.Address(q.Msg, o.TTL, "192.0.2.1")
		if len(m.Answer) == 0 {
			m = fakedns.Negative(q.Msg, dns.RcodeSuccess, o.TTL)
		}
		if q.IsEdns0() != nil {
			m.SetEdns0(dns.DefaultMsgSize, false)
		}
		q.ReplyAfter(o.Delay, m)
	}, o.Options)
}
