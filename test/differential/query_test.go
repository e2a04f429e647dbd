package differential

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// The waits for a reply. A server has five seconds in all to answer a query
// that it forwards, so the long one means that no reply comes. The short one
// is for the few queries that a server drops: a reply that is later than that
// would count as silence, which the comparison shows.
const (
	longWait  = 8 * time.Second
	shortWait = 500 * time.Millisecond
)

// query is a question and how it is asked.
type query struct {
	name string
	// qtype is the qtype; class is IN where it is zero.
	qtype  uint16
	qclass uint16
	tcp    bool
	// ednsSize is the advertised EDNS size; there is no OPT where it is zero.
	ednsSize uint16
	do       bool
	version  uint8
	options  []dns.EDNS0
	ad, cd   bool
	norec    bool
	// wire is sent as it is, in place of all of the above but tcp. Its first
	// two bytes are the ID.
	wire []byte
	// note is put in front of the query in messages.
	note string
	// from is the address that the query comes from, any where it is empty.
	from string
	// dropped says that a server may leave the query unanswered.
	dropped bool
	// transport is what carries the query where that is not UDP or TCP: see transports. CoreDNS is asked
	// over TCP for what a known difference wants to know.
	transport string
	// namespace is the network namespace that the query comes from, the test's own
	// where it is empty.
	namespace string
}

// String describes the query as the words that dig would be called with.
func (q query) String() string {
	s := q.note
	if s != "" {
		s += ": "
	}
	if q.wire != nil {
		// The ID is another one each time.
		return s + fmt.Sprintf("tcp %t, ....", q.tcp) + hex.EncodeToString(q.wire[2:])
	}
	for _, w := range []struct {
		on   bool
		word string
	}{
		{q.transport != "", "+" + q.transport + " "},
		{q.tcp, "+tcp "},
		{q.ednsSize == 0, "+noedns "},
		{q.ednsSize != 0, fmt.Sprintf("+bufsize=%d ", q.ednsSize)},
		{q.version != 0, fmt.Sprintf("+edns=%d ", q.version)},
		{q.do, "+dnssec "},
		{q.cd, "+cd "},
		{q.ad, "+ad "},
		{q.norec, "+norec "},
		{q.from != "", "-b " + q.from + " "},
		{q.qclass != 0, "-c " + dns.Class(q.qclass).String() + " "},
	} {
		if w.on {
			s += w.word
		}
	}
	return s + q.name + " " + dns.Type(q.qtype).String()
}

// pack returns the query's wire form.
func (q query) pack(id uint16) ([]byte, error) {
	if q.wire != nil {
		wire := append([]byte(nil), q.wire...)
		wire[0], wire[1] = byte(id>>8), byte(id)
		return wire, nil
	}
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.Id = id
	m.RecursionDesired = !q.norec
	m.AuthenticatedData = q.ad
	m.CheckingDisabled = q.cd
	if q.qclass != 0 {
		m.Question[0].Qclass = q.qclass
	}
	if q.ednsSize != 0 {
		m.SetEdns0(q.ednsSize, q.do)
		m.IsEdns0().SetVersion(q.version)
		m.IsEdns0().Option = q.options
	}
	return m.Pack()
}

// buffers holds buffers for replies.
var buffers = sync.Pool{New: func() any { return new([dns.MaxMsgSize]byte) }}

// ask sends the query and returns the view of the reply and its length.
func ask(server netip.AddrPort, q query, id uint16) (view, int, error) {
	wire, err := q.pack(id)
	if err != nil {
		return view{}, 0, fmt.Errorf("packing %s: %w", q, err)
	}
	network := "udp"
	if q.tcp {
		network = "tcp"
	}
	conn, err := sockets.get(q, network, server)
	if err != nil {
		return view{}, 0, fmt.Errorf("asking %s: %w", q, err)
	}
	reusable := false
	defer func() { sockets.put(conn, reusable) }()
	wait := longWait
	if q.dropped {
		wait = shortWait
	}
	conn.SetDeadline(time.Now().Add(wait))
	if _, err := conn.Write(wire); err != nil {
		return view{}, 0, fmt.Errorf("asking %s: %w", q, err)
	}
	buf := buffers.Get().(*[dns.MaxMsgSize]byte)
	defer buffers.Put(buf)
	n, err := conn.Read(buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return parseView(nil, id), 0, nil
	}
	if err != nil {
		return view{Outcome: "connection ends"}, 0, nil
	}
	v := parseView(buf[:n], id)
	// CoreDNS sends another reply after an error that template has made.
	reusable = v.Outcome == "answer" && (v.Rcode == "NOERROR" || v.Rcode == "NXDOMAIN")
	return v, n, nil
}

// dial connects to the server from the query's address.
func (q query) dial(network string, server netip.AddrPort) (*dns.Conn, error) {
	if q.namespace != "" {
		conn, err := testbed.Dial(q.namespace, network, server.String())
		if err != nil {
			return nil, err
		}
		return &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, nil
	}
	d := net.Dialer{Timeout: longWait}
	if q.from != "" {
		from := net.ParseIP(q.from)
		d.LocalAddr = &net.UDPAddr{IP: from}
		if network == "tcp" {
			d.LocalAddr = &net.TCPAddr{IP: from}
		}
	}
	conn, err := d.Dial(network, server.String())
	if err != nil {
		return nil, err
	}
	return &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, nil
}

// maxSize is how long a reply to the query may be.
func (q query) maxSize() int {
	if q.tcp {
		return dns.MaxMsgSize
	}
	// A smaller size than what every resolver takes counts as that.
	return max(dns.MinMsgSize, int(q.ednsSize))
}
