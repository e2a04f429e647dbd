package dnstap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dnstap "github.com/dnstap/golang-dnstap"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"google.golang.org/protobuf/proto"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// startServer starts a program that forwards to an upstream and has the dnstap lines, and returns its
// port and the upstream's address.
func startServer(t *testing.T, program string, lines ...string) (port uint16, upstream netip.AddrPort) {
	t.Helper()
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 300, "192.0.2.1") }))
	port, upstream = peer.Ports(t, 1)[0], up.Addr()
	text := fmt.Sprintf(".:%d {\n    bind 127.0.0.1\n    metadata\n    cache 300\n    forward . %s\n    %s\n}\n", port, upstream, strings.Join(lines, "\n    "))
	p := peer.StartServer(t, text, peer.Command{Name: program})
	p.Must(t, program+" to answer", peer.Answers(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)))
	return port, upstream
}

// received is what is compared of a message.
type received struct {
	Type, Protocol, Family string
	Client, Server         bool // addresses and ports
	QueryTime, ReplyTime   bool
	Query, Reply           string // the questions of the packets
	Extra                  string
}

// decode decodes a frame.
func decode(t *testing.T, frame []byte, upstream netip.AddrPort) received {
	t.Helper()
	payload := new(dnstap.Dnstap)
	if err := proto.Unmarshal(frame, payload); err != nil {
		t.Fatal(err)
	}
	m := payload.GetMessage()
	return received{
		Type: m.GetType().String(), Protocol: m.GetSocketProtocol().String(), Family: m.GetSocketFamily().String(),
		Client:    net.IP(m.QueryAddress).IsLoopback() && m.GetQueryPort() != 0,
		Server:    net.IP(m.ResponseAddress).IsLoopback() && m.GetResponsePort() == uint32(upstream.Port()),
		QueryTime: m.GetQueryTimeSec() != 0, ReplyTime: m.GetResponseTimeSec() != 0,
		Query: question(t, m.QueryMessage), Reply: question(t, m.ResponseMessage),
		Extra: strings.ReplaceAll(string(payload.Extra), upstream.String(), "UPSTREAM"),
	}
}

// question returns the question of a packet, "" without one.
func question(t *testing.T, packet []byte) string {
	t.Helper()
	if packet == nil {
		return ""
	}
	m := new(dns.Msg)
	if err := m.Unpack(packet); err != nil || len(m.Question) != 1 {
		t.Fatalf("packet %x: %v", packet, err)
	}
	return m.Question[0].Name
}

// messages asks for a name twice, which is a miss and a hit, and returns the messages. The second
// query waits for all messages of the first: a program may reply before it sends the last of them.
func messages(t *testing.T, frames <-chan []byte, port uint16, upstream netip.AddrPort) (list []received, err error) {
	t.Helper()
	for _, want := range []int{4, 6} {
		agenttest.Expect(t, port, "www.tapped.test.", "192.0.2.1")
		for len(list) < want {
			m, ok := next(t, frames, upstream, hangTimeout)
			if !ok {
				return nil, fmt.Errorf("no more than %d messages: %+v", len(list), list)
			}
			if strings.Contains(m.Query+m.Reply, "tapped.test.") {
				list = append(list, m)
			}
		}
	}
	return list, nil
}

// TestMessagesBesideCoreDNS: for a miss and a hit, the messages are CoreDNS's, in the same order.
func TestMessagesBesideCoreDNS(t *testing.T) {
	var lists [][]received
	for _, program := range []string{"coredns", "nodens"} {
		path := filepath.Join(t.TempDir(), "s")
		frames := collect(t, path)
		port, upstream := startServer(t, program, "dnstap "+path+" full {\n        extra \"{name} {/forward/upstream}\"\n    }")
		list, err := messages(t, frames, port, upstream)
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, list)
	}
	if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
		t.Errorf("(-CoreDNS +nodens):\n%s", diff)
	}
	if first := lists[1][1]; first.Type != "FORWARDER_QUERY" {
		t.Errorf("the second message is %s", first.Type)
	}
}

// TestListenBesideCoreDNS: a collector that connects gets the same messages from both programs. CoreDNS 1.15
// writes to a collector from several goroutines without a lock, which breaks the stream now and then: it
// may try again.
func TestListenBesideCoreDNS(t *testing.T) {
	var lists [][]received
	for _, program := range []string{"coredns", "nodens"} {
		list, err := listen(t, program)
		for tries := 1; err != nil && program == "coredns" && tries < 5; tries++ {
			t.Logf("CoreDNS: %v", err)
			list, err = listen(t, program)
		}
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}
		lists = append(lists, list)
	}
	if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
		t.Errorf("(-CoreDNS +nodens):\n%s", diff)
	}
}

// listen starts the program, connects a collector to it, and returns the messages about two queries.
func listen(t *testing.T, program string) ([]received, error) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", peer.Ports(t, 1)[0])
	port, upstream := startServer(t, program, "dnstap listen tcp://"+address+" full")
	var conn net.Conn
	for end := time.Now().Add(hangTimeout); conn == nil; time.Sleep(time.Millisecond) {
		var err error
		if conn, err = net.Dial("tcp", address); err != nil && time.Now().After(end) {
			return nil, err
		}
	}
	t.Cleanup(func() { _ = conn.Close() })
	in, err := dnstap.NewFrameStreamInput(conn, true)
	if err != nil {
		return nil, err
	}
	frames := make(chan []byte, 1024)
	go in.ReadInto(frames)
	if err := awaitMessages(t, frames, port, upstream); err != nil {
		return nil, err
	}
	return messages(t, frames, port, upstream)
}

// awaitMessages asks until the collector gets a query's last message: it may be connected before it is
// served. A query that may still have messages to come has no other beside it.
func awaitMessages(t *testing.T, frames <-chan []byte, port uint16, upstream netip.AddrPort) error {
	t.Helper()
	end := time.Now().Add(hangTimeout)
	for i := 0; time.Now().Before(end); i++ {
		name := fmt.Sprintf("n%d.other.test.", i)
		_ = agenttest.Ask(t, port, name)
		for wait := 100 * time.Millisecond; ; wait = hangTimeout {
			m, ok := next(t, frames, upstream, wait)
			if !ok {
				break
			}
			if m.Type == "CLIENT_RESPONSE" && m.Reply == name {
				return nil
			}
		}
	}
	return errors.New("no message arrived")
}

// next returns the next message. It is false if none arrives in time.
func next(t *testing.T, frames <-chan []byte, upstream netip.AddrPort, wait time.Duration) (received, bool) {
	t.Helper()
	select {
	case frame := <-frames:
		return decode(t, frame, upstream), true
	case <-time.After(wait):
		return received{}, false
	}
}
