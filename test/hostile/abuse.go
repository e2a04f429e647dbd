package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/hostile/broken"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

const (
	// perSource is how many idle connections come from one address: fewer than a
	// limit for each client would allow, so that they meet the limit for all.
	perSource = 64
	// reopen is the pause before an idle connection that the agent closed is opened
	// again: as long as the agent lets one be silent, so that there are always as
	// many as asked for or as the agent takes.
	reopen = 10 * time.Second
	// slowPause is between two bytes of a slow sender.
	slowPause = time.Second
	// refusedPause is before a client that was turned away tries again.
	refusedPause = 100 * time.Millisecond
	// maxRefused bounds how often one query is tried: with the pause, three times as
	// long as the agent lets an idle connection be silent.
	maxRefused = 300
)

// clientAddr is the nth address of this machine's that abusers come from; clients that
// behave come from 127.0.0.1.
func clientAddr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)})
}

// abuser opens TCP connections to the agent and behaves badly on them.
type abuser struct {
	*accounting
	agent *agent
	from  netip.Addr
}

func (b abuser) dial(ctx context.Context) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.from, 0)), Timeout: replyTimeout}
	c, err := d.DialContext(ctx, "tcp4", b.agent.addr.String())
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(3 * replyTimeout))
	return c.(*net.TCPConn), nil
}

// openIdleConns holds n connections open that never say anything, until ctx ends.
func openIdleConns(ctx context.Context, a *agent, l *accounting, n int) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			b := abuser{l, a, clientAddr(i / perSource)}
			for ctx.Err() == nil {
				if c, err := b.dial(ctx); err == nil {
					l.silent.Add(1)
					_ = c.SetDeadline(time.Time{})
					stop := context.AfterFunc(ctx, func() { c.Close() })
					discardAll(c)
					stop()
					c.Close()
				}
				pause(ctx, reopen)
			}
		})
	}
	all.Wait()
}

// openSlowConns are n clients that send a byte a second, until ctx ends.
func openSlowConns(ctx context.Context, a *agent, l *accounting, n int) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			b := abuser{l, a, clientAddr(0xFF00 + i)}
			for ctx.Err() == nil {
				b.sendSlowly(ctx)
				pause(ctx, slowPause)
			}
		})
	}
	all.Wait()
}

func (b abuser) sendSlowly(ctx context.Context) {
	c, err := b.dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	b.slowly.Add(1)
	for _, octet := range fakedns.Frame(make([]byte, broken.HeaderLen+5)) {
		if _, err := c.Write([]byte{octet}); err != nil || !pause(ctx, slowPause) {
			return
		}
	}
}

// pause waits; false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sendBrokenFrames goes through the kinds of broken connections until ctx ends, with a
// well-formed query on a connection of its own after each.
func sendBrokenFrames(ctx context.Context, a *agent, l *accounting, m *broken.Mutator) {
	b := abuser{l, a, clientAddr(int(m.Uint32() & 0x7FFF))}
	for i := 0; ctx.Err() == nil && l.faultCount() < maxFaults; i++ {
		kind := connectionAbuses[i%len(connectionAbuses)]
		c, err := b.dial(ctx)
		if err == nil {
			err = kind.run(b, c, m)
			c.Close()
			l.frames.Add(1)
		}
		if err != nil && !closed(err) && ctx.Err() == nil {
			l.fault("%s: %v", kind.name, err)
		}
		if err := (client{l, a}).ask(ctx, m.Rand); err != nil && ctx.Err() == nil {
			l.fault("over TCP, after %s: %v", kind.name, err)
		}
	}
}

// closed says whether err is the agent's end of a connection, which is its right.
func closed(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) && !op.Timeout()
}

// connectionAbuses are what abusers do on a connection. An error other than the connection's
// end is a fault of the agent.
var connectionAbuses = []struct {
	name string
	run  func(b abuser, c *net.TCPConn, m *broken.Mutator) error
}{
	{"a frame of nothing", func(b abuser, c *net.TCPConn, _ *broken.Mutator) error { return b.expect(c, []byte{0, 0}) }},
	{"a frame of less than a header", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		return b.expect(c, fakedns.Frame(make([]byte, 1+m.IntN(broken.HeaderLen-1))))
	}},
	{"65,535 bytes of noise", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		noise := m.Garbage(nil, dns.MaxMsgSize)
		noise[2] &^= 0x80
		return b.expect(c, fakedns.Frame(noise))
	}},
	{"65,535 bytes behind a query", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		long := append(append([]byte(nil), m.Corpus[m.IntN(len(m.Corpus))]...), make([]byte, dns.MaxMsgSize)...)
		return b.expect(c, fakedns.Frame(long[:dns.MaxMsgSize]))
	}},
	{"65,535 bytes claimed, few sent", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		_, err := c.Write(append([]byte{0xFF, 0xFF}, m.Garbage(nil, m.IntN(5000))...))
		return err
	}},
	{"half a length", func(b abuser, c *net.TCPConn, _ *broken.Mutator) error {
		_, err := c.Write([]byte{0})
		return err
	}},
	{"a reset inside a frame", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		_ = c.SetLinger(0)
		_, err := c.Write(append([]byte{0, 100}, m.Garbage(nil, m.IntN(99))...))
		return err
	}},
	{"answers that nobody reads", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		for range 100 {
			q := question{name: "big." + goodZone, qtype: dns.TypeTXT}
			packet, err := q.query(m.Rand).Pack()
			if err != nil {
				return err
			}
			if _, err := c.Write(fakedns.Frame(packet)); err != nil {
				return err
			}
		}
		return nil
	}},
	{"a response", func(b abuser, c *net.TCPConn, m *broken.Mutator) error {
		packet := append([]byte(nil), m.Corpus[m.IntN(len(m.Corpus))]...)
		packet[2] |= 0x80
		if _, err := c.Write(fakedns.Frame(packet)); err != nil {
			return err
		}
		_ = c.CloseWrite()
		if msg, err := fakedns.ReadFrame(c); err == nil {
			return fmt.Errorf("it got %x", msg)
		}
		return nil
	}},
	{"broken frames before a good one", abuser.pipeline},
	{"a query in pieces", func(b abuser, c *net.TCPConn, m *broken.Mutator) error { return b.sendInPieces(c, m, false) }},
	{"a query and the end of the sending side", func(b abuser, c *net.TCPConn, m *broken.Mutator) error { return b.sendInPieces(c, m, true) }},
}

// expect sends bytes that are no query, or the beginning of one, and reads what
// comes: readable answers or the end of the connection.
func (b abuser) expect(c *net.TCPConn, bytes []byte) error {
	if _, err := c.Write(bytes); err != nil {
		return err
	}
	_ = c.CloseWrite()
	for {
		if _, err := readMessage(c); err != nil {
			return err
		}
	}
}

// pipeline sends broken frames that must all be answered, and a good one behind them.
func (b abuser) pipeline(c *net.TCPConn, m *broken.Mutator) error {
	out, n := brokenFrames(m)
	q := randomQuestion(m.Rand, b.fresh.Add(1))
	query := q.query(m.Rand)
	query.Id = firstGood
	packet, err := query.Pack()
	if err != nil {
		return err
	}
	if _, err := c.Write(append(out, fakedns.Frame(packet)...)); err != nil {
		return err
	}
	answered := false
	for i := range n + 1 {
		got, err := readMessage(c)
		switch {
		case errors.Is(err, errUnreadable):
			return err
		case err != nil:
			return b.explainMissing(fmt.Sprintf("frame %d of %d", i+1, n+1), i, err)
		case got.Id != firstGood:
			continue
		}
		answered = true
		if err := q.check(query, got, true); err != nil {
			return err
		}
	}
	if !answered {
		return fmt.Errorf("%s got no answer behind broken frames", q.name)
	}
	return nil
}

// brokenFrames are up to sixteen frames with IDs from 0 on, one behind the other.
func brokenFrames(m *broken.Mutator) (out []byte, n int) {
	for range 16 {
		packet := m.Next()
		if noReplyExpected(packet) || len(packet) > long {
			continue
		}
		binary.BigEndian.PutUint16(packet, uint16(n))
		out = append(out, fakedns.Frame(packet)...)
		n++
	}
	return out, n
}

// errUnreadable is what a message that can't be read wraps.
var errUnreadable = errors.New("an answer that can't be read")

func readMessage(c *net.TCPConn) (*dns.Msg, error) {
	msg, err := fakedns.ReadFrame(c)
	if err != nil {
		return nil, err
	}
	got := new(dns.Msg)
	if err := got.Unpack(msg); err != nil {
		return nil, fmt.Errorf("%w: %w: %x", errUnreadable, err, msg)
	}
	return got, nil
}

// sendInPieces sends a well-formed query in three writes, and may then say that no more
// will come.
func (b abuser) sendInPieces(c *net.TCPConn, m *broken.Mutator, end bool) error {
	q := randomQuestion(m.Rand, b.fresh.Add(1))
	query := q.query(m.Rand)
	packet, err := query.Pack()
	if err != nil {
		return err
	}
	_ = c.SetNoDelay(true)
	out := fakedns.Frame(packet)
	for len(out) > 0 {
		n := min(len(out), 1+m.IntN(20))
		if _, err := c.Write(out[:n]); err != nil {
			return err
		}
		out = out[n:]
	}
	if end {
		_ = c.CloseWrite()
	}
	got, err := readMessage(c)
	switch {
	case errors.Is(err, errUnreadable):
		return err
	case err != nil:
		return b.explainMissing(q.name, 0, err)
	}
	return q.check(query, got, true)
}

// explainMissing is what an answer that did not come means, after so many that did: without
// any, the connection may have been turned away for want of a place.
func (b abuser) explainMissing(what string, before int, err error) error {
	if before == 0 && closed(err) {
		b.refused.Add(1)
		return nil
	}
	return fmt.Errorf("%s got no answer: %v", what, err) //nolint:errorlint // the connection's end is a fault here
}

// client is one that behaves.
type client struct {
	*accounting
	agent *agent
}

// ask asks one question over a TCP connection of its own. Where idle connections
// hold all places it may be turned away; it tries again, as resolvers do.
func (c client) ask(ctx context.Context, r *rand.Rand) error {
	q := randomQuestion(r, c.fresh.Add(1))
	query := q.query(r)
	for tries := 0; tries < maxRefused && ctx.Err() == nil; tries++ {
		c.askedTCP.Add(1)
		got, err := c.agent.ask(ctx, "tcp", query)
		switch {
		case err == nil:
			return q.check(query, got, true)
		case !closed(err):
			return fmt.Errorf("%s: %w", q.name, err)
		case ctx.Err() == nil:
			c.refused.Add(1)
			pause(ctx, refusedPause)
		}
	}
	return fmt.Errorf("%s: turned away %d times", q.name, maxRefused)
}

// types are asked of names whose replies the upstream breaks.
var types = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeMX, dns.TypeTXT, dns.TypeHTTPS, dns.TypeNS, dns.TypeANY}

// sendProbes asks for names whose replies the upstream breaks, and after each for a good
// one, until ctx ends. Whatever comes must be readable.
func sendProbes(ctx context.Context, a *agent, l *accounting, m *broken.Mutator) {
	c := client{l, a}
	for l.faultCount() < maxFaults {
		bad, good := c.probe(ctx, m), c.askFresh(ctx, m)
		if ctx.Err() != nil {
			return // either may have been broken off
		}
		if bad != nil {
			l.fault("a name whose replies are broken: %v", bad)
		}
		if good != nil {
			l.fault("after a broken reply: %v", good)
		}
	}
}

func (c client) probe(ctx context.Context, m *broken.Mutator) error {
	q := question{name: fmt.Sprintf("p%d.%s", c.fresh.Add(1), brokenZone), qtype: types[m.IntN(len(types))]}
	query := q.query(m.Rand)
	network := "udp"
	if m.IntN(8) == 0 {
		network = "tcp"
	}
	got, err := c.agent.ask(ctx, network, query)
	switch {
	case network == "tcp" && err != nil && closed(err):
		c.refused.Add(1)
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", q.name, err)
	case len(got.Question) != 1 || got.Question[0] != query.Question[0]:
		return fmt.Errorf("%s: answered %v", q.name, got)
	case got.Rcode == dns.RcodeServerFailure:
		c.servfail.Add(1)
	}
	c.probed.Add(1)
	if network == "udp" {
		c.extra.Add(1)
	}
	return nil
}

func (c client) askFresh(ctx context.Context, m *broken.Mutator) error {
	q := newQuestion(c.accounting.fresh.Add(1))
	query := q.query(m.Rand)
	got, err := c.agent.ask(ctx, "udp", query)
	if err != nil {
		return fmt.Errorf("%s: %w", q.name, err)
	}
	c.extra.Add(1)
	return q.check(query, got, false)
}
