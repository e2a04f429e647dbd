// The upstream does not use test/rig/fakedns: it sends broken packets and stays silent on purpose.

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
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
	addr netip.AddrPort
	udp  *net.UDPConn
	tcp  net.Listener
	seed uint64

	asked, broken, silent atomic.Uint64
	strange               atomic.Uint64 // queries that no forwarder should send
	second, spent         atomic.Int64  // of silences
	conns                 atomic.Uint64 // numbers the connections' mutators

	running sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool
}

// startUpstream starts the upstream on a port of its own; the caller calls close.
func startUpstream(seed uint64, port uint16) (*upstream, error) {
	u := &upstream{addr: netip.AddrPortFrom(loopback, port), seed: seed, open: map[net.Conn]bool{}}
	var err error
	if u.udp, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(u.addr)); err != nil {
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	if u.tcp, err = net.Listen("tcp4", u.addr.String()); err != nil {
		u.udp.Close()
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	// The kernel cuts it to its maximum. What is lost here the agent asks again.
	_ = u.udp.SetReadBuffer(4 << 20)
	u.running.Go(u.serveUDP)
	u.running.Go(u.serveTCP)
	return u, nil
}

func (u *upstream) close() {
	u.udp.Close()
	u.tcp.Close()
	u.mu.Lock()
	for c := range u.open {
		c.Close()
	}
	u.mu.Unlock()
	u.running.Wait()
}

func (u *upstream) serveUDP() {
	m := broken.New(u.seed, 1<<32, nil)
	buf := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := u.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error: the agent gave up on an earlier one
		}
		u.reply(m, buf[:n], 0, func(reply []byte) { _, _ = u.udp.WriteToUDPAddrPort(reply, from) })
	}
}

func (u *upstream) serveTCP() {
	for {
		c, err := u.tcp.Accept()
		if err != nil {
			return
		}
		u.mu.Lock()
		u.open[c] = true
		u.mu.Unlock()
		u.running.Go(func() {
			u.serveConn(c)
			c.Close()
			u.mu.Lock()
			delete(u.open, c)
			u.mu.Unlock()
		})
	}
}

func (u *upstream) serveConn(c net.Conn) {
	m := broken.New(u.seed, 1<<33+u.conns.Add(1), nil)
	for {
		query, err := readFrame(c)
		if err != nil {
			return
		}
		broke := u.reply(m, query, dns.MaxMsgSize, func(reply []byte) { _, _ = c.Write(writeFrame(reply)) })
		if broke && m.IntN(4) == 0 {
			_, _ = c.Write([]byte{0xFF, 0xFF, 1, 2, 3}) // the beginning of a frame
			return
		}
	}
}

// reply sends what the script says about the query, in at most limit bytes, 0 for
// what the query allows, and says whether it sent a broken reply. That comes before
// the true one, so that what is not taken costs the agent no time; sometimes the true
// one never comes.
func (u *upstream) reply(m *broken.Mutator, query []byte, limit int, send func([]byte)) (broke bool) {
	u.asked.Add(1)
	q := new(dns.Msg)
	if err := q.Unpack(query); err != nil || len(q.Question) != 1 || q.Opcode != dns.OpcodeQuery || q.Response {
		u.strange.Add(1)
		return false
	}
	reply := packedReply(q, limit)
	if !isBroken(q.Question[0]) {
		send(reply)
		return false
	}
	u.broken.Add(1)
	m.Corpus = [][]byte{reply, query}
	send(m.Mutate(reply))
	if m.IntN(16) == 0 && u.maySilence() {
		u.silent.Add(1)
		return true
	}
	send(reply)
	return true
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

// packedReply is the true reply to q, packed.
func packedReply(q *dns.Msg, limit int) []byte {
	m := correctReply(q)
	if opt := q.IsEdns0(); limit == 0 && opt != nil {
		limit = int(opt.UDPSize())
	}
	m.Truncate(max(limit, dns.MinMsgSize))
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

// writeFrame is msg with its length before it (RFC 1035, 4.2.2).
func writeFrame(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg))), msg...)
}

// readFrame reads one message with its length.
func readFrame(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}
