package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/testbed"
	"github.com/nodens-dns/nodens/test/soak"
)

// observation is a reply's first address and TTL, with the times of the query and the reply.
type observation struct {
	sent, received time.Time
	addr           [4]byte
	ttl            uint32
}

// poller sends one query from the pod again and again, as fast as replies arrive unless it pauses.
type poller struct {
	network *network
	pause   atomic.Int64 // nanoseconds between two queries
	stop    chan struct{}
	done    chan struct{}

	mu   sync.Mutex // guards the fields below
	seen []observation
	err  error
}

// startPoller starts a poller, which stops when the test ends.
func (l *network) startPoller(query []byte) *poller {
	l.t.Helper()
	c := l.client(l.pod, local4)
	w := &poller{network: l, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for id := uint16(1); ; id++ {
			select {
			case <-w.stop:
				return
			default:
			}
			time.Sleep(time.Duration(w.pause.Load()))
			if err := w.poll(c, query, id); err != nil {
				w.mu.Lock()
				w.err = err
				w.mu.Unlock()
				return
			}
		}
	}()
	l.t.Cleanup(func() {
		close(w.stop)
		<-w.done
	})
	return w
}

func (w *poller) poll(c *client, query []byte, id uint16) error {
	packet := append([]byte{byte(id >> 8), byte(id)}, query[2:]...)
	s := observation{sent: time.Now()}
	_ = c.SetDeadline(s.sent.Add(answerTimeout))
	if _, err := c.Write(packet); err != nil {
		return err
	}
	var b [dns.MinMsgSize]byte
	n, err := c.Read(b[:])
	if err != nil {
		return err
	}
	s.received = time.Now()
	at := len(query) + 2 // after the pointer to the name
	if n < at+14 || b[0] != packet[0] || b[1] != packet[1] || b[3]&15 != 0 {
		return fmt.Errorf("%x is no answer to %x", b[:n], packet)
	}
	s.ttl = binary.BigEndian.Uint32(b[at+4:])
	copy(s.addr[:], b[at+10:])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, s)
	return nil
}

// waitForMore waits for more replies, and returns all since its last call.
func (w *poller) waitForMore() (seen []observation) {
	w.network.t.Helper()
	w.mu.Lock()
	then := len(w.seen)
	w.mu.Unlock()
	err := peer.Await(w.network.t.Context(), "some answers", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err != nil {
			w.network.t.Fatal(w.err)
		}
		if n := len(w.seen) - then; n < repeats {
			return fmt.Errorf("%d so far", n)
		}
		seen, w.seen = w.seen, nil
		return nil
	})
	if err != nil {
		w.network.t.Fatal(err)
	}
	return seen
}

// wantKernelReplies checks that the kernel sent at least a tenth of the replies since then;
// otherwise the test would say little about the kernel. On a busy machine the agent misses
// heartbeats, and meanwhile the kernel passes queries on.
func (l *network) wantKernelReplies(then, answers int) {
	l.t.Helper()
	n := l.kernelAnswers() - then
	if n < answers/10 {
		l.t.Errorf("the kernel sent %d of %d replies, want a tenth at least", n, answers)
	}
}

// TestKernelReload: once a new configuration is active, no reply comes from the previous one.
func TestKernelReload(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	p := l.startInKernel()
	conf := filepath.Join(l.dir, "Corefile")
	text, err := os.ReadFile(conf)
	check.NoError(t, err)
	query := pack(question("web.shop.svc.cluster.local.", dns.TypeA))
	w := l.startPoller(query)
	ack := &dns.Conn{Conn: dialAgent(t, l.node, "tcp")}
	all, then := 0, l.kernelAnswers()
	for n := range uint32(5) {
		ttl := 10 + n
		all += len(w.waitForMore())
		agenttest.ReplaceFile(t, conf, []byte(strings.Replace(string(text), "manifests ", fmt.Sprintf("ttl %d\n        manifests ", ttl), 1)))
		check.NoError(t, p.Signal(syscall.SIGUSR1))
		var at time.Time
		p.Must(t, "the agent to answer by the new configuration", func(context.Context) error {
			m, err := exchangeTCP(ack, query)
			if err == nil && m.Answer[0].Header().Ttl != ttl {
				err = fmt.Errorf("the TTL is %d, want %d", m.Answer[0].Header().Ttl, ttl)
			}
			at = time.Now()
			return err
		})
		seen := w.waitForMore()
		all += len(seen)
		for _, s := range seen {
			if s.sent.After(at) && s.ttl != ttl {
				t.Fatalf("%v after the configuration was in force the TTL is %d, want %d", s.sent.Sub(at), s.ttl, ttl)
			}
		}
	}
	l.wantKernelReplies(then, all)
}

func dialAgent(t *testing.T, ns, network string) net.Conn {
	t.Helper()
	conn, err := testbed.Dial(ns, network, net.JoinHostPort(local4, "53"))
	check.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func exchangeTCP(c *dns.Conn, query []byte) (*dns.Msg, error) {
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	m, err := c.ReadMsg()
	if err == nil && len(m.Answer) == 0 {
		err = fmt.Errorf("no answer: %v", m)
	}
	return m, err
}

// answerTTL is the TTL of the versioned upstream's answers in seconds, the cache's minimum.
const answerTTL = 5

// startVersionedUpstream starts an upstream whose answer is an address that contains the version.
func (l *network) startVersionedUpstream() (version *atomic.Uint32) {
	l.t.Helper()
	version = new(atomic.Uint32)
	l.startOwnUpstream(func(q *dns.Msg) *dns.Msg {
		n := version.Load()
		return fakedns.Address(q, answerTTL, netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}).String())
	})
	return version
}

// TestKernelFlush: after a flush no reply comes from the old cache entry. Without a flush no entry is
// used for longer than its TTL, which counts down.
func TestKernelFlush(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	version := l.startVersionedUpstream()
	args := l.agentArgs(testbed.KernelPathFlag, "-admin-socket", filepath.Join(l.handoverDir(), "admin.sock"))
	l.useOwnUpstream()
	l.startAgentWith(args...)
	const name = "moving.test."
	w := l.startPoller(pack(question(name, dns.TypeA)))
	w.waitForMore()
	all, then := 0, l.kernelAnswers()
	for n := uint32(1); n <= soak.Choose[uint32](6, 20); n++ {
		version.Store(n)
		before := len(w.waitForMore()) // the old version is in use
		l.in(l.node, l.nodens, "flush", "-socket", filepath.Join(l.handoverDir(), "admin.sock"), name)
		at := time.Now()
		seen := w.waitForMore()
		all += before + len(seen)
		for _, s := range seen {
			if s.sent.After(at) && versionOf(s) != n {
				t.Fatalf("%v after the flush the answer is number %d, want %d", s.sent.Sub(at), versionOf(s), n)
			}
		}
	}
	all += w.waitForExpiry(t, version)
	l.wantKernelReplies(then, all)
}

func versionOf(s observation) uint32 { return uint32(s.addr[2])<<8 | uint32(s.addr[3]) }

// waitForExpiry waits until an answer has expired, and checks the TTLs before.
func (w *poller) waitForExpiry(t *testing.T, version *atomic.Uint32) (answers int) {
	t.Helper()
	old := version.Add(1) - 1
	w.pause.Store(int64(time.Millisecond))
	var first time.Time // when the old version was first seen, or later
	for ended := false; !ended; {
		seen := w.waitForMore()
		answers += len(seen)
		for _, s := range seen {
			if first.IsZero() {
				first = s.received
			}
			if versionOf(s) != old {
				ended = true
				continue
			}
			age := s.sent.Sub(first)
			if age > answerTTL*time.Second || s.ttl < 1 || time.Duration(s.ttl-1)*time.Second > answerTTL*time.Second-age {
				t.Fatalf("after %v the answer has the TTL %d", age, s.ttl)
			}
		}
	}
	return answers
}
