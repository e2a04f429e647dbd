// Package authority is the seam between the path of queries and the packages that serve zones with authority: zones of
// files and primary servers (server/zonefile), zone transfers (server/transfer) and signatures (server/tsig).
//
// The path knows them as [Zones], [Transfers] and [Verifier] only. So one line of the agent's table of directives decides
// whether they are linked into the program. All are safe for concurrent use, except a [Stream] and a [Signer], which
// belong to one query.
package authority

import (
	"context"
	"iter"
	"net/netip"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Outcome is the result of [Zones.Answer].
type Outcome uint8

const (
	// NotMine: the next step has to answer; the reply is unchanged.
	NotMine Outcome = iota
	// Answered: the reply is complete.
	Answered
	// Leads: the reply has aliases that lead to a name which the zone does not answer. See [Lead].
	Leads
	// NotLoaded: the zone's data are not there yet, or have expired; the reply is SERVFAIL.
	NotLoaded
)

// Zones are the zones of one directive of a server block.
type Zones interface {
	// Answer writes the answer to q into r. Only with [Leads] it allocates.
	Answer(q *wire.Query, r *wire.Reply) (Outcome, Lead)
	// Contains reports whether name, in lower case, is in one of the zones.
	Contains(name []byte) bool
	// Data returns the data of the zone with this name, nil if they are not loaded. served is false if there is no
	// such zone. A change makes other data, so the caller may read these for as long as a transfer takes.
	Data(origin wire.Name) (data Data, served bool)
	// Notify triggers a check of the zone with this name, if from is one of its primary servers. It does not block.
	Notify(origin []byte, from netip.Addr) NotifyResult
}

// Data are a version of a zone, which does not change.
type Data interface {
	SOA() wire.RR
	// All iterates over the records, which are valid as long as the version is in use.
	All() iter.Seq[wire.RR]
}

// Lead is the rest of an answer whose aliases lead out of the zone. The zero value is none.
type Lead struct {
	// Target is the name that the aliases lead to, in wire form and lower case.
	Target wire.Name
	Zone   Completer
}

// Completer is the zone of a [Lead].
type Completer interface {
	// Complete completes r, whose answers are the aliases and those of the target, for the rcode that the target has and
	// its number of answers.
	Complete(q *wire.Query, r *wire.Reply, rcode wire.Rcode, answers int)
}

// NotifyResult says what becomes of a NOTIFY message (RFC 1996).
type NotifyResult uint8

const (
	// NotSecondary: the zone is not transferred from a primary server.
	NotSecondary NotifyResult = iota
	// Notified: a check of the serial has been triggered.
	Notified
	// Ignored: the sender is not one of the zone's primary servers.
	Ignored
)

// Transfers answers queries for whole zones: the transfer directives of a server block.
type Transfers interface {
	// Answer answers t in r. If t.Wait is nil, it does not block.
	Answer(t Transfer, r *wire.Reply) TransferResult
}

// Transfer is a query of type AXFR or IXFR.
type Transfer struct {
	*wire.Query
	Client netip.AddrPort
	// Streams says that the client takes a sequence of messages.
	Streams bool
	// Wait permits waiting until it ends; nil: the answer must not wait.
	Wait context.Context
	// Dry says that the query is only explained: nothing begins, and nothing is counted.
	Dry bool
	// Find returns the zone with this name, nil if the block has none. The error is why it can't be sent.
	Find func(origin wire.Name) (*Source, error)
}

// Source is a zone that can be transferred.
type Source struct {
	SOA wire.RR
	// Load returns the data to send, which may be of a later version. It may block until ctx ends.
	Load func(ctx context.Context) (Data, error)
}

// TransferResult is what became of a [Transfer].
type TransferResult struct {
	Outcome TransferOutcome
	// Why says what the reply is, for `nodens explain`.
	Why string
	// Stream makes the messages after the reply; nil: there are none.
	Stream Stream
}

// TransferOutcome is the result of [Transfers.Answer].
type TransferOutcome uint8

const (
	// TransferNotMine: the next step has to answer; the reply is unchanged.
	TransferNotMine TransferOutcome = iota
	// TransferAnswered: the reply is complete.
	TransferAnswered
	// TransferWaits: the answer takes a wait that is not permitted.
	TransferWaits
)

// Stream is a transfer whose first message was the reply. [Stream.End] must be called.
type Stream interface {
	// Next writes the next message to r, in the buffer of the last one. It returns false if there is none, or the transfer
	// must end early.
	Next(ctx context.Context, last []byte, q *wire.Query, r *wire.Reply) bool
	// End ends the transfer. sent says that all messages so far were written. It returns false if the client does not
	// have the whole zone, so that its connection must be closed.
	End(sent bool) (complete bool)
}

// Verifier verifies the signatures of queries (RFC 8945).
type Verifier interface {
	// Verify returns what signs the reply to q, nil if it is not signed. The query is answered with refusal unless that is
	// [wire.NoError]; why says why.
	Verify(q *wire.Query) (s Signer, refusal wire.Rcode, why string)
}

// Signer signs the replies to one query.
type Signer interface {
	// Len returns the number of bytes by which Sign enlarges a message.
	Len() int
	// Sign appends the signature to a message.
	Sign(message []byte, now time.Time) []byte
}
