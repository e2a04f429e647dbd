package clients

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/sketch"
)

// Topic is what a report about names is about.
type Topic uint8

const (
	// TopNames are the names that are asked for most.
	TopNames Topic = iota
	// TopClientNames are names with the client that asks for them.
	TopClientNames
	// TopWaste are the parents of names that only a search path makes, such as
	// example.com.svc.cluster.local for www.example.com.svc.cluster.local.
	TopWaste
	// TopFailing are names whose answer was SERVFAIL, with the reason.
	TopFailing
	// TopSlow are names whose answer took [Options.Slow] or longer, with where the time went.
	TopSlow
	// TopBypass are other DNS servers with the client that sends packets to them, see [Table.CountBypass].
	TopBypass
	// TopDenied are names that a policy denies to the client that asks for them.
	TopDenied
	numTopics
)

// Cause is why a query failed, or what a slow one waited for longest.
type Cause uint8

const (
	// LocalCause: none of the others; the agent itself.
	LocalCause Cause = iota
	// ViewCause: the view of the cluster had to load objects, or did not have them.
	ViewCause
	// UpstreamCause: an upstream took the time, answered SERVFAIL, or could not be asked.
	UpstreamCause
	// HedgeCause: an upstream took the time, and another one was asked because it was late.
	HedgeCause
	// QueueCause: too many queries waited.
	QueueCause
	// TimeoutCause: no upstream answered in time.
	TimeoutCause
	// LoopCause: forwarding is stopped because queries come back from the upstreams.
	LoopCause
)

// String returns a word for reports.
func (c Cause) String() string {
	return [...]string{"local", "view", "upstream", "hedge", "queue", "timeout", "loop"}[c]
}

// maxSamples is the number of queries of a second that a stripe adds to the tables of names. When there are more,
// it adds a random part of them, with a weight that compensates for the rest: half as many as before after
// each maxSamples, and in the next second a part that follows from the rate of this second.
const maxSamples = 1000

// sampler chooses the queries of a stripe that are added to the tables of names.
type sampler struct {
	began  time.Duration // the second in which queries are counted
	seen   uint32        // queries in it
	chosen uint32        // of them, since shift has changed
	shift  uint8         // one in 2^shift is chosen
	skip   uint32        // queries until the next one
}

// sample returns the weight of a query at now; 0 if it is not chosen.
func (s *sampler) sample(now time.Duration) (weight uint64) {
	if now-s.began >= time.Second {
		s.shift = min(uint8(bits.Len32((max(s.seen, 1)-1)/maxSamples)), maxShift)
		s.began, s.seen, s.chosen = now, 0, 0
		s.skip = min(s.skip, 1<<s.shift)
	}
	s.seen++
	if s.skip > 0 {
		s.skip--
		return 0
	}
	weight = 1 << s.shift
	if s.chosen++; s.chosen == maxSamples && s.shift < maxShift {
		s.chosen = 0
		s.shift++
	}
	if s.shift > 0 { // a fixed distance could meet the same name of a periodic pattern each time
		s.skip = rand.Uint32N(2<<s.shift - 1)
	}
	return weight
}

// choose says whether q is for the tables of names: with a weight if it was chosen, or because it failed or is
// slow.
func (s *stripe) choose(q *Query, isSlow bool) (weight uint64, chosen bool) {
	if len(q.Name) == 0 {
		return 0, false
	}
	weight = s.sampler.sample(q.Now)
	return weight, weight > 0 || isSlow || q.failed()
}

// maxShift is enough for a billion queries a second.
const maxShift = 20

// names has a table for each topic. It is safe for concurrent use.
type names struct {
	mu      sync.Mutex                 // before the lock of a stripe
	topics  [numTopics]*sketch.Windows // nil: TopBypass or TopDenied of a table that has counted none
	key     []byte
	stripes []stripe // have the samples that are to be added
	// until is the end of the current halves of the shortest windows.
	until time.Duration
	// recent are the last results of clientNames, none if nobody has asked for a while.
	recent [numWindows]recentNames
}

// recentNames are the keys of TopClientNames at one time.
type recentNames struct {
	at     time.Duration
	report sketch.Report
}

// topNamesAge is the age of the names in [Table.Top] at which they are read again. That takes longer than the rest
// of a report.
const topNamesAge = 10 * time.Second

func newNames(now time.Duration, stripes []stripe) *names {
	n := &names{key: make([]byte, 0, sketch.MaxKeyLen), stripes: stripes}
	n.flush(now)
	for i := range TopBypass {
		n.topics[i] = sketch.NewWindows(now)
	}
	return n
}

// addLocked adds q of the client with the identity number id. weight is 0 if q was not sampled: then it counts
// only if it failed or was slow. n.mu is held.
func (n *names) addLocked(id uint32, q *Query, weight uint64, isSlow bool) {
	if weight > 0 {
		n.topics[TopNames].Add(q.Now, q.Name, weight)
		n.key = append(binary.BigEndian.AppendUint32(n.key[:0], id), q.Name...)
		n.topics[TopClientNames].Add(q.Now, n.key, weight)
		if q.Waste { // it has a label, at least
			n.topics[TopWaste].Add(q.Now, q.Name[1+q.Name[0]:], weight)
		}
	}
	if q.Denied && weight > 0 {
		n.addClient(TopDenied, q.Now, id, string(q.Name), weight)
	}
	if q.failed() {
		n.addCause(TopFailing, q)
	}
	if isSlow {
		n.addCause(TopSlow, q)
	}
}

// addBypass adds packets of the client with the identity number id to a server.
func (n *names) addBypass(now time.Duration, id uint32, server string, packets uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addClient(TopBypass, now, id, server, packets)
}

// addClient adds text of a client to a topic that few tables have. n.mu is held.
func (n *names) addClient(topic Topic, now time.Duration, id uint32, text string, weight uint64) {
	if n.topics[topic] == nil {
		n.topics[topic] = sketch.NewWindows(now)
	}
	n.key = append(binary.BigEndian.AppendUint32(n.key[:0], id), text...)
	n.topics[topic].Add(now, n.key, weight)
}

// hasClient reports whether the rows of a topic have a client.
func (t Topic) hasClient() bool { return t == TopClientNames || t == TopBypass || t == TopDenied }

func (n *names) addCause(topic Topic, q *Query) {
	n.key = append(append(n.key[:0], byte(q.Cause)), q.Name...)
	n.topics[topic].Add(q.Now, n.key, 1)
}

// advance ends the windows that have ended, so that addLocked need not.
func (n *names) advance(now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flush(now)
	for _, w := range n.topics {
		if w != nil {
			w.Advance(now)
		}
	}
	for i := range n.recent {
		if now-n.recent[i].at >= topNamesAge {
			n.recent[i] = recentNames{}
		}
	}
}

// clientNames returns the keys of TopClientNames at now, or of an earlier time that is less than age ago.
func (n *names) clientNames(now time.Duration, w Window, age time.Duration) sketch.Report {
	if age == 0 {
		return n.top(TopClientNames, now, w)
	}
	n.mu.Lock()
	recent := n.recent[w]
	n.mu.Unlock()
	if recent.report.Entries == nil || now-recent.at >= age {
		recent = recentNames{now, n.top(TopClientNames, now, w)}
		n.mu.Lock()
		n.recent[w] = recent
		n.mu.Unlock()
	}
	return recent.report
}

// top returns the keys of a topic, those with the highest counts first.
func (n *names) top(topic Topic, now time.Duration, w Window) sketch.Report {
	n.mu.Lock()
	n.flush(now) // it may be the first of the topic
	if n.topics[topic] == nil {
		n.mu.Unlock()
		return sketch.Report{}
	}
	s := n.topics[topic].Snapshot(now, w)
	n.mu.Unlock() // readers must not wait for Top
	return s.Top(math.MaxInt)
}

// NameCount is a row of a report about names.
type NameCount struct {
	// Name is in text form with the final dot. Of [TopWaste] it is the parent, of [TopBypass] the server.
	Name string
	// Kind, Pod and Addr are the client in [TopClientNames], [TopBypass] and [TopDenied]: whose the address was at the time of the
	// queries, and the address. Of (other) Addr is the zero Addr, and so it is of clients that are
	// not known any more, which are Unknown.
	Kind Kind
	Pod  Pod
	Addr netip.Addr
	// Cause is valid in [TopFailing] and [TopSlow].
	Cause Cause
	// Count is the number of queries, or an estimate where only a part was added. It is too high
	// by Error at most, apart from the error of the estimate.
	Count, Error uint64
}

// NameReport has the counts of names.
type NameReport struct {
	// Covered is the time that the counts are of.
	Covered time.Duration
	// Total is the number of queries of the topic. A name that is not in Names has at most Floor
	// of them.
	Total, Floor uint64
	// MaxWeight is the most queries that one counted query stands for. If it is above 1, counts are estimates:
	// the standard deviation of a count is the root of the count times MaxWeight at most.
	MaxWeight uint64
	// KernelSample says that the kernel's answers are included as a sample of one in so many; 0 if
	// there are none. Of [TopFailing], [TopSlow], [TopBypass] and [TopDenied] there are none.
	KernelSample int
	// Names are the names, and More is the number of those beyond the limit.
	Names []NameCount
	More  int
}

// idLen is the length of an identity's number in front of a name.
const idLen = 4
