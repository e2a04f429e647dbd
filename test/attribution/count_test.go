package attribution

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// counts are numbers of queries by what the client got as reply: the rcodes, and waste as part of
// NXDOMAIN.
type counts struct{ NoError, NXDomain, Servfail, Waste uint64 }

// reported returns what a row of the agent's report says.
func reported(c report.ClientCounts) counts {
	return counts{NoError: c.NoError, NXDomain: c.NXDomain, Servfail: c.Servfail, Waste: c.Waste}
}

func (c counts) plus(d counts) counts {
	return counts{c.NoError + d.NoError, c.NXDomain + d.NXDomain, c.Servfail + d.Servfail, c.Waste + d.Waste}
}

func (c counts) queries() uint64 { return c.NoError + c.NXDomain + c.Servfail }

// within reports whether no count is less than in least or more than in most.
func (c counts) within(least, most counts) bool {
	in := func(least, n, most uint64) bool { return least <= n && n <= most }
	return in(least.NoError, c.NoError, most.NoError) && in(least.NXDomain, c.NXDomain, most.NXDomain) &&
		in(least.Servfail, c.Servfail, most.Servfail) && in(least.Waste, c.Waste, most.Waste)
}

// question is a query and its expected reply.
type question struct {
	name  string
	rcode int
	waste bool
}

// questions are what all clients ask. The last part of each name says where its answer comes from: the view of
// the cluster, the upstream, or the Corefile.
var questions = []question{
	{name: "web.ns-0.svc.cluster.local."},
	{name: "web.ns-0.svc.cluster.local."},
	{name: "who." + testbed.Zone + "."},
	{name: "www.example.org."},
	{name: "nosuch.ns-0.svc.cluster.local.", rcode: dns.RcodeNameError},
	{name: "www.example.org.ns-0.svc.cluster.local.", rcode: dns.RcodeNameError, waste: true},
	{name: "www.example.org.svc.cluster.local.", rcode: dns.RcodeNameError, waste: true},
	{name: "www.fail.test.", rcode: dns.RcodeServerFailure},
}

// replyTimeout ends a test that would hang. No query is sent again: it could be counted twice.
const replyTimeout = 30 * time.Second

// session asks from one address of a namespace over UDP and TCP.
type session struct {
	udp, tcp  net.Conn
	random    *rand.Rand
	questions []question
	id        uint16
}

func openSession(ns *os.File, from netip.Addr, random *rand.Rand, questions []question) (s *session, err error) {
	s = &session{random: random, questions: questions}
	if s.udp, err = dial(ns, "udp", from); err == nil {
		s.tcp, err = dial(ns, "tcp", from)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) close() {
	for _, conn := range []net.Conn{s.udp, s.tcp} {
		if conn != nil {
			conn.Close()
		}
	}
}

// ask sends n queries, each after the reply to the one before, one in four of them over TCP. It returns what the replies
// were.
func (s *session) ask(n int) (c counts, err error) {
	for range n {
		q := s.questions[s.random.IntN(len(s.questions))]
		rcode, err := s.exchange(q.name, s.random.IntN(4) == 0)
		switch {
		case err != nil:
			return c, fmt.Errorf("asking for %s: %w", q.name, err)
		case rcode != q.rcode:
			return c, fmt.Errorf("the reply for %s is %s", q.name, dns.RcodeToString[rcode])
		case rcode == dns.RcodeSuccess:
			c.NoError++
		case rcode == dns.RcodeNameError:
			c.NXDomain++
		default:
			c.Servfail++
		}
		if q.waste {
			c.Waste++
		}
	}
	return c, nil
}

// exchange sends one query and returns the rcode of the reply.
func (s *session) exchange(name string, overTCP bool) (rcode int, err error) {
	s.id++
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = s.id
	packet, err := m.Pack()
	if err != nil {
		return 0, err
	}
	conn := s.udp
	if overTCP {
		conn, packet = s.tcp, append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
	}
	if err := conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return 0, err
	}
	if _, err := conn.Write(packet); err != nil {
		return 0, err
	}
	var buf [dns.MinMsgSize]byte
	reply, err := readMessage(conn, buf[:], overTCP)
	if err != nil {
		return 0, err
	}
	if len(reply) < 12 || binary.BigEndian.Uint16(reply) != s.id {
		return 0, fmt.Errorf("%x is no reply to query %d", reply, s.id)
	}
	return int(reply[3] & 15), nil
}

// readMessage reads a message of at most len(buf) bytes.
func readMessage(conn net.Conn, buf []byte, overTCP bool) ([]byte, error) {
	if !overTCP {
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	_, err := io.ReadFull(conn, buf[:min(n, len(buf))])
	return buf[:min(n, len(buf))], err
}
