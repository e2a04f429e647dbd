//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/race"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/scenario"
)

// TestPermission plays each scenario twice: once as usual, where a query that has to wait is
// run a second time on a worker, and once with all queries on workers from the beginning.
// The second time must not be noticed: replies, upstream queries, counters, query logs and
// dnstap messages are the same, so a run that ends in "would wait" leaves nothing behind.
func TestPermission(t *testing.T) {
	if race.Enabled() {
		t.Skip("under the race detector upstreams answer so late that others are asked, too; the stage pins of test/run runs it without")
	}
	files, err := filepath.Glob("../../test/scenario/testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if slices.Contains(chance, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			twice := playObserved(t, file, false)
			once := playObserved(t, file, true)
			for _, seen := range []*observations{&twice, &once} {
				seen.forgetServers(t, file)
				if simultaneous(t, file) {
					seen.forgetCounts()
				}
			}
			if diff := cmp.Diff(once, twice); diff != "" {
				t.Errorf("with permission from the beginning (-), after a run without (+):\n%s", diff)
			}
		})
	}
}

// chance are the scenarios in which chance or speed decides which server answers, which
// queries come before a reload, or which are within a budget.
var chance = []string{"dot-cold-burst", "frozen", "hedge", "max-rate", "outage", "policy-random", "policy-round-robin", "policy-sequential", "reload-under-load", "tcp-reset"}

// simultaneous reports whether clients ask at once, or until a reply is as expected. How many
// queries share an exchange, or are sent at all, is then a matter of speed.
func simultaneous(t *testing.T, file string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	check.NoError(t, err)
	return regexp.MustCompile(`(?m)^QUERY .* (times|as|again)\b`).Match(text)
}

// observations are what can be seen of an agent from outside. Upstream are the questions that
// it asks, each once: which server is asked, and how often, depends on how fast it answers.
type observations struct {
	Replies, Upstream, Log, Dnstap, Counters []string
}

// forgetServers leaves out which of several servers has answered, as far as their answers
// differ in their addresses only: if one is slow, another one is asked, too.
func (o *observations) forgetServers(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	check.NoError(t, err)
	if strings.Count(string(text), "\nUPSTREAM ") < 2 {
		return
	}
	address := regexp.MustCompile(`192\.0\.2\.\d+`)
	for _, list := range [][]string{o.Replies, o.Dnstap} {
		for i, s := range list {
			list[i] = address.ReplaceAllString(s, "192.0.2.*")
		}
		slices.Sort(list)
	}
}

// ofSpeed are fields of the log that say which of simultaneous queries made the exchange, which waited for it, and which
// came after its end. A line may lack some of them.
var ofSpeed = regexp.MustCompile(`\s(source|upstream|upstream_duration|cache)=\S+`)

// forgetCounts leaves what is seen, but not how often, nor which of the queries saw it.
func (o *observations) forgetCounts() {
	for i, line := range o.Log {
		o.Log[i] = ofSpeed.ReplaceAllString(line, "")
	}
	slices.Sort(o.Log)
	o.Replies, o.Log, o.Dnstap = slices.Compact(o.Replies), slices.Compact(o.Log), slices.Compact(o.Dnstap)
	o.Counters = nil
}

// observer collects observations. It is safe for concurrent use.
type observer struct {
	mu  sync.Mutex
	all observations
}

func (o *observer) add(list *[]string, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*list = append(*list, normal(text))
}

// observe is [scenario.Scenario.Observe].
func (o *observer) observe(query, reply *dns.Msg, upstream string) {
	q := question(query)
	switch {
	case upstream != "":
		if q != healthProbe {
			o.add(&o.all.Upstream, q)
		}
	case reply == nil:
		o.add(&o.all.Replies, q+" nothing")
	default:
		o.add(&o.all.Replies, q+" "+inWords(reply))
	}
}

// healthProbe is the question by which the agent finds out whether a server is back.
const healthProbe = ". NS"

func question(m *dns.Msg) string {
	if len(m.Question) == 0 {
		return "no question"
	}
	q := m.Question[0]
	return strings.ToLower(q.Name) + " " + dns.Type(q.Qtype).String()
}

// inWords is a message without its ID, with its records in order.
func inWords(m *dns.Msg) string {
	m = m.Copy()
	m.Id = 0
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		slices.SortFunc(section, func(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) })
	}
	return strings.Join(strings.Fields(m.String()), " ")
}

// playObserved plays a file and gives what could be seen.
func playObserved(t *testing.T, file string, startWaiting bool) observations {
	t.Helper()
	sc, err := scenario.Load(file)
	check.NoError(t, err)
	o := new(observer)
	sc.Observe = o.observe
	taps := startTapCollector(t, o)
	var a *actor
	start := func(ctx context.Context, s scenario.Setup) (scenario.Agent, error) {
		s.Corefile = withLogs(s.Corefile, taps.path)
		var err error
		if a, err = newActorWith(ctx, s, startWaiting); err != nil {
			return nil, err
		}
		return &observedActor{actor: a, observer: o, taps: taps}, nil
	}
	if err := scenario.Run(t.Context(), sc, t.TempDir(), start); err != nil {
		t.Errorf("%s: %v", sc.Title, err)
		if a != nil {
			t.Logf("the agent's log:\n%s", a.Log())
		}
	}
	taps.close()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, list := range []*[]string{&o.all.Replies, &o.all.Upstream, &o.all.Log, &o.all.Dnstap, &o.all.Counters} {
		slices.Sort(*list)
	}
	o.all.Upstream = slices.Compact(o.all.Upstream)
	return o.all
}

// observedActor reads logs and counters before the agent ends.
type observedActor struct {
	*actor
	observer *observer
	taps     *tapCollector
}

func (a *observedActor) Reload(ctx context.Context, corefile string) error {
	return a.actor.Reload(ctx, withLogs(corefile, a.taps.path))
}

func (a *observedActor) Close() error {
	if metrics, err := a.Metrics(); err == nil {
		for line := range strings.Lines(metrics) {
			if counted.MatchString(line) && !strings.HasSuffix(line, " 0\n") {
				a.observer.add(&a.observer.all.Counters, line)
			}
		}
	}
	err := a.actor.Close()
	for line := range strings.Lines(a.Log()) {
		if strings.Contains(line, "msg=query ") {
			a.observer.add(&a.observer.all.Log, line)
		}
	}
	return err
}

// counted are the metrics that the query path counts.
var counted = regexp.MustCompile(`^coredns_(dns_(requests|responses|do_requests|request_size_bytes_count|response_size_bytes_(count|sum))|cache_(hits|misses|requests|drops|prefetch|served_stale)|acl|autopath|dns64|local|template)`)

// normal leaves out of text what differs from play to play.
func normal(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return strings.TrimSpace(text)
}

var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`127\.(6[4-9]|[7-9]\d|1[0-1]\d|12[0-7])\.\d+\.\d+(:\d+)?`), "ADDRESS"},
	{regexp.MustCompile(`time=\S+ `), ""},
	{regexp.MustCompile(`\b(client_port|id|duration_seconds|upstream_duration)=\S+`), "$1=*"},
	{regexp.MustCompile(`\s*; COOKIE: [0-9a-f]+`), ""},
	{regexp.MustCompile(`SRV 0 0 \d+`), "SRV 0 0 PORT"},
	{regexp.MustCompile(`(SOA ns\.dns\.\S+ \S+) \d+`), "$1 SERIAL"},
}

// withLogs has each server block log all queries, unless the Corefile says what it logs, and
// tell the collector at path of them.
func withLogs(corefile, path string) string {
	more := "    dnstap " + path + " full\n"
	if !regexp.MustCompile(`(?m)^\s+(log|errors)\b`).MatchString(corefile) {
		more += "    log\n"
	}
	var out strings.Builder
	snippet := false
	for line := range strings.Lines(corefile) {
		switch {
		case line[0] == '(':
			snippet = true
		case line[0] == '}' && !snippet:
			out.WriteString(more)
		case line[0] == '}':
			snippet = false
		}
		out.WriteString(line)
	}
	return out.String()
}

// tapCollector takes what agents tell at path.
type tapCollector struct {
	path     string
	listener net.Listener
	tasks    sync.WaitGroup
}

func startTapCollector(t *testing.T, o *observer) *tapCollector {
	t.Helper()
	c := &tapCollector{path: filepath.Join(t.TempDir(), "tap")}
	var err error
	if c.listener, err = net.Listen("unix", c.path); err != nil {
		t.Fatal(err)
	}
	c.tasks.Go(func() {
		for {
			conn, err := c.listener.Accept()
			if err != nil {
				return
			}
			c.tasks.Go(func() {
				defer conn.Close()
				_, _ = conn.Write(controlFrame(controlAccept))
				readTaps(bufio.NewReader(conn), o)
				_, _ = conn.Write(controlFrame(controlFinish)) // the agent waits for it
			})
		}
	})
	return c
}

// close waits for all that agents have told, which have ended.
func (c *tapCollector) close() {
	_ = c.listener.Close()
	c.tasks.Wait()
}

// The types of control frames.
const (
	controlAccept = 1
	controlStop   = 3
	controlFinish = 5
)

// controlFrame returns a control frame without fields: an escape, a length, a type.
func controlFrame(kind uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, 0, 4}, kind)
}

// readTaps reads frames until the sender stops: a length and a message; a length of 0 leads in
// a control frame.
func readTaps(r *bufio.Reader, o *observer) {
	for {
		var n uint32
		if binary.Read(r, binary.BigEndian, &n) != nil {
			return
		}
		control := n == 0
		if control && binary.Read(r, binary.BigEndian, &n) != nil {
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(r, frame); err != nil {
			return
		}
		switch {
		case !control:
			o.addTap(frame)
		case n >= 4 && binary.BigEndian.Uint32(frame) == controlStop:
			return
		}
	}
}

// The types of dnstap messages about queries to upstreams.
const forwarderQuery, forwarderResponse = 7, 8

// addTap adds a dnstap message. Of those about upstreams it adds each query once, as for
// observations.Upstream, and no response: one that comes after another server's is not waited for.
func (o *observer) addTap(frame []byte) {
	message := protoField(frame, 14)
	text := tapInWords(message)
	switch protoNumber(message, 1) {
	case forwarderResponse:
		return
	case forwarderQuery:
		o.mu.Lock()
		defer o.mu.Unlock()
		if text = "to an upstream: " + normal(text); !slices.Contains(o.all.Dnstap, text) {
			o.all.Dnstap = append(o.all.Dnstap, text)
		}
	default:
		o.add(&o.all.Dnstap, text)
	}
}

// tapInWords is a dnstap message without addresses and times.
func tapInWords(message []byte) string {
	for _, n := range []int{10, 14} { // query_message, response_message
		packet, m := protoField(message, n), new(dns.Msg)
		switch {
		case packet == nil:
		case m.Unpack(packet) != nil: // an upstream's
			return fmt.Sprintf("%d malformed, %d bytes", n, len(packet))
		default:
			return fmt.Sprintf("%d %s", n, inWords(m))
		}
	}
	return fmt.Sprintf("no message: %x", message)
}

// protoField is the last field n of a protobuf message, of those with a length.
func protoField(b []byte, n int) []byte {
	found, _ := protoValue(b, n)
	return found
}

// protoNumber is the last field n of a protobuf message, of those that are numbers.
func protoNumber(b []byte, n int) uint64 {
	_, number := protoValue(b, n)
	return number
}

// protoValue is the last field n of a protobuf message: its bytes, or a number.
func protoValue(b []byte, n int) (found []byte, number uint64) {
	for len(b) > 0 {
		key, k := binary.Uvarint(b)
		b = b[max(k, 0):]
		switch key & 7 {
		case 0:
			value, k := binary.Uvarint(b)
			b = b[max(k, 1):]
			if int(key>>3) == n {
				number = value
			}
		case 2:
			size, k := binary.Uvarint(b)
			b = b[max(k, 0):]
			if int(key>>3) == n {
				found = b[:size]
			}
			b = b[size:]
		case 5:
			b = b[4:]
		default:
			return nil, 0
		}
	}
	return found, number
}
