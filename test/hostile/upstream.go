package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

const (
	// goodZone is the zone whose names the upstream answers as it should.
	goodZone = "good.test."
	// brokenZone is the zone whose names it answers with broken replies.
	brokenZone = "bad.test."
	// replyTTL is the TTL of all it says, in seconds: longer than a run.
	replyTTL = 36000
	// maxSilencesPerSecond is the most queries a second that get no answer but a broken one:
	// each holds a place of the agent's for seconds, and what is tested here is not
	// what happens when the places run out.
	maxSilencesPerSecond = 50
	// brokenShare is the share of queries for names of neither zone, one in so many,
	// that get a broken reply. A flood of broken packets asks for many such names.
	brokenShare = 8
)

// upstream is the server that the agent forwards to.
type upstream struct {
	*fakedns.Server
	broken, silent atomic.Uint64
	strange        atomic.Uint64 // queries that no forwarder should send
	second, spent  atomic.Int64  // of silences

	mu      sync.Mutex
	mutator *broken.Mutator
}

// startUpstream starts the upstream; the caller calls Close.
func startUpstream(seed uint64) (*upstream, error) {
	u := &upstream{mutator: broken.New(seed, 1<<32, nil)}
	var err error
	u.Server, err = fakedns.Open(u.reply, fakedns.Options{Malformed: func([]byte) { u.strange.Add(1) }})
	return u, err
}

// reply sends what the script says about the query. A broken reply comes before the true one, so that what is
// not taken costs the agent no time; sometimes the true one never comes.
func (u *upstream) reply(q *fakedns.Query) {
	if q.Opcode != dns.OpcodeQuery {
		u.strange.Add(1)
		return
	}
	reply := packedReply(q.Msg, q.MaxSize())
	if !isBroken(q.Question[0]) {
		q.Send(reply)
		return
	}
	u.broken.Add(1)
	first, endsSilent, endsBroken := u.mutate(q.Msg, reply)
	q.Send(first)
	if endsSilent {
		u.silent.Add(1)
	} else {
		q.Send(reply)
	}
	if endsBroken && q.Transport == fakedns.TCP {
		q.SendPart(make([]byte, dns.MaxMsgSize), 5) // the beginning of a frame
	}
}

// mutate returns a broken reply, and whether the true one stays away and the connection ends.
func (u *upstream) mutate(q *dns.Msg, reply []byte) (broken []byte, endsSilent, endsBroken bool) {
	query, err := q.Pack()
	if err != nil {
		panic(err) // it has been read
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mutator.Corpus = [][]byte{reply, query}
	broken = u.mutator.Mutate(reply)
	return slices.Clone(broken), u.mutator.IntN(16) == 0 && u.maySilence(), u.mutator.IntN(4) == 0
}

// isBroken says whether the question gets a broken reply: the same for the same
// name.
func isBroken(q dns.Question) bool {
	name := strings.ToLower(q.Name)
	if q.Name == "." || dns.IsSubDomain(goodZone, name) {
		return false
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	return dns.IsSubDomain(brokenZone, name) || h.Sum32()%brokenShare == 0
}

func (u *upstream) maySilence() bool {
	if now := time.Now().Unix(); u.second.Swap(now) != now {
		u.spent.Store(0)
	}
	return u.spent.Add(1) <= maxSilencesPerSecond
}

// packedReply is the true reply to q, packed into at most limit bytes.
func packedReply(q *dns.Msg, limit int) []byte {
	m := correctReply(q)
	m.Truncate(limit)
	reply, err := m.Pack()
	if err != nil {
		panic(err) // the names are those of a query that has been read
	}
	return reply
}

// recordData is what names have by type, if they exist.
var recordData = map[uint16]string{
	dns.TypeSRV: "SRV 1 2 53 target." + goodZone, dns.TypeMX: "MX 10 target." + goodZone, dns.TypeHTTPS: "HTTPS 1 . alpn=h2",
	dns.TypeTXT: `TXT "some" "text"`,
}

// correctReply is the true reply to q.
func correctReply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	m.Compress = true
	if name := strings.ToLower(q.Question[0].Name); nameExists(name) {
		m.Answer = answers(q, name)
	} else {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{record(new(dns.Msg).SetQuestion("test.", dns.TypeSOA), fmt.Sprintf("SOA ns.test. host.test. 1 2 3 4 %d", replyTTL))}
	}
	if q.IsEdns0() != nil { // without, the agent has been told that nobody here knows it
		m.SetEdns0(1232, false)
	}
	return m
}

// answers are the records that answer q, whose name exists.
func answers(q *dns.Msg, name string) (out []dns.RR) {
	qtype := q.Question[0].Qtype
	switch {
	case qtype == dns.TypeTXT && strings.HasPrefix(name, "big."):
		for i := range bigRecords {
			out = append(out, record(q, fmt.Sprintf(`TXT "%03d %s"`, i, strings.Repeat("x", 200))))
		}
	case qtype == dns.TypeA && strings.HasPrefix(name, "c"):
		target := new(dns.Msg).SetQuestion("target."+goodZone, dns.TypeA)
		out = []dns.RR{record(q, "CNAME target."+goodZone), record(target, "A "+addressOf(name).String())}
	case qtype == dns.TypeA:
		out = []dns.RR{record(q, "A "+addressOf(name).String())}
	case recordData[qtype] != "":
		out = []dns.RR{record(q, recordData[qtype])}
	}
	return out
}

// nameExists says whether the upstream has the name.
func nameExists(name string) bool {
	return name == "." || (dns.IsSubDomain(goodZone, name) || dns.IsSubDomain(brokenZone, name)) && !strings.HasPrefix(name, "nobody.")
}

// record is a record at q's name.
func record(q *dns.Msg, text string) dns.RR {
	rr, err := dns.NewRR(fmt.Sprintf(". %d IN %s", replyTTL, text))
	if err != nil {
		panic(err) // the texts are all in this file
	}
	rr.Header().Name = q.Question[0].Name
	return rr
}

// bigRecords is the number of records of the answer that does not fit into any UDP
// reply a client here allows for but 65,535 bytes.
const bigRecords = 40

// addressOf is the address of a name: another for another name, so that answers
// which got mixed up show.
func addressOf(name string) net.IP {
	h := fnv.New32a()
	_, _ = io.WriteString(h, strings.ToLower(name))
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], h.Sum32())
	b[0] = 10
	return net.IP(b[:])
}
