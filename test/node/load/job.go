package load

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Job is what a client asks. All questions are of type A.
type Job struct {
	// Servers are asked in turn.
	Servers []netip.AddrPort
	// Local is the address in answers of the agent, and Cluster that in answers of the
	// cluster's DNS. They may be the same if TTLs differ: the agent's are TTL seconds or
	// more.
	Local, Cluster netip.Addr
	TTL            uint32
	// Names is how many names there are, below Zone, a name with a dot at its end. One
	// question in Fresh is for a name that nobody has asked for before; 0: none is.
	Names, FreshEvery int
	Zone              string
	// Timeout is how long an answer may take; one that comes later is lost. 0 is
	// usualPatience.
	Timeout time.Duration
	// Duration is how long questions are asked, unless the client is stopped earlier.
	Duration time.Duration

	// Rate is how many questions a second are asked over UDP. They come from Sockets
	// sockets in turn, each of which is replaced by one with another port after Reuse
	// questions.
	Rate, Sockets, QueriesPerSocket int
	// Streams is the number of TCP connections that stay open, on each of which
	// StreamRate questions a second are asked, one after the other.
	Streams, StreamRate int
	// OneShots is how many questions a second come over a TCP connection of their own.
	OneShots int
}

const (
	// defaultTimeout is less than the five seconds that resolvers in pods wait, and more
	// than a name takes that has to be asked for far away.
	defaultTimeout = 2 * time.Second
	// maxQuestions bounds the memory of a report: half an hour at ten thousand a second.
	maxQuestions = 20_000_000
	// maxSockets keeps the client, with those that still wait for late answers, below
	// the usual limit of 4,096 descriptors in a container.
	maxSockets = 1024
	// maxQueriesPerSocket is the number of IDs that a socket's questions have.
	maxQueriesPerSocket = 1 << 16
)

// check says what is wrong with the job.
func (j Job) check() error {
	switch {
	case len(j.Servers) == 0:
		return errors.New("load: no server to ask")
	case !strings.HasSuffix(j.Zone, ".") || len(j.Zone) > 200:
		return fmt.Errorf("load: the zone %q; it ends with a dot and has 200 bytes at most", j.Zone)
	case j.Names < 1 || j.Duration <= 0:
		return errors.New("load: it takes at least one name and some time")
	case j.Rate > 0 && (outOfRange(j.Sockets, maxSockets) || outOfRange(j.QueriesPerSocket, maxQueriesPerSocket)):
		return fmt.Errorf("load: %d sockets for %d questions each; 1 to %d and 1 to %d are possible", j.Sockets, j.QueriesPerSocket, maxSockets, maxQueriesPerSocket)
	case j.Duration.Seconds()*float64(j.Rate) > maxQuestions:
		return fmt.Errorf("load: more than %d questions", maxQuestions)
	}
	return nil
}

func outOfRange(n, most int) bool { return n < 1 || n > most }

// name is that of the n-th question of a client.
func (j Job) name(n int) string {
	if j.FreshEvery > 0 && n%j.FreshEvery == j.FreshEvery-1 {
		return fmt.Sprintf("fresh-%d.%s", n, j.Zone)
	}
	// A prime step: names come in an order that is not that of sockets.
	return fmt.Sprintf("name-%d.%s", n*7919%j.Names, j.Zone)
}
