package worst

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// Upstream is a DNS server over UDP and TCP on one port of 127.0.0.1 whose replies for
// [Bombs] are as expensive to read as 64 KB can be, and which says nothing about
// [Silence]. Names
// that begin with the label nothing do not exist; all others have one address.
type Upstream struct {
	udp, tcp *dns.Server
	addr     netip.AddrPort
	done     sync.WaitGroup
}

// Open starts an upstream; the caller calls Close.
func Open() (*Upstream, error) {
	packets, streams, err := listen()
	if err != nil {
		return nil, fmt.Errorf("starting the upstream: %w", err)
	}
	u := &Upstream{addr: packets.LocalAddr().(*net.UDPAddr).AddrPort()}
	u.udp = &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(answer)}
	u.tcp = &dns.Server{Listener: streams, Handler: dns.HandlerFunc(answer)}
	for _, s := range []*dns.Server{u.udp, u.tcp} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		u.done.Go(func() { _ = s.ActivateAndServe() })
		<-started
	}
	return u, nil
}

// listen takes a port that is free for UDP and TCP. Another process may take either
// between the two calls, so it tries again with another port.
func listen() (packets net.PacketConn, streams net.Listener, err error) {
	for range 20 {
		if packets, err = net.ListenPacket("udp4", "127.0.0.1:0"); err != nil {
			return nil, nil, err
		}
		if streams, err = net.Listen("tcp4", packets.LocalAddr().String()); err == nil {
			return packets, streams, nil
		}
		_ = packets.Close()
	}
	return nil, nil, err
}

// Addr is where it listens.
func (u *Upstream) Addr() netip.AddrPort { return u.addr }

// Close ends it.
func (u *Upstream) Close() {
	_, _ = u.udp.Shutdown(), u.tcp.Shutdown()
	u.done.Wait()
}

// answer answers one query.
func answer(w dns.ResponseWriter, q *dns.Msg) {
	name := q.Question[0].Name
	switch {
	case dns.IsSubDomain(Silence, name):
	case dns.IsSubDomain(Bombs, name):
		_, over := w.LocalAddr().(*net.TCPAddr)
		if !over {
			m := new(dns.Msg).SetReply(q)
			m.Truncated = true
			_ = w.WriteMsg(m)
			return
		}
		if msg, err := PointerBomb(q); err == nil {
			_, _ = w.Write(msg)
		}
	case strings.HasPrefix(name, absent):
		m := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 3600},
			Ns: ".", Mbox: ".", Minttl: 3600}}
		_ = w.WriteMsg(m)
	default:
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(m)
	}
}

// absent is what names that do not exist begin with.
const absent = "nothing."

// maxPointed is the last offset that a compression pointer reaches (RFC 1035, 4.1.4).
const maxPointed = 1<<14 - 1

// links is the length of the chain in a [PointerBomb]: nearly as many labels of one
// letter as a name of 255 octets has.
const links = 120

// privateType is a record type without a known form (RFC 6895, 3.1): whatever its data
// holds is taken as bytes.
const privateType = 65280

// PointerBomb is the reply to q that takes a reader the most work in 64 KB. The data of
// its first record holds a chain of names, each of which is one label in front of a
// pointer to the one before it. All other records have the last of them as their owner
// and in their data.
func PointerBomb(q *dns.Msg) ([]byte, error) {
	msg, err := new(dns.Msg).SetReply(q).Pack()
	if err != nil {
		return nil, err
	}
	data := []byte{0}      // the root
	first := len(msg) + 12 // behind the record's owner, type, class, TTL and length
	last := first
	for range links {
		at := first + len(data)
		data = append(data, 1, 'a', 0xC0|byte(last>>8), byte(last))
		last = at
	}
	if last > maxPointed {
		return nil, errors.New("the question is too long: the chain is out of a pointer's reach")
	}
	msg = appendRecord(msg, []byte{0xC0, 12}, privateType, data)
	count := 1
	pointer := []byte{0xC0 | byte(last>>8), byte(last)}
	for ; len(msg)+14 <= dns.MaxMsgSize; count++ {
		msg = appendRecord(msg, pointer, dns.TypeNS, pointer)
	}
	binary.BigEndian.PutUint16(msg[6:], uint16(count))
	return msg, nil
}

// appendRecord appends a record whose owner is in wire form.
func appendRecord(msg, owner []byte, rrtype uint16, data []byte) []byte {
	msg = append(msg, owner...)
	msg = binary.BigEndian.AppendUint16(msg, rrtype)
	msg = binary.BigEndian.AppendUint16(msg, dns.ClassINET)
	msg = binary.BigEndian.AppendUint32(msg, 3600)
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(data)))
	return append(msg, data...)
}
