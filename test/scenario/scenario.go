package scenario

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Scenario is one file. It is not changed once it is parsed, and may be played any
// number of times, also at once.
type Scenario struct {
	// File is its path, as errors name it; Title is its first statement.
	File, Title string
	// Needs are the features without which it can't be played.
	Needs []string
	// Corefile is what the agent starts with, and Refused what the error holds if
	// the agent must not start with it; "" if it must.
	Corefile text
	Refused  string
	// Flags are the agent's, besides those that its runner gives it.
	Flags     []string
	Upstreams []*Upstream
	Files     []scenarioFile
	Steps     []scenarioStep

	// Observe, if it is not nil, is told of each query that a client or the agent sends: of a
	// client's query with the reply, nil for none, and of the agent's with the upstream's name.
	// It is called from several goroutines at once.
	Observe func(query, reply *dns.Msg, upstream string)
}

// text is a block of lines and where its first one stands.
type text struct {
	body string
	line int
}

// scenarioFile is a file that a scenario puts into its folder.
type scenarioFile struct {
	name string
	text
}

// Upstream is the script of one server.
type Upstream struct {
	Name string
	line int
	// tls, https and quic say what the server speaks; none is plain DNS over UDP and TCP.
	tls, https, quic bool
	// port is where it listens; 0 is any that is free.
	port  uint16
	cert  certificate
	rules []*rule
}

// rule is what a server does about the queries that it matches. The first that
// matches counts.
type rule struct {
	line int
	// name is the qname, canonical; "*" is any, and "*.NAME" all below NAME.
	name  string
	qtype uint16 // 0 is any
	over  string // "" is any
	// with and without are words for what the query must have and must not have.
	with, without []string
	times         int // how many queries it is for; 0 is all
	action
}

// action is a server's answer and the way in which it comes.
type action struct {
	delay  time.Duration
	silent bool // no answer
	held   bool // no answer until RELEASE
	reset  bool // the connection is reset
	closes bool // the connection is closed, after sent bytes of the frame
	sent   int

	strays   []string // sent before the answer
	rcode    int
	set      []string // header flags
	unset    []string
	sections [3][]string // of records, as written
	many     int         // address records added
	chain    int         // CNAME records added, with an address at the end
	cut      int         // bytes cut from the end
	extra    int         // zeros added at the end
	bare     bool        // nothing but the header
	noEDNS   bool        // no OPT record, though the query has one
	ede      int         // -1: none
	raw      []byte      // sent in place of all of this, with the query's ID
}

// sectionNames are the keywords of records, in the order of a message's sections.
var sectionNames = [3]string{"ANSWER", "AUTHORITY", "ADDITIONAL"}

// pattern is a record that a reply must have.
type pattern struct {
	least, most uint32 // of the TTL
	rest        string // the record as miekg/dns prints it with a TTL of 0
}

func (p pattern) String() string {
	ttl := fmt.Sprint(p.least)
	switch {
	case p.least == 0 && p.most == math.MaxUint32:
		ttl = "*"
	case p.least != p.most:
		ttl = fmt.Sprintf("%d..%d", p.least, p.most)
	}
	words := strings.Fields(p.rest)
	words[1] = ttl
	return strings.Join(words, " ")
}

// countRange is the numbers from least to most.
type countRange struct{ least, most int }

func (s countRange) has(n int) bool { return s.least <= n && n <= s.most }

func (s countRange) String() string {
	if s.least == s.most {
		return fmt.Sprint(s.least)
	}
	if s.most == unbounded {
		return fmt.Sprintf("%d..", s.least)
	}
	return fmt.Sprintf("%d..%d", s.least, s.most)
}

// unbounded is the end of a span without one.
const unbounded = int(^uint(0) >> 1)
