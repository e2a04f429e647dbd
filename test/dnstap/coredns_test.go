package dnstap

import (
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

	"github.com/nodens-dns/nodens/test/agenttest"
	"github.com/nodens-dns/nodens/test/fakedns"
	"github.com/nodens-dns/nodens/test/peer"
)

// programs are the servers that are compared, with their flags.
var programs = map[string][]string{
	"coredns": nil,
	"nodens":  {"-setupinterface=false", "-setupiptables=false", "-health-port=0", "-metrics-listen-address="},
}

// startServer starts a program that forwards to an upstream and has the dnstap lines, and returns its
// port and the upstream's address.
func startServer(t *testing.T, program string, lines ...string) (port uint16, upstream netip.AddrPort) {
	t.Helper()
	up := fakedns.Start(t, fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 300, "192.0.2.1") }))
	port, upstream = peer.Ports(t, 1)[0], up.Addr()
	text := fmt.Sprintf(".:%d {\n    bind 127.0.0.1\n    metadata\n    cache 300\n    forward . %s\n    %s\n}\n", port, upstream, strings.Join(lines, "\n    "))
	conf := filepath.Join(t.TempDir(), "Corefile")
	agenttest.WriteFile(t, conf, text)
	p := peer.Start(t, peer.Command{Name: program, Path: peer.Build(t, program), Args: append([]string{"-conf", conf}, programs[program]...)})
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

// decode decodes a frame. It is false for messages about another name.
func decode(t *testing.T, frame []byte, upstream netip.AddrPort) (received, bool) {
	t.Helper()
	payload := new(dnstap.Dnstap)
	if err := proto.Unmarshal(frame, payload); err != nil {
		t.Fatal(err)
	}
	m := payload.GetMessage()
	r := received{
		Type: m.GetType().String(), Protocol: m.GetSocketProtocol().String(), Family: m.GetSocketFamily().String(),
		Client:    net.IP(m.QueryAddress).IsLoopback() && m.GetQueryPort() != 0,
		Server:    net.IP(m.ResponseAddress).IsLoopback() && m.GetResponsePort() == uint32(upstream.Port()),
		QueryTime: m.GetQueryTimeSec() != 0, ReplyTime: m.GetResponseTimeSec() != 0,
		Query: question(t, m.QueryMessage), Reply: question(t, m.ResponseMessage),
		Extra: strings.ReplaceAll(string(payload.Extra), upstream.String(), "UPSTREAM"),
	}
	return r, strings.Contains(r.Query+r.Reply, "tapped.test.")
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
func messages(t *testing.T, frames <-chan []byte, port uint16, upstream netip.AddrPort) (list []received) {
	t.Helper()
	for _, want := range []int{4, 6} {
		if got := agenttest.Ask(t, port, "www.tapped.test."); got != "192.0.2.1" {
			t.Fatalf("the answer is %s", got)
		}
		for end := time.After(hangTimeout); len(list) < want; {
			select {
			case frame := <-frames:
				if m, ok := decode(t, frame, upstream); ok {
					list = append(list, m)
				}
			case <-end:
				t.Fatalf("no more than %d messages: %+v", len(list), list)
			}
		}
	}
	return list
}

// TestMessagesBesideCoreDNS: for a miss and a hit, the messages are CoreDNS's, in the same order.
func TestMessagesBesideCoreDNS(t *testing.T) {
	var lists [][]received
	for _, program := range []string{"coredns", "nodens"} {
		path := filepath.Join(t.TempDir(), "s")
		frames := collect(t, path)
		port, upstream := startServer(t, program, "dnstap "+path+" full {\n        extra \"{name} {/forward/upstream}\"\n    }")
		lists = append(lists, messages(t, frames, port, upstream))
	}
	if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
		t.Errorf("(-CoreDNS +nodens):\n%s", diff)
	}
	if first := lists[1][1]; first.Type != "FORWARDER_QUERY" {
		t.Errorf("the second message is %s", first.Type)
	}
}

// TestListenBesideCoreDNS: a collector that connects gets the same messages from both programs.
func TestListenBesideCoreDNS(t *testing.T) {
	var lists [][]received
	for _, program := range []string{"coredns", "nodens"} {
		address := fmt.Sprintf("127.0.0.1:%d", peer.Ports(t, 1)[0])
		port, upstream := startServer(t, program, "dnstap listen tcp://"+address+" full")
		var conn net.Conn
		for end := time.Now().Add(hangTimeout); conn == nil; time.Sleep(time.Millisecond) {
			var err error
			if conn, err = net.Dial("tcp", address); err != nil && time.Now().After(end) {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = conn.Close() })
		in, err := dnstap.NewFrameStreamInput(conn, true)
		if err != nil {
			t.Fatal(err)
		}
		frames := make(chan []byte, 1024)
		go in.ReadInto(frames)
		awaitMessages(t, frames, port)
		lists = append(lists, messages(t, frames, port, upstream))
	}
	if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
		t.Errorf("(-CoreDNS +nodens):\n%s", diff)
	}
}

// awaitMessages asks until the collector gets messages: it may be connected before it is served.
func awaitMessages(t *testing.T, frames <-chan []byte, port uint16) {
	t.Helper()
	for end := time.Now().Add(hangTimeout); time.Now().Before(end); {
		_ = agenttest.Ask(t, port, "other.test.")
		select {
		case <-frames:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("no message arrived")
}
