package upstream

import (
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// attempt is what an exchange knows about one of its queries.
type attempt struct {
	server       *server
	via          transport
	rtt          *rtt
	started      time.Time // when this server was first asked
	sent         time.Time // when the query was last sent
	withoutEDNS  bool      // send the query without an OPT record
	truncated    wire.Response
	hasTruncated bool // truncated holds the UDP reply
	cut          bool // the UDP reply could not be read to its end; truncated is made from its header
	parsed       wire.Response
	isParsed     bool // parsed holds the reply

	nextCheck     time.Time     // when to check it next; zero: never
	checkInterval time.Duration // time between the last checks; 0 before the first
	delays        delays
	isHedge       bool // sent because another server was late, or its own first reply
	repeats       bool // a hedge to the server that is late itself
	paid          bool // a hedge that has cost budget
	slowCounted   bool // already counted as slower than the 95th percentile
	unanswered    bool // already counted as unanswered
	hedged        bool // another server was asked because this one is late
	lost          bool // the query or its reply was lost: a repetition was answered in the usual time

	// recorded is its number in the exchange's recording, 0 for none; truncatedRecord is that with the truncated reply.
	recorded, truncatedRecord int
	retry                     string // see [Attempt.Retry]
}
