package load

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is clients of one kind.
type Stream struct {
	// Questions are packed queries that are asked in turn; their IDs are of no
	// account. There is at least one.
	Questions [][]byte
	// Fresh makes every name a new one: the first label of the one question,
	// which has eight letters, becomes a number in hexadecimal, from First up.
	Fresh bool
	First uint32
	// Rate is how many queries a second are sent, evenly spaced, whether answers
	// come or not.
	Rate int
	// Window, if there is no Rate, is how many queries are under way.
	Window int
	// Count, if it is not 0, ends the stream after so many queries; else the job's
	// length does.
	Count int
	// Patience is how long an answer may take; 0 is a second.
	Patience time.Duration
	// Sockets is from how many sockets the queries come, in turn.
	Sockets int
	// From is the IPv4 address that they come from; the zero Addr is the one that the
	// kernel picks.
	From netip.Addr
	// Sources, if there are any, are the sockets' addresses, in turn, in place of From.
	Sources []netip.Addr
	// Open, if it is not nil, is called for each socket with its number and a function that opens it.
	// It calls the function on a thread that is in the socket's network namespace, and returns its error.
	Open func(i int, open func() error) error
	// Connect makes the stream open TCP connections at the Rate in place of sending queries. Each of the
	// Sockets is a connection that stays open, and idle, until all others have been opened after it. Sent
	// counts connections that were begun; nothing is counted as answered or lost.
	Connect bool
	// Server is who is asked, if it is another one than the job's.
	Server netip.AddrPort
	// RefusedIsLost says that queries are lost that reach no socket, which the server's kernel
	// says. Otherwise they end the job with an error.
	RefusedIsLost bool
}

// Result is what became of a stream.
type Result struct {
	// Every query sent is answered or lost in the end.
	Sent, Answered, Lost uint64
	// Skipped is how many queries of a Rate were due while the loop did not have
	// its core. They are not made up for, because that would be a burst.
	Skipped uint64
	// Rcodes counts the answers by their response code.
	Rcodes [16]uint64
	// Prompt is how many answers had the rcode NOERROR and came within a second.
	Prompt uint64
	// RequestBytes and ResponseBytes are sums.
	RequestBytes, ResponseBytes uint64
	// Latencies are those of a Rate's answers, in their order of arrival, but for
	// Blurred ones that arrived while the loop did not have its core.
	Latencies []time.Duration
	Blurred   uint64
	// Elapsed is the time from the first query to the last answer, or to giving
	// it up.
	Elapsed time.Duration
}

// defaultPatience is how long an answer may take: servers give up on an upstream after
// two seconds and more, but this one answers in milliseconds, so what takes a
// second has been thrown away somewhere.
const defaultPatience = time.Second

// burst is how many queries of a Window are sent before the loop looks for
// answers: few enough that those of other streams are not late for it.
const burst = 8

// slots is the number of IDs.
const slots = 1 << 16

// socket is one of a client's sockets. Its queries have IDs in turn.
type socket struct {
	fd int
	// head counts the queries, tail those whose fate is known without a gap.
	head, tail uint32
	// sent is when the query with the ID was sent, 0 if it is not under way; nil for connections.
	sent  *[slots]time.Duration
	owner *client
}

// client is a stream under way. Only the loop uses it.
type client struct {
	Stream
	clock
	socks      []*socket
	to         netip.AddrPort
	turn, next int
	fresh      uint32
	under      int
	start      time.Duration
	due, every time.Duration
	ends       time.Duration
	swept      time.Duration
	errno      unix.Errno
	Result
}

// newClient opens the stream's sockets; the caller closes the client, also after
// an error.
func newClient(s Stream, to netip.AddrPort, length time.Duration) (*client, error) {
	c := &client{Stream: s, fresh: s.First}
	c.Patience = cmp.Or(s.Patience, defaultPatience)
	if s.Server.IsValid() {
		to = s.Server
	}
	// The queries get their IDs in place, and a fresh name in place.
	c.Questions = make([][]byte, len(s.Questions))
	for i, q := range s.Questions {
		c.Questions[i] = append([]byte(nil), q...)
		if s.Fresh && (len(q) < 21 || q[12] != 8) {
			return c, fmt.Errorf("a fresh name takes a first label of eight letters, not of %d", q[12])
		}
	}
	if s.Rate > 0 {
		c.every = time.Second / time.Duration(s.Rate)
		c.Latencies = make([]time.Duration, 0, max(int(length/c.every)+1, s.Count))
	}
	for i := range s.Sockets {
		from := s.From
		if len(s.Sources) > 0 {
			from = s.Sources[i%len(s.Sources)]
		}
		if err := c.open(i, from, to); err != nil {
			return c, err
		}
	}
	return c, nil
}

// open opens the i-th socket.
func (c *client) open(i int, from netip.Addr, to netip.AddrPort) error {
	s := &socket{owner: c}
	do := func() (err error) {
		if c.Connect {
			s.fd, err = openStream(from)
		} else {
			s.fd, err = open(from, to, receiveBuffer)
			s.sent = new([slots]time.Duration)
		}
		return err
	}
	if c.Open != nil {
		wrapped := do
		do = func() error { return c.Open(i, wrapped) }
	}
	if err := do(); err != nil {
		return err
	}
	c.to, c.socks = to, append(c.socks, s)
	return nil
}

func (c *client) close() {
	for _, s := range c.socks {
		unix.Close(s.fd)
	}
}

// begin starts the stream's time. phase, between 0 and 1, is when the first query is due, in units of the
// interval: streams of the same rate with different phases don't send in pairs.
func (c *client) begin(now, length time.Duration, phase float64) {
	c.start, c.due, c.swept = now, now+time.Duration(phase*float64(c.every)), now
	c.ends = now + length
	if length == 0 {
		c.ends = 1<<63 - 1
	}
}

// finished says whether there is nothing left to send or to wait for.
func (c *client) finished(now time.Duration) bool {
	return c.errno != 0 || (c.under == 0 && (now >= c.ends || c.asked()))
}

// asked says whether the stream has sent as many queries as it is to.
func (c *client) asked() bool { return c.Count > 0 && c.Sent >= uint64(c.Count) }

// ask sends what is due.
func (c *client) ask(now time.Duration) {
	if now-c.swept > c.Patience/100 {
		c.sweep(now)
	}
	switch {
	case c.errno != 0 || c.asked():
	case c.Rate > 0:
		c.tick(now)
	default:
		for i := 0; i < burst && c.under < c.Window && now < c.ends && !c.asked(); i++ {
			if !c.send() {
				return
			}
		}
	}
}

// tick sends the query of a Rate that is due, and leaves out what was due besides.
func (c *client) tick(now time.Duration) {
	if now >= c.due && now < c.ends && c.send() {
		c.due += c.every
	}
	if until := min(now, c.ends-1); until >= c.due {
		late := until - c.due
		c.Skipped += uint64(late/c.every) + 1
		c.due = until + c.every - late%c.every
	}
}

// send sends one query from the socket whose turn it is.
func (c *client) send() bool {
	s := c.socks[c.turn]
	if c.Connect {
		return c.connect(s)
	}
	id := uint16(s.head)
	if s.sent[id] != 0 {
		return false // every ID is under way
	}
	q := c.Questions[c.next]
	binary.BigEndian.PutUint16(q, id)
	if c.Fresh {
		number(q[13:21], c.fresh)
	}
	s.sent[id] = c.now()
	if errno := send(s.fd, q, nil); errno != 0 {
		s.sent[id] = 0
		if errno != unix.EAGAIN && errno != unix.ENOBUFS {
			c.fail(errno)
		}
		return false
	}
	s.head++
	c.fresh++
	c.turn, c.next = (c.turn+1)%len(c.socks), (c.next+1)%len(c.Questions)
	c.under++
	c.Sent++
	c.RequestBytes += uint64(len(q))
	return true
}

// fail ends the stream, unless the error says that nobody listens and that counts as a loss.
func (c *client) fail(errno unix.Errno) {
	if errno != unix.ECONNREFUSED || !c.RefusedIsLost {
		c.errno = errno
	}
}

// number writes n as eight hexadecimal digits.
func number(to []byte, n uint32) {
	const digits = "0123456789abcdef"
	for i := 7; i >= 0; i-- {
		to[i] = digits[n&15]
		n >>= 4
	}
}

// receive takes one datagram that arrived at the time; blurred says that it may
// have done so earlier.
func (s *socket) receive(buf []byte, at time.Duration, blurred bool) {
	c := s.owner
	n, errno := receive(s.fd, buf, nil)
	if errno != 0 {
		if errno != unix.EAGAIN && errno != unix.EINTR {
			c.fail(errno)
		}
		return
	}
	if n < 12 || buf[2]&0x80 == 0 {
		return
	}
	id := binary.BigEndian.Uint16(buf)
	sent := s.sent[id]
	if sent == 0 {
		return // it was given up already
	}
	s.sent[id] = 0
	c.under--
	c.ResponseBytes += uint64(n)
	c.Elapsed = at - c.start
	c.count(buf[3]&15, at-sent, blurred)
}

// count counts an answer with the rcode that took so long.
func (c *client) count(rcode byte, took time.Duration, blurred bool) {
	c.Answered++
	c.Rcodes[rcode]++
	if rcode == 0 && took <= time.Second {
		c.Prompt++
	}
	switch {
	case c.Rate == 0:
	case blurred:
		c.Blurred++
	case len(c.Latencies) < cap(c.Latencies):
		c.Latencies = append(c.Latencies, took)
	}
}

// sweep gives up what has been under way for too long.
func (c *client) sweep(now time.Duration) {
	c.swept = now
	for _, s := range c.socks {
		for ; s.tail != s.head; s.tail++ {
			sent := &s.sent[uint16(s.tail)]
			if *sent != 0 && now-*sent < c.Patience {
				break
			}
			if *sent != 0 {
				*sent = 0
				c.under--
				c.Lost++
				c.Elapsed = now - c.start
			}
		}
	}
}
