package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
)

const (
	// maxOutstanding is the most broken packets sent before a well-formed query is answered:
	// far fewer than fit into the smallest receive buffer there is (212,992 bytes
	// hold some 270), with those of the other flooders.
	maxOutstanding = 48
	// maxAhead is the most broken packets of one flooder that wait for an answer from
	// the upstream. Some fifty do because it is silent, for seconds. All flooders
	// together stay far below the 4,096 that the agent lets wait before it sheds;
	// with ten times as many its memory would follow the pace of the flood.
	maxAhead = 150
	// long is the size of a datagram that ends a window: a few of 64 KiB would fill
	// a receive buffer.
	long = 4096
)

// The IDs say what a reply is to: broken packets, well-formed ones, and those that
// must have no reply.
const (
	firstGood = 0xE000
	firstMute = 0xF000
)

// accounting is what a run has seen. It is safe for concurrent use.
type accounting struct {
	sent, muteSent   atomic.Uint64 // broken packets; those that must have no reply
	replies, bare    atomic.Uint64 // to broken packets; those of a header only
	asked, askedTCP  atomic.Uint64 // well-formed queries
	extra            atomic.Uint64 // answered UDP queries of those that ask for names with broken replies
	again            atomic.Uint64 // well-formed UDP queries sent once more
	probed, servfail atomic.Uint64 // queries for names whose replies are broken; failed
	frames           atomic.Uint64 // connections with broken frames
	silent, slowly   atomic.Uint64 // connections opened to say nothing, or little
	refused          atomic.Uint64 // connections refused to well-behaved clients
	fresh            atomic.Uint64 // numbers names

	mu     sync.Mutex
	faults []string
	others int
}

// maxFaults is how many faults are told: the first few say what is wrong.
const maxFaults = 20

// fault notes that something must not be.
func (l *accounting) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) < maxFaults {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
		return
	}
	l.others++
}

func (l *accounting) faultCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.faults) + l.others
}

// flooder sends broken packets from one socket, and between them well-formed
// queries, whose answers say that what was sent before has been read.
type flooder struct {
	*broken.Mutator
	*accounting
	conn   *net.UDPConn
	in     []byte
	claims []expectedReplies // by ID
	open   int               // the sum of the claims
	next16 [3]uint16
}

func newFlooder(a *agent, m *broken.Mutator, l *accounting) (*flooder, error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(a.addr))
	if err != nil {
		return nil, err
	}
	// A window's replies must fit while this process sends.
	_ = conn.SetReadBuffer(4 << 20)
	return &flooder{Mutator: m, accounting: l, conn: conn, in: make([]byte, dns.MaxMsgSize), claims: make([]expectedReplies, 1<<16)}, nil
}

// id is the next ID in first..end-1.
func (f *flooder) id(kind int, first, end uint16) uint16 {
	f.next16[kind]++
	return first + f.next16[kind]%(end-first)
}

// flood sends n broken packets.
func (f *flooder) flood(n int) {
	defer f.conn.Close()
	for n > 0 && f.faultCount() < maxFaults {
		sent := f.burst(min(n, 1+f.IntN(maxOutstanding)))
		n -= sent
		f.sent.Add(uint64(sent))
		if !f.askGood() {
			return
		}
		f.await(maxAhead)
	}
	f.await(0)
	if f.open > 0 {
		f.fault("%d broken queries got no answer", f.open)
	}
}

// burst sends up to n broken packets and gives their number.
func (f *flooder) burst(n int) int {
	for i := range n {
		packet := f.Next()
		silent := noReplyExpected(packet)
		switch {
		case silent && len(packet) >= 2:
			binary.BigEndian.PutUint16(packet, f.id(2, firstMute, 0xFFFF))
		case !silent:
			id := f.id(0, 0, firstGood)
			binary.BigEndian.PutUint16(packet, id)
			f.expectReply(id, maxReplySize(packet))
		}
		if silent {
			f.muteSent.Add(1)
		}
		if _, err := f.conn.Write(packet); err != nil {
			f.fault("sending %d bytes: %v", len(packet), err)
			return i
		}
		if len(packet) > long {
			return i + 1
		}
	}
	return n
}

func (f *flooder) expectReply(id, limit uint16) {
	c := &f.claims[id]
	if c.open > 0 {
		limit = max(limit, c.limit)
	}
	c.open, c.limit = c.open+1, limit
	f.open++
}

// askGood sends a well-formed query and waits for its answer; false if none comes. A
// query that is lost because the agent's buffers were full is no fault of the agent,
// so it is sent once more.
func (f *flooder) askGood() bool {
	q := randomQuestion(f.Rand, f.fresh.Add(1))
	query := q.query(f.Rand)
	for range 3 {
		query.Id = f.id(1, firstGood, firstMute)
		packet, err := query.Pack()
		if err == nil {
			_, err = f.conn.Write(packet)
		}
		if err != nil {
			f.fault("asking for %s: %v", q.name, err)
			return false
		}
		f.asked.Add(1)
		switch got, err := f.read(query.Id); {
		case err == nil:
			if err := q.check(query, got, false); err != nil {
				f.fault("%v", err)
			}
			return true
		case !errors.Is(err, os.ErrDeadlineExceeded):
			f.fault("asking for %s: %v", q.name, err)
			return false
		}
		f.again.Add(1)
	}
	f.fault("%s got no answer", q.name)
	return false
}

// await reads until at most n broken packets wait for an answer, none comes for a
// while, or enough is wrong.
func (f *flooder) await(n int) {
	for f.open > n && f.faultCount() < maxFaults {
		f.deadline()
		size, err := f.conn.Read(f.in)
		if err != nil {
			return
		}
		f.checkReply(f.in[:size])
	}
}

func (f *flooder) deadline() { _ = f.conn.SetReadDeadline(time.Now().Add(replyTimeout)) }

// read reads until the answer to the well-formed query id comes.
func (f *flooder) read(id uint16) (*dns.Msg, error) {
	f.deadline()
	for {
		n, err := f.conn.Read(f.in)
		if err != nil {
			return nil, err
		}
		msg := f.in[:n]
		if n >= broken.HeaderLen && binary.BigEndian.Uint16(msg) == id {
			m := new(dns.Msg)
			return m, m.Unpack(msg)
		}
		f.checkReply(msg)
	}
}

// checkReply looks at a reply to a broken packet.
func (f *flooder) checkReply(msg []byte) {
	if len(msg) < broken.HeaderLen || !noReplyExpected(msg) {
		f.fault("%d bytes that are no answer: %x", len(msg), msg)
		return
	}
	id := binary.BigEndian.Uint16(msg)
	switch c := &f.claims[id]; {
	case id >= firstMute:
		f.fault("a packet that must have no answer got %x", msg)
	case id >= firstGood:
		// Late, after its query was sent once more.
	case c.open == 0:
		f.fault("an answer nobody waits for: %x", msg)
	case len(msg) > int(c.limit):
		f.fault("%d bytes to a client that takes %d", len(msg), c.limit)
		fallthrough
	default:
		c.open--
		f.open--
		f.replies.Add(1)
		if len(msg) == broken.HeaderLen {
			f.bare.Add(1)
		}
		if err := new(dns.Msg).Unpack(msg); err != nil {
			f.fault("an answer that can't be read: %v: %x", err, msg)
		}
	}
}
