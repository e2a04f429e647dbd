// These tests count a server's connections, streams and handshakes, which are not exported.

package server

import (
	"crypto/tls"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/rig/resolvertest"
)

const (
	// hostilePlaces is how many streams the attacked server admits.
	hostilePlaces = 16
	// hostileConns is how many connections an attacker opens, each with hostileStreams streams.
	hostileConns, hostileStreams = 4, maxHTTP2Streams
	// hostileGoroutines is how many goroutines an attack may add: one for each stream that the server
	// has admitted, and 16 for each connection, counting the server's side and the attacker's.
	hostileGoroutines = hostilePlaces + 16*hostileConns
	// hostileHeap is how many bytes of the heap an attack may occupy, and hostileRest how many may be left.
	hostileHeap, hostileRest = 16 << 20, 1 << 20
)

// hostileTarget is an attacked server. Attackers come from 127.0.0.2.
type hostileTarget struct {
	*Server
	at  ListenAddr
	via config.Transport
	tls *tls.Config

	mu   sync.Mutex
	held []*fakedns.Query // that the upstream has not answered yet
}

// streamAttack is what a hostile client does. run returns when the server has seen it all, or has closed the
// connection. Its connections are closed afterwards.
type streamAttack struct {
	name string
	via  []config.Transport
	run  func(t *testing.T, a *hostileTarget) []io.Closer
	// goroutines is how many of them the attackers themselves have, besides those of hostileConns connections.
	goroutines int
	// timed is set for an attack that ends when the server's patience does. Others take place under limits that a busy
	// machine doesn't reach.
	timed bool
}

var (
	overHTTP2 = []config.Transport{config.DNSOverGRPC, config.DNSOverHTTPS}
	overGRPC  = []config.Transport{config.DNSOverGRPC}
	overDoQ   = []config.Transport{config.DNSOverQUIC}
	overHTTP3 = []config.Transport{config.DNSOverHTTP3}
	overQUIC  = []config.Transport{config.DNSOverQUIC, config.DNSOverHTTP3}
)

var streamAttacks = []streamAttack{
	{"reset streams", overHTTP2, resetStreams, 0, false},
	{"streams without an end", overHTTP2, endlessStreams, 0, false},
	{"closed window", overHTTP2, closedWindow, 0, false},
	{"huge frame", overHTTP2, hugeFrame, 0, true},
	{"huge message", overHTTP2, hugeMessage, 0, false},
	{"endless header", overHTTP2, endlessHeader, 0, false},
	{"unread acknowledgements", overHTTP2, unreadPings, 0, true},
	{"compressed messages", overGRPC, compressedMessages, 0, false},
	{"wrong lengths", overGRPC, wrongLengths, 0, false},
	{"unfinished QUIC streams", overDoQ, unfinishedStreams, 0, false},
	{"unread QUIC replies", overDoQ, unreadReplies, 0, false},
	{"unfinished handshakes", overQUIC, unfinishedHandshakes, 2 * retryHandshakes * 8, true},
	{"requests without an end", overHTTP3, unfinishedRequests, 0, false},
	{"reset requests", overHTTP3, resetRequests, 0, false},
	{"unread responses", overHTTP3, unreadResponses, 0, false},
	{"endless header", overHTTP3, endlessH3Header, 0, false},
	{"header of references", overHTTP3, referencingHeaders, 0, false},
	{"endless body", overHTTP3, endlessBody, 0, false},
	{"unknown frames", overHTTP3, unknownFrames, 0, true},
	{"unknown frames on the control stream", overHTTP3, unknownControlFrames, 0, true},
	{"closed control stream", overHTTP3, closedControlStream, 0, false},
	{"oversize settings", overHTTP3, oversizeSettings, 0, true},
	{"unidirectional streams without a type", overHTTP3, untypedStreams, 0, false},
	{"endless unidirectional streams", overHTTP3, endlessUniStreams, 0, true},
}

// hostileEnv is set in the processes that [TestHostileClients] starts.
const hostileEnv = "NODENS_TEST_HOSTILE"

// hostileProcesses is how many of them run at once. They mostly wait.
const hostileProcesses = 4

// TestHostileClients checks for each attack that the number of goroutines and the heap stay bounded meanwhile, that
// another client is answered, and that both are where they were when the attacker has left. Each attack has a process
// of its own, in which nothing else adds to these numbers, so that several can run at once.
func TestHostileClients(t *testing.T) {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, hostileProcesses)
	for _, attack := range streamAttacks {
		for _, via := range attack.via {
			t.Run(attack.name+"/"+via.String(), func(sub *testing.T) {
				if os.Getenv(hostileEnv) != "" {
					surviveTwice(sub, attack, via)
					return
				}
				all.Go(func() {
					places <- struct{}{}
					defer func() { <-places }()
					attackInProcess(t, sub.Name())
				})
			})
		}
	}
}

// attackInProcess runs the test name in a process of its own.
func attackInProcess(t *testing.T, name string) {
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
	child.Env = append(os.Environ(), hostileEnv+"=1")
	out, err := child.CombinedOutput()
	if err == nil && !strings.Contains(string(out), "--- PASS: "+name) {
		err = errors.New("the process has not run it")
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// surviveTwice attacks a server a first time, in which pools are filled, and a second time, in which it counts.
func surviveTwice(t *testing.T, attack streamAttack, via config.Transport) {
	limits := patientLimits()
	if attack.timed {
		limits = Limits{ReadTimeout: time.Second, IdleTimeout: time.Second, WriteTimeout: time.Second}
	}
	limits.Waiting = hostilePlaces
	a := startTarget(t, limits, via)
	a.survive(t, attack, hostileState{math.MaxInt, math.MaxInt64})
	before := a.settle(t)
	a.survive(t, attack, hostileState{before.goroutines + hostileGoroutines + attack.goroutines, before.heap + hostileHeap})
	a.settle(t)
	awaitState(t, "after", hostileState{before.goroutines, before.heap + hostileRest})
	if n := a.Panics(); n > 0 {
		t.Errorf("%d panics", n)
	}
}

func startTarget(t *testing.T, limits Limits, via config.Transport) *hostileTarget {
	t.Helper()
	a := &hostileTarget{via: via}
	b := fakedns.Start(t, func(q *fakedns.Query) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.held = append(a.held, q)
	})
	z := byHand(t, b.Addr())
	var lines []string
	for i := range 250 {
		lines = append(lines, "10.0.0."+itoa(i+1)+" many.test")
	}
	z.Hosts = resolvertest.Hosts(t, true, append(lines, "192.0.2.9 by.hand")...)
	s, addr, roots := startListener(t, limits, ListenerConfig{Transport: via}, z)
	a.Server, a.at, a.tls = s, ListenAddr{AddrPort: addr, QUIC: via.OverQUIC()}, &tls.Config{RootCAs: roots}
	return a
}

// release answers the queries that wait for the upstream, and returns true if none is left.
func (a *hostileTarget) release() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.held {
		q.Reply(fakedns.Address(q.Msg, 60, "192.0.2.1"))
	}
	a.held = nil
	return a.Usage().Waiting.Used == 0
}

// hostileState is what an attack may not increase.
type hostileState struct {
	goroutines int
	heap       int64
}

func stateNow() hostileState {
	runtime.GC()
	runtime.GC() // what pools held is free after two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return hostileState{runtime.NumGoroutine(), int64(m.HeapAlloc + m.StackInuse)}
}

// settle waits until the server has neither connections nor streams.
func (a *hostileTarget) settle(t *testing.T) hostileState {
	t.Helper()
	eventually(t, "the connections to end", func() bool {
		u := a.Usage()
		return u.Conns.Used == 0 && u.Requests.Used == 0 && a.handshakes() == 0
	})
	return stateNow()
}

func (a *hostileTarget) handshakes() int {
	if !a.at.QUIC {
		return 0
	}
	q := quicAt(a.Server, a.at.AddrPort)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inFlight
}

// awaitState waits until there are no more goroutines and bytes than most.
func awaitState(t *testing.T, when string, most hostileState) {
	t.Helper()
	var now hostileState
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s the attack there are %+v, want at most %+v", when, now, most)
		}
	})
	eventually(t, "goroutines and memory "+when+" the attack", func() bool {
		now = stateNow()
		return now.goroutines <= most.goroutines && now.heap <= most.heap
	})
}

// askAsOther asks as another client. If the machine is so busy that its connection is silent for longer than the limits
// of the server allow, it tries again.
func (a *hostileTarget) askAsOther(t *testing.T) {
	t.Helper()
	var err error
	for range 10 {
		err = askOnce(t, a.via, a.at.AddrPort, a.tls)
		var idle *quic.IdleTimeoutError
		var slow *quic.HandshakeTimeoutError
		if !errors.As(err, &idle) && !errors.As(err, &slow) {
			break
		}
	}
	if err != nil {
		t.Errorf("another client: %v", err)
	}
}

// survive runs the attack, asks as another client, and checks the state before the attacker leaves.
func (a *hostileTarget) survive(t *testing.T, attack streamAttack, most hostileState) {
	t.Helper()
	conns := attack.run(t, a)
	a.askAsOther(t)
	awaitState(t, "during", most)
	if n := a.Usage().Requests.Used; n > hostilePlaces {
		t.Errorf("%d streams are in flight", n)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	eventually(t, "the queries that wait to end", a.release)
}

// closerFunc closes by a call.
type closerFunc func()

func (f closerFunc) Close() error {
	f()
	return nil
}
