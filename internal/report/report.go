// Package report has the replies of the agent's admin socket as types, and asks for them. The agent
// and the commands that show them share it; it knows nothing of either.
//
// Each reply is a JSON object that begins with a [Header]. docs/reference/admin-socket.md documents
// all fields. SchemaVersion changes when a field goes away or changes its meaning; a new field alone
// does not change it. Durations are seconds, times are RFC 3339 in UTC, lists are never null.
package report

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

// SchemaVersion is the version of the types in this package.
const SchemaVersion = 1

// DefaultSocketName is the name of the admin socket in the agent's hand-over directory.
const DefaultSocketName = "admin.sock"

// Header begins each reply.
type Header struct {
	SchemaVersion int `json:"schemaVersion"`
	// Node is the name of the Node object, "" if it is not known. Instance is another one for each
	// start of an agent.
	Node     string `json:"node"`
	Instance string `json:"instance"`
}

// Status is the reply to GET /status: how an agent is.
type Status struct {
	Header
	Version string `json:"version"`
	// Started is when the process started, ServingSince when it began to serve the node, or began
	// again after a hand-over that came back.
	Started      time.Time `json:"started"`
	ServingSince time.Time `json:"servingSince"`
	// ServedBy is who answers the node's queries, the agent first.
	ServedBy []Serving `json:"servedBy"`
	// Ready is what /ready says. Healthy is Ready and no Problems.
	Ready    bool      `json:"ready"`
	Healthy  bool      `json:"healthy"`
	Problems []Problem `json:"problems"`

	Config    Config   `json:"config"`
	Handover  Handover `json:"handover"`
	View      *View    `json:"view"` // null without a kubernetes directive
	Rates     Rates    `json:"rates"`
	Upstreams Counts   `json:"upstreams"`
	// ZonesDown are the zones of the forward directives whose servers are all down, the first 256 of them.
	ZonesDown  []string   `json:"zonesDown"`
	FailOpen   FailOpen   `json:"failOpen"`
	Restored   Restored   `json:"restored"`
	KernelPath KernelPath `json:"kernelPath"`
	Bypass     Bypass     `json:"bypass"`
	// Limits are how much of the agent's limits is in use, the highest share first.
	Limits []Limit `json:"limits"`
	// FairShares say which clients are limited.
	FairShares FairShares `json:"fairShares"`
	// Faults are the last warnings and errors in the log, the newest last.
	Faults []Fault `json:"faults"`
}

// Serving is one of those who answer the node's queries.
type Serving struct {
	// By is "agent"; "kernel", which answers repeated queries of pods; or "cluster DNS", which gets the
	// queries to addresses of Services while the agent's rules are not in place.
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// The values of [Serving.By].
const (
	ServedByAgent      = "agent"
	ServedByKernel     = "kernel"
	ServedByClusterDNS = "cluster DNS"
)

// Limit is how much of a limit is in use.
type Limit struct {
	// Name says what is limited. Of is the address or the server with the highest use if there is a
	// limit for each, else "".
	Name string `json:"name"`
	Of   string `json:"of"`
	// Used is what is in use, Bound the most that there may be; Unit is bytes or "".
	Used  int64  `json:"used"`
	Bound int64  `json:"bound"`
	Unit  string `json:"unit"`
	// Share is Used of Bound.
	Share float64 `json:"share"`
}

// NearLimit is the share of a limit from which it is shown as close to its end.
const NearLimit = 0.8

// Problem is something that keeps an agent from being healthy.
type Problem struct {
	// Code names the kind: the same in all versions, such as "view-stale". docs/reference/alerts.md lists them.
	Code     string `json:"code"`
	Severity string `json:"severity"` // "critical" or "warning", as of the alert about it
	Text     string `json:"text"`     // what is seen; it may have several lines
	Remedy   string `json:"remedy"`   // what the operator can do
}

// Reason returns the code as the reason of a condition or an Event of Kubernetes: UpstreamsDown for upstreams-down.
func (p Problem) Reason() string {
	var b strings.Builder
	for word := range strings.SplitSeq(p.Code, "-") {
		b.WriteString(strings.ToUpper(word[:min(1, len(word))]) + word[min(1, len(word)):])
	}
	return b.String()
}

// MakesUnready reports whether pods should not start with the problem: the Node's condition nodens.dev/DNSReady is False then.
func (p Problem) MakesUnready() bool { return p.Code == "not-ready" || p.Severity == "critical" }

// The reason and the message of the condition nodens.dev/DNSReady without a problem, and the reason for [Restored].
const (
	ReasonDNSReady  = "DNSReady"
	MessageDNSReady = "the agent answers the node's queries"
	ReasonRestored  = "RulesRestored"
)

// String returns the text and the remedy.
func (p Problem) String() string { return p.Text + "; " + p.Remedy }

// Config is the configuration in force.
type Config struct {
	Path   string    `json:"path"`
	Hash   string    `json:"hash"`
	Loaded time.Time `json:"loaded"`
	// Rejected: the files hold another configuration, which is invalid. LastRejected is the last
	// such configuration, null if there was none; it stays when the files are valid again.
	Rejected     bool       `json:"rejected"`
	LastRejected *Rejection `json:"lastRejected"`
	// Awaited is a valid configuration that waits for its view of the cluster; null for none.
	Awaited *Awaited `json:"awaited"`
}

// Awaited is a configuration that comes into force once its views of the cluster are synced.
type Awaited struct {
	Since time.Time `json:"since"`
	Hash  string    `json:"hash"`
}

// Rejection is a configuration that was not accepted.
type Rejection struct {
	Time  time.Time `json:"time"`
	Error string    `json:"error"`
}

// Handover is what is known of hand-overs between agents on the node.
type Handover struct {
	// Last is the last hand-over, null if there was none.
	Last *HandoverEvent `json:"last"`
	// Comparing: the agent compares itself with its predecessor, and may give the node back.
	Comparing bool `json:"comparing"`
}

// HandoverEvent is a hand-over.
type HandoverEvent struct {
	Time time.Time `json:"time"`
	// Event is "took over": from the agent before; or "resumed": the next agent has ended or
	// given the node back.
	Event string `json:"event"`
	// Reason is why a successor gave back; "" if it did not.
	Reason string `json:"reason"`
}

// View is the agent's view of the cluster: the sum of all views.
type View struct {
	Synced  bool           `json:"synced"`
	Objects map[string]int `json:"objects"` // by kind
	// AgeSeconds is the time since the last sign of life of the API server; 0 for files. NoEvent:
	// there was none, and AgeSeconds is the time since the view was opened.
	AgeSeconds float64 `json:"ageSeconds"`
	NoEvent    bool    `json:"noEvent"`
	// Error is why requests to the API server fail now, and Fix what to do about it; "" for nothing.
	Error string `json:"error"`
	Fix   string `json:"fix"`
	// Faulty is the number of objects with values that DNS can't show.
	Faulty int  `json:"faulty"`
	Gaps   Gaps `json:"gaps"`
}

// Gaps are what a view could not show, or had to list again.
type Gaps struct {
	// Unlisted are the resources without a first list, Failing those whose requests fail now.
	Unlisted []string `json:"unlisted"`
	Failing  []string `json:"failing"`
	// Relists counts the lists after the first one of a watch; LastRelist is null if there was none.
	Relists    uint64     `json:"relists"`
	LastRelist *time.Time `json:"lastRelist"`
	// SetBacks counts the times that the API server's resourceVersions were set back, as after a
	// restore from a backup; LastSetBack is null if there was none.
	SetBacks    uint64     `json:"setBacks"`
	LastSetBack *time.Time `json:"lastSetBack"`
	// Silences counts the times without a sign of life of the API server for longer than two minutes.
	Silences    uint64   `json:"silences"`
	LastSilence *Silence `json:"lastSilence"` // null if there was none
	// Unreadable counts the objects of lists and watches that could not be decoded.
	Unreadable uint64 `json:"unreadable"`
}

// Silence is a time without a sign of life of the API server.
type Silence struct {
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"`
}

// Rates are of the last minute. Shares are from 0 to 1, and 0 without queries.
type Rates struct {
	// Seconds is the time that the rates are of: 60 to 90, or less after a start.
	Seconds          float64 `json:"seconds"`
	QueriesPerSecond float64 `json:"queriesPerSecond"`
	ServfailShare    float64 `json:"servfailShare"`
	// P50Seconds and P99Seconds are the upper bounds of the histogram's buckets with these
	// percentiles; longer times than the last bound count as twice that bound.
	P50Seconds float64 `json:"p50Seconds"`
	P99Seconds float64 `json:"p99Seconds"`
	// HitRatio is the share that the cache answered of the queries that it or an upstream answered.
	HitRatio float64 `json:"hitRatio"`
	// KernelShare is the share of queries answered in the kernel.
	KernelShare float64 `json:"kernelShare"`
}

// Counts are the numbers of upstream servers.
type Counts struct {
	Total   int `json:"total"`
	Down    int `json:"down"`
	Suspect int `json:"suspect"`
}

// FailOpen is what happens to queries while no agent listens.
type FailOpen struct {
	// Rules is the backend of the rules, "" without rules.
	Rules string `json:"rules"`
	// RulesReason says why the backend was chosen. Blocked are chains of other programs that may drop
	// DNS packets whatever the agent does, separated by commas.
	RulesReason string `json:"rulesReason"`
	Blocked     string `json:"blocked"`
	// Capable: the agent sets up rules, and the kernel can match by socket.
	Capable bool `json:"capable"`
	// Active: the rules are in place, apply only while a socket listens, and lead to the cluster
	// DNS. Else queries are lost without an agent, for the Reason.
	Active bool   `json:"active"`
	Reason string `json:"reason"`
	// Servers is the number of servers of the cluster DNS that get the queries then.
	Servers int `json:"servers"`
}

// Restored are the rules and addresses of the node that another program had changed.
type Restored struct {
	Total uint64     `json:"total"` // since the start of the agent
	Last  *time.Time `json:"last"`  // null if there was none
}

// KernelPath is the state of the programs in the kernel.
type KernelPath struct {
	Active bool `json:"active"`
	// Answering and Watched are numbers of pod interfaces: where the program may answer, and where
	// it only observes.
	Answering int `json:"answering"`
	Watched   int `json:"watched"`
}

// Bypass is whether packets of pods to other DNS servers are counted (--bypass=count).
type Bypass struct {
	Counted bool `json:"counted"`
	// Reason says why they are not although they are to be; "" for nothing.
	Reason string `json:"reason"`
	// Packets is their number since the start; over TCP the number of connections.
	Packets uint64 `json:"packets"`
}

// Fault is a warning or an error in the log.
type Fault struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // warn or error
	Message string    `json:"message"`
	// Fields are the line's fields as KEY=VALUE.
	Fields string `json:"fields"`
}

// Upstreams is the reply to GET /upstreams.
type Upstreams struct {
	Header
	// Forwards are the forward directives in the order of the Corefile, More how many others there
	// are.
	Forwards []Forward `json:"forwards"`
	More     int       `json:"more"`
}

// Servers returns each server once, in the order of the forward directives. It is down or suspect if it is for one
// of them. MeanSeconds and the numbers of connections are from the first one; the other counters are sums.
func (u *Upstreams) Servers() (list []Upstream) {
	index := make(map[string]int)
	for _, forward := range u.Forwards {
		for _, to := range forward.Upstreams {
			i, ok := index[to.To]
			if !ok {
				index[to.To] = len(list)
				exchanges := make(map[string]uint64)
				maps.Copy(exchanges, to.Exchanges)
				to.Exchanges = exchanges
				list = append(list, to)
				continue
			}
			sum := &list[i]
			sum.Down, sum.Suspect = sum.Down || to.Down, sum.Suspect || to.Suspect
			sum.RTTSeconds = cmp.Or(sum.RTTSeconds, to.RTTSeconds)
			for rcode, n := range to.Exchanges {
				sum.Exchanges[rcode] += n
			}
			sum.HealthcheckFailures += to.HealthcheckFailures
			sum.ConnectionFailures += to.ConnectionFailures
			sum.UnexpectedReplies += to.UnexpectedReplies
			sum.Hedges, sum.HedgeWins, sum.Suspicions = sum.Hedges+to.Hedges, sum.HedgeWins+to.HedgeWins, sum.Suspicions+to.Suspicions
		}
	}
	return list
}

// Forward is one forward directive.
type Forward struct {
	Zones     []string   `json:"zones"` // of the server block
	From      string     `json:"from"`
	Upstreams []Upstream `json:"upstreams"`
	// Directives are the names of the server block's directives. ServeStale: its cache may serve expired answers.
	Directives []string `json:"directives"`
	ServeStale bool     `json:"serveStale"`
}

// Upstream is one server of a forward directive. Counters are since the pool was made.
type Upstream struct {
	To string `json:"to"`
	// Down: health checks fail. Suspect: it left queries unanswered; others are asked first.
	Down    bool `json:"down"`
	Suspect bool `json:"suspect"`
	// RTTSeconds is the smoothed response time; 0 without samples.
	RTTSeconds float64 `json:"rttSeconds"`
	// Exchanges are by rcode. MeanSeconds is over all of them.
	Exchanges            map[string]uint64 `json:"exchanges"`
	MeanSeconds          float64           `json:"meanSeconds"`
	HealthcheckFailures  uint64            `json:"healthcheckFailures"`
	ConnectionFailures   uint64            `json:"connectionFailures"`
	UnexpectedReplies    uint64            `json:"unexpectedReplies"`
	Hedges               uint64            `json:"hedges"`
	HedgeWins            uint64            `json:"hedgeWins"`
	Suspicions           uint64            `json:"suspicions"`
	ReusedConnections    uint64            `json:"reusedConnections"`
	NotReusedConnections uint64            `json:"notReusedConnections"`
	// Budget is null without max_rate. It is the same for all forward directives with this server.
	Budget *Budget `json:"budget"`
	// Recent is of all forward directives with this server.
	Recent Exchanges `json:"recent"`
}

// Exchanges are the exchanges with an upstream in the last minute. P50Seconds and P99Seconds are as
// in [Rates].
type Exchanges struct {
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"perSecond"` // with a reply
	ServfailShare float64 `json:"servfailShare"`
	// UnansweredShare is the share of queries without a reply in time, of all queries.
	UnansweredShare float64 `json:"unansweredShare"`
	P50Seconds      float64 `json:"p50Seconds"`
	P99Seconds      float64 `json:"p99Seconds"`
}

// PerSecond returns n in seconds as a rate, 0 for no time.
func PerSecond(n uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}

// Plan is the reply to GET /plan: the node's network as the agent keeps it in place.
type Plan struct {
	Header
	Network
}

// Network is an interface, its addresses, and rules. Empty texts and lists are what an agent does not
// set up.
type Network struct {
	// Interface is the name of the interface for the addresses, which have prefix lengths.
	Interface string   `json:"interface"`
	Addresses []string `json:"addresses"`
	// ExternalInterfaces lead to hosts outside of the node; OpenInterfaces have default routes,
	// and are not external because pods may use them. DefaultRoutes says that the external
	// interfaces are those of the node's default routes, which are not known here.
	ExternalInterfaces []string `json:"externalInterfaces"`
	OpenInterfaces     []string `json:"openInterfaces"`
	DefaultRoutes      bool     `json:"defaultRoutes"`
	// Backend is the rule backend, chosen for the BackendReason. Rules are the lines of the rules in
	// its syntax. Blocked are those of [FailOpen].
	Backend       string   `json:"backend"`
	BackendReason string   `json:"backendReason"`
	Blocked       []string `json:"blocked"`
	Rules         []string `json:"rules"`
	// Lookups are the node's own look-ups; absent without --host-listen.
	Lookups *Lookups `json:"lookups,omitempty"`
}

// Lookups says where a node's own look-ups go.
type Lookups struct {
	// Manager writes the node's resolv.conf: "systemd-resolved", "NetworkManager", or "file" for anything else.
	Manager string `json:"manager"`
	// File is the path on the node of the file that names the servers. AgentFirst: it names the agent first.
	File       string `json:"file"`
	AgentFirst bool   `json:"agentFirst"`
	// Servers are the node's servers without the agent, in order.
	Servers []string `json:"servers"`
	// Problems say what keeps look-ups from the agent, and what to do.
	Problems []string `json:"problems"`
	// Changes are the files that would be written or removed; of install and remove, those that were.
	Changes []FileChange `json:"changes"`
}

// FileChange is a file of the node that is written or removed.
type FileChange struct {
	Path string `json:"path"`
	// Removed: it is removed. Link is the target of the symbolic link that it becomes, and Text its content otherwise.
	Removed bool   `json:"removed,omitempty"`
	Link    string `json:"link,omitempty"`
	Text    string `json:"text,omitempty"`
}
