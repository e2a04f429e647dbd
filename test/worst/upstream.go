package worst

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// Open starts the upstream of the cases on a free port of 127.0.0.1. The caller closes it. Its
// replies for [Bombs] are as expensive to parse as 64 KB can be, those for [Large] as large, and it
// ignores queries for [Silence]. Names whose first label is nothing do not exist; all others have one address.
func Open() (*fakedns.Server, error) { return fakedns.Open(answer, fakedns.Options{}) }

func answer(q *fakedns.Query) {
	name := q.Question[0].Name
	switch {
	case dns.IsSubDomain(Silence, name):
	case q.Transport == fakedns.UDP && (dns.IsSubDomain(Bombs, name) || dns.IsSubDomain(Large, name)):
		m := new(dns.Msg).SetReply(q.Msg)
		m.Truncated = true
		q.Reply(m)
	case dns.IsSubDomain(Bombs, name):
		if msg, err := PointerBomb(q.Msg); err == nil {
			q.Send(msg)
		}
	case dns.IsSubDomain(Large, name):
		q.Reply(large(q.Msg))
	case strings.HasPrefix(name, absent):
		q.Reply(fakedns.Negative(q.Msg, dns.RcodeNameError, ttl))
	default:
		// An address for queries of every type: a reply that the agent forwards as it is.
		m := new(dns.Msg).SetReply(q.Msg)
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: net.IPv4(192, 0, 2, 1)}}
		q.Reply(m)
	}
}

// ttl is the TTL of all replies, in seconds: longer than a run.
const ttl = 3600

// largest is the number of addresses of one name that fit into 64 KB, beside what precedes them.
const largest = 4000

// large is a reply to q with that many addresses.
func large(q *dns.Msg) *dns.Msg {
	addrs := make([]string, largest)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("198.18.%d.%d", i>>8, i&255)
	}
	m := fakedns.Address(q, ttl, addrs...)
	m.Compress = true
	return m
}

// absent is the first label of names that do not exist.
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
	msg = binary.BigEndian.AppendUint32(msg, ttl)
	msg = binary.BigEndian.AppendUint16(msg, uint16(len(data)))
	return append(msg, data...)
}
