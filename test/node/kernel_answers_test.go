package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// headlessService is a headless Service with several endpoints.
const headlessService = `---
apiVersion: v1
kind: Service
metadata: {name: set, namespace: shop}
spec:
  clusterIP: None
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: set-a, namespace: shop, labels: {kubernetes.io/service-name: set, service.kubernetes.io/headless: ""}}
addressType: IPv4
endpoints:
- {addresses: ["10.244.9.1"], hostname: set-0, conditions: {ready: true}}
- {addresses: ["10.244.9.2"], hostname: set-1, conditions: {ready: true}}
- {addresses: ["10.244.9.3"], hostname: set-2, conditions: {ready: true}}
ports: [{name: http, port: 80, protocol: TCP}]
`

// newKernelNetwork creates a network whose kernel can answer, or skips the test.
func newKernelNetwork(t *testing.T) *network {
	t.Helper()
	if err := testbed.KernelPathUsable(); err != nil {
		t.Skip(err)
	}
	return newNetwork(t)
}

// startInKernel starts an agent that answers inside the kernel at the link-local addresses, with
// headlessService among its Services and endpoints in random order.
func (l *network) startInKernel(more ...string) *peer.Process {
	l.t.Helper()
	args := append(l.agentArgs(testbed.KernelPathFlag), more...)
	l.file("cluster.yaml", testbed.Manifests()+headlessService)
	conf := filepath.Join(l.dir, "Corefile")
	text, err := os.ReadFile(conf)
	if err != nil {
		l.t.Fatal(err)
	}
	l.file("Corefile", strings.NewReplacer("manifests ", "topology off\n        manifests ", "    errors\n", "    errors\n    loadbalance\n").Replace(string(text)))
	return l.startAgentWith(args...)
}

// metric returns the sum of the series of one of the agent's metrics that have the labels.
func (l *network) metric(name string, labels ...string) int {
	l.t.Helper()
	m, err := l.Metrics()
	if err != nil {
		l.t.Fatal(err)
	}
	return int(m.Sum(name, labels...))
}

// kernelAnswers returns how many queries the kernel has answered since the agent started.
func (l *network) kernelAnswers() int {
	l.t.Helper()
	return l.metric("nodens_kernel_path_queries_total", `result="answered"`)
}

// client is a UDP socket in a namespace, connected to an address of the agent.
type client struct {
	net.Conn
	t  *testing.T
	id uint16
}

func (l *network) client(ns, door string) *client {
	l.t.Helper()
	conn, err := testbed.Dial(ns, "udp", net.JoinHostPort(door, "53"))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return &client{Conn: conn, t: l.t}
}

// read returns the next packet.
func (c *client) read() []byte {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(answerTimeout))
	buf := make([]byte, dns.MaxMsgSize)
	n, err := c.Read(buf)
	if err != nil {
		c.t.Fatal(err)
	}
	return buf[:n]
}

func (c *client) write(packet []byte) {
	c.t.Helper()
	if _, err := c.Write(packet); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a query with a new ID and returns the reply with ID 0. silent: no reply is expected, and ask
// returns nil when the agent has answered a second query, which it has read after the first.
func (c *client) ask(query []byte, silent bool) []byte {
	c.t.Helper()
	c.id += 2
	packet := slices.Clone(query)
	packet[0], packet[1] = byte(c.id>>8), byte(c.id)
	c.write(packet)
	if silent {
		c.write(pack(question("fence.test.", dns.TypeTXT, func(m *dns.Msg) {
			m.Question[0].Qclass = dns.ClassCHAOS
			m.Id = c.id + 1
		})))
	}
	m := c.read()
	switch {
	case len(m) < 12 || m[0] != byte(c.id>>8):
	case m[1] == packet[1]:
		return append([]byte{0, 0}, m[2:]...)
	case silent && m[1] == packet[1]+1:
		return nil
	}
	c.t.Fatalf("an unexpected reply to %x: %x", packet, m)
	return nil
}

// question returns a query with ID 0, RD and no EDNS, after the changes.
func question(name string, kind uint16, changes ...func(*dns.Msg)) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	m.Id = 0
	for _, change := range changes {
		change(m)
	}
	return m
}

func pack(m *dns.Msg) []byte {
	wire, err := m.Pack()
	if err != nil {
		panic(err) // the messages are constants of this file
	}
	return wire
}

// queryForm is a form of query, and whether the kernel answers it.
type queryForm struct {
	name     string
	inKernel bool
	change   func(*dns.Msg)
	// mangle changes the packed query.
	mangle func([]byte) []byte
	// silent says that nobody answers it.
	silent bool
}

func edns(size uint16, options ...dns.EDNS0) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.SetEdns0(size, false)
		m.IsEdns0().Option = options
	}
}

func queryForms() []queryForm {
	padding, cookie := &dns.EDNS0_PADDING{Padding: make([]byte, 40)}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}
	opcode := func(code int) func(*dns.Msg) { return func(m *dns.Msg) { m.Opcode = code } }
	return []queryForm{
		{name: "plain", inKernel: true},
		{name: "EDNS 512", inKernel: true, change: edns(512)},
		{name: "EDNS 1232", inKernel: true, change: edns(1232)},
		{name: "EDNS 4096", inKernel: true, change: edns(4096)},
		{name: "padding", inKernel: true, change: edns(1232, padding)},
		{name: "DO", inKernel: true, change: func(m *dns.Msg) { m.SetEdns0(1232, true) }},
		{name: "CD", inKernel: true, change: func(m *dns.Msg) { m.CheckingDisabled = true }},
		{name: "AD", inKernel: true, change: func(m *dns.Msg) { m.AuthenticatedData = true }},
		{name: "AD CD DO", inKernel: true, change: func(m *dns.Msg) {
			m.AuthenticatedData, m.CheckingDisabled = true, true
			m.SetEdns0(1232, true)
		}},
		{name: "no RD", inKernel: true, change: func(m *dns.Msg) { m.RecursionDesired = false }},
		{name: "mixed case", inKernel: true, change: func(m *dns.Msg) { m.Question[0].Name = mixedCase(m.Question[0].Name) }},

		{name: "cookie", change: edns(1232, cookie)},
		{name: "NSID", change: edns(1232, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})},
		{name: "unknown option", change: edns(1232, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})},
		{name: "two options", change: edns(1232, padding, cookie)},
		{name: "EDNS version 1", change: func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) }},
		{name: "two OPT", change: func(m *dns.Msg) { m.SetEdns0(1232, false).SetEdns0(1232, false) }},
		{name: "class CH", change: func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }},
		{name: "class ANY", change: func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }},
		{name: "IQUERY", change: opcode(dns.OpcodeIQuery)},
		{name: "NOTIFY", change: opcode(dns.OpcodeNotify)},
		{name: "UPDATE", change: opcode(dns.OpcodeUpdate)},
		{name: "response", silent: true, change: func(m *dns.Msg) { m.Response = true }},
		{name: "TC", change: func(m *dns.Msg) { m.Truncated = true }},
		{name: "Z", change: func(m *dns.Msg) { m.Zero = true }},
		{name: "two questions", change: func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
		{name: "no question", change: func(m *dns.Msg) { m.Question = nil }},
		{name: "trailing byte", mangle: func(b []byte) []byte { return append(b, 0) }},
		{name: "cut short", mangle: func(b []byte) []byte { return b[:len(b)-1] }},
		{name: "header alone", mangle: func(b []byte) []byte { return b[:12] }},
		{name: "half a header", silent: true, mangle: func(b []byte) []byte { return b[:7] }},
		{name: "compressed name", mangle: func(b []byte) []byte { return append(append(b[:12:12], 0xc0, 12), b[len(b)-4:]...) }},
		{name: "label type 01", mangle: func(b []byte) []byte { b[12] |= 0x40; return b }},
	}
}

// mixedCase returns name with every second letter in upper case.
func mixedCase(name string) string {
	b := []byte(name)
	for i := 0; i < len(b); i += 2 {
		b[i] = bytes.ToUpper(b[i : i+1])[0]
	}
	return string(b)
}

func (f queryForm) query(name string, kind uint16) []byte {
	m := question(name, kind)
	if f.change != nil {
		f.change(m)
	}
	b := pack(m)
	if f.mangle != nil {
		b = f.mangle(b)
	}
	return b
}

// nameOfSize returns a name below zone with size bytes on the wire.
func nameOfSize(size int, zone string) string {
	room := size - (len(zone) + 1)
	var b strings.Builder
	for room > 0 {
		label := min(room-1, 40)
		if rest := room - 1 - label; rest == 1 {
			label--
		}
		b.WriteString(strings.Repeat("n", label) + ".")
		room -= label + 1
	}
	return b.String() + zone
}

// TestKernelAnswers: the kernel's replies equal the agent's byte for byte, and unusual queries go to the
// agent even if the kernel knows an answer.
func TestKernelAnswers(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	socket := filepath.Join(l.dir, "admin.sock")
	p := l.startInKernel("-admin-socket=" + socket)
	for _, door := range []string{local4, local6} {
		t.Run(door, func(t *testing.T) {
			a := newComparer(t, l, p, door)
			t.Run("turns", a.checkRotation)
			const web, who = "web.shop.svc.cluster.local.", "who." + testbed.Zone + "."
			for _, f := range queryForms() {
				for _, name := range []string{web, who} {
					t.Run(f.name+" "+name, func(t *testing.T) {
						a.check(t, f.query(name, dns.TypeA), f.inKernel, f.silent)
						a.checkExplained(t, socket, f.query(name, dns.TypeA), f.inKernel)
					})
				}
			}
			for _, c := range []struct {
				name string
				kind uint16
				in   bool
			}{
				{web, dns.TypeAAAA, true},
				{"_http._tcp." + web, dns.TypeSRV, true},
				{web, dns.TypeTXT, true},
				{"gone.shop.svc.cluster.local.", dns.TypeA, true},
				{"set.shop.svc.cluster.local.", dns.TypeA, true},
				{"set-1.set.shop.svc.cluster.local.", dns.TypeA, true},
				{"www.example.org.", dns.TypeA, true},
				{"www.example.org.", dns.TypeAAAA, true},
				{nameOfSize(127, testbed.Zone+"."), dns.TypeA, true},
				{nameOfSize(128, testbed.Zone+"."), dns.TypeA, true},
				{nameOfSize(129, testbed.Zone+"."), dns.TypeA, false},
				{nameOfSize(255, testbed.Zone+"."), dns.TypeA, false},
			} {
				t.Run(fmt.Sprintf("%d %.40s %s", len(c.name)+1, c.name, dns.Type(c.kind)), func(t *testing.T) {
					a.check(t, pack(question(c.name, c.kind)), c.in, false)
					a.checkExplained(t, socket, pack(question(c.name, c.kind)), c.in)
				})
			}
		})
	}
}

// checkRotation checks that the addresses in an answer rotate, as in the agent's answers.
func (a *comparer) checkRotation(t *testing.T) {
	a.pod.t = t
	query := pack(question("set.shop.svc.cluster.local.", dns.TypeA))
	first := map[string]bool{}
	for range 10 * repeats { // by chance, one of three is never the first once in 10³⁵ times
		m := new(dns.Msg)
		if err := m.Unpack(a.askUntilKernelAnswers(query)); err != nil || len(m.Answer) != 3 {
			t.Fatal(m, err)
		}
		if first[m.Answer[0].String()] = true; len(first) == 3 {
			return
		}
	}
	t.Errorf("of three addresses, only %v are ever the first", first)
}

// comparer sends queries to one address from the pod, which the kernel may answer, and from the node,
// which only the agent can answer.
type comparer struct {
	l         *network
	p         *peer.Process
	pod, node *client
}

func newComparer(t *testing.T, l *network, p *peer.Process, door string) *comparer {
	t.Helper()
	was := l.t
	l.t = t
	defer func() { l.t = was }()
	return &comparer{l, p, l.client(l.pod, door), l.client(l.node, door)}
}

// foreignRepeats is how often a query is sent that the kernel must not answer: it would learn the answer
// from the first reply, or from the second if that comes from an upstream.
const foreignRepeats = 4

// check sends the query from both sides and compares the replies.
func (a *comparer) check(t *testing.T, query []byte, in, silent bool) {
	t.Helper()
	a.pod.t, a.node.t = t, t
	var replies [][]byte
	want := [][]byte{a.node.ask(query, silent)}
	if in {
		replies = append(replies, a.askUntilKernelAnswers(query))
	} else {
		before := a.l.kernelAnswers()
		for range foreignRepeats {
			replies = append(replies, a.pod.ask(query, silent))
		}
		if n := a.l.kernelAnswers() - before; n != 0 {
			t.Errorf("the kernel has answered %d of %d times", n, foreignRepeats)
		}
	}
	want = append(want, a.node.ask(query, silent))
	for _, got := range replies {
		if !slices.ContainsFunc(want, func(w []byte) bool { return sameReply(w, got) }) {
			t.Errorf("the pod's reply differs.\nnode %x\n     %x\npod  %x\n%s\n%s", want[0], want[1], got, text(want[1]), text(got))
		}
	}
}

// checkExplained checks what the agent behind the admin socket reports of the pod's query: a copy for queries of this
// form if the kernel answers it, else why there is none, unless the query is not valid.
func (a *comparer) checkExplained(t *testing.T, socket string, query []byte, in bool) {
	t.Helper()
	from, _, _ := net.SplitHostPort(a.pod.LocalAddr().String())
	values := url.Values{"packet": {base64.RawURLEncoding.EncodeToString(query)}, "from": {from}, "server": {a.pod.RemoteAddr().String()}}
	var e report.Explanation
	check.NoError(t, report.Ask(t.Context(), socket, http.MethodGet, "/explain", values, &e))
	if c := e.Client.Kernel; c == nil || !c.Answering || c.Interface == "" {
		t.Errorf("the explained client is %+v", c)
	}
	k := e.Questions[0].Kernel
	if !in {
		if k != nil && k.Excluded == "" {
			t.Errorf("explained with copies: %+v", k)
		}
		return
	}
	m := new(dns.Msg)
	check.NoError(t, m.Unpack(query))
	if k == nil || k.Excluded != "" || !slices.ContainsFunc(k.Copies, func(c report.KernelCopy) bool { return slices.Equal(c.Flags, flagsOf(m)) }) {
		t.Errorf("explained without a copy for queries with %q: %+v", flagsOf(m), k)
	}
}

// flagsOf returns what distinguishes replies to m.
func flagsOf(m *dns.Msg) (flags []string) {
	opt := m.IsEdns0()
	for i, set := range []bool{m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled, opt != nil, opt != nil && opt.Do()} {
		if set {
			flags = append(flags, []string{"RD", "AD", "CD", "EDNS", "DO"}[i])
		}
	}
	return flags
}

// quickTries is how often a test asks the kernel in quick succession. It takes two queries to learn an
// answer, and ten seconds to believe a client that has moved to another interface.
const quickTries = 20

// askUntilKernelAnswers sends queries until the kernel has answered exactly one, and returns that
// reply.
func (a *comparer) askUntilKernelAnswers(query []byte) (reply []byte) {
	before := a.l.kernelAnswers()
	tries := 0
	a.p.Must(a.pod.t, "an answer from the kernel", func(context.Context) error {
		if tries++; tries > quickTries {
			time.Sleep(scrapeInterval)
		}
		reply = a.pod.ask(query, false)
		after := a.l.kernelAnswers()
		n := after - before
		before = after
		if n > 1 {
			a.pod.t.Fatalf("one query was answered %d times", n)
		}
		if n == 0 {
			return errors.New("the agent answers")
		}
		return nil
	})
	return reply
}

// sameReply compares replies whose addresses may be in any order; everything else must be equal.
func sameReply(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, y := new(dns.Msg), new(dns.Msg)
	if len(a) != len(b) || x.Unpack(a) != nil || y.Unpack(b) != nil {
		return false
	}
	// A client on the node is offered larger messages than the kernel's replies have.
	for _, m := range []*dns.Msg{x, y} {
		if opt := m.IsEdns0(); opt != nil {
			opt.SetUDPSize(min(opt.UDPSize(), 1232))
		}
	}
	return slices.Equal(sortedText(x), sortedText(y))
}

// sortedText returns the message as text, with sorted answers.
func sortedText(m *dns.Msg) []string {
	answer := make([]string, 0, len(m.Answer))
	for _, rr := range m.Answer {
		answer = append(answer, rr.String())
	}
	slices.Sort(answer)
	rest := m.Copy()
	rest.Answer = nil
	return append(answer, rest.String())
}

func text(b []byte) string {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return err.Error()
	}
	return m.String()
}
