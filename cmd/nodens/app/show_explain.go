package app

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// maxShownRecords and maxShownEntries bound the records and cache entries for one question.
	maxShownRecords = 64
	maxShownEntries = 64
	// maxSearchDomains bounds the search path of a pod: resolvers take 32 at most (resolv.conf(5)).
	maxSearchDomains = 32
)

// maxAskTime is the time after which no further query of a search path is asked. One takes seven seconds at most:
// two for the view, five for the upstreams.
const maxAskTime = 2 * time.Second

// showExplain answers what the agent would do with a query. With POST it then asks the query.
func (a *agent) showExplain(w http.ResponseWriter, r *http.Request) {
	q, err := a.parseExplain(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q.ask = r.Method == http.MethodPost
	writeJSON(w, a.explain(r.Context(), q))
}

// explainQuery is a parsed request for an explanation.
type explainQuery struct {
	ask      bool   // the query
	message  []byte // the query; nil: it is made of the following
	name     string // as given: it may be relative
	qtype    uint16
	dnssec   bool
	disabled bool // CD
	proto    resolver.Proto
	from     explainClient
	ndots    int
	listen   netip.AddrPort
	listener server.ListenerConfig
	kernel   *kernelPath // nil without the kernel path
}

// explainClient is the client of an explanation; pod is zero unless it is a pod of the node.
type explainClient struct {
	addr netip.Addr
	pod  clients.Pod
}

// parseExplain reads the parameters of /explain.
func (a *agent) parseExplain(values url.Values) (*explainQuery, error) {
	q := &explainQuery{ndots: -1, kernel: a.kernelPath}
	if err := q.parseQuestion(values); err != nil {
		return nil, err
	}
	switch text := cmp.Or(values.Get("protocol"), "udp"); text {
	case "udp":
	case "tcp":
		q.proto = resolver.TCP
	default:
		return nil, fmt.Errorf("protocol is %q; give udp or tcp", text)
	}
	if text := values.Get("ndots"); text != "" {
		n, err := strconv.ParseUint(text, 10, 4)
		if err != nil {
			return nil, fmt.Errorf("ndots is %q; give a number from 0 to 15", text)
		}
		q.ndots = int(n)
	}
	var err error
	if q.listen, q.listener, err = listenerAt(a.current.Load(), values.Get("server")); err != nil {
		return nil, err
	}
	if q.from, err = a.explainFrom(values.Get("from"), q.listen.Addr()); err == nil && q.ndots < 0 {
		q.ndots = a.ndotsOf(q.from.pod)
	}
	return q, err
}

// ndotsOf returns the option ndots of the resolver of a pod, and the default if the pod is not known.
func (a *agent) ndotsOf(pod clients.Pod) int {
	if t, ok := a.builder.clients.podTraits(func(p clients.Pod) clients.Pod { return p })[pod]; ok {
		return t.ndots
	}
	return defaultNdots
}

// parseQuestion reads the parameters that make the query.
func (q *explainQuery) parseQuestion(values url.Values) (err error) {
	if text := values.Get("packet"); text != "" {
		if q.message, err = base64.RawURLEncoding.DecodeString(text); err != nil || len(q.message) > wire.MaxMessage {
			return errors.New("packet is not valid; give a query message in base64url (RFC 4648, 5) without padding")
		}
		return nil
	}
	q.name, q.qtype = values.Get("name"), wire.TypeA
	if _, err := wire.ParseName(q.name); err != nil || q.name == "" {
		return fmt.Errorf("name is %q; give a domain name", q.name)
	}
	if text := values.Get("type"); text != "" {
		if q.qtype, err = parseType(text); err != nil {
			return err
		}
	}
	q.dnssec, q.disabled = values.Get("dnssec") == "true", values.Get("cd") == "true"
	return nil
}

// parseType returns the number of a record type: its name, or TYPEn (RFC 3597).
func parseType(text string) (uint16, error) {
	if t, ok := wire.ParseType(text); ok {
		return t, nil
	}
	if digits, ok := strings.CutPrefix(strings.ToUpper(text), "TYPE"); ok {
		if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("type is %q; give the name of a record type, such as AAAA or TYPE65", text)
}

// listenerAt returns the listener at an address, with or without a port. "" is the first one for plain
// DNS in the order of the Corefile, or else the first one.
func listenerAt(g *generation, text string) (netip.AddrPort, server.ListenerConfig, error) {
	var all []server.ListenAddr
	for _, p := range g.blocks {
		for _, addr := range p.block.Listen {
			all = append(all, listenAddr(p.block, addr))
		}
	}
	matches := func(at server.ListenAddr) bool { return g.listeners[at].Transport == config.PlainDNS }
	if text != "" {
		matches = func(at server.ListenAddr) bool { return at.String() == text || at.Addr().String() == text }
	}
	at := slices.IndexFunc(all, matches)
	if at < 0 && text != "" {
		return netip.AddrPort{}, server.ListenerConfig{}, fmt.Errorf("server is %q; the agent listens at %s", text, strings.Join(atMost(maxListed, g.addresses()), ", "))
	}
	return all[max(at, 0)].AddrPort, g.listeners[all[max(at, 0)]], nil
}

// explainFrom returns the client that text names: an address, NAMESPACE/NAME of a pod of the node, or NAME if only
// one has it. "" is the node itself, as it asks the listener at addr.
func (a *agent) explainFrom(text string, addr netip.Addr) (explainClient, error) {
	if text == "" {
		if addr.IsUnspecified() {
			addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return explainClient{addr: addr}, nil
	}
	if ip, err := netip.ParseAddr(text); err == nil {
		return explainClient{addr: ip.Unmap(), pod: a.builder.clients.pod(ip.Unmap())}, nil
	}
	if a.builder.clients.counted() == nil {
		return explainClient{}, fmt.Errorf("from is %q; give an address, or run the agent without --client-metrics=off", text)
	}
	found := a.builder.clients.find(text, addr.Is6())
	switch len(found) {
	case 0:
		return explainClient{}, fmt.Errorf("from is %q; give an address, or NAMESPACE/NAME of a pod of this node that is not in the node's network", text)
	case 1:
		return found[0], nil
	}
	return explainClient{}, fmt.Errorf("from is %q; several pods have this name: give NAMESPACE/NAME", text)
}

// pod returns the pod that has addr, zero for none.
func (x *attribution) pod(addr netip.Addr) clients.Pod {
	if x == nil {
		return clients.Pod{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.podAt(addr)
}

// find returns the pods called NAMESPACE/NAME or NAME, each with one of its addresses: an IPv6 address if v6 is set
// and it has one.
func (x *attribution) find(text string, v6 bool) (found []explainClient) {
	namespace, name, qualified := strings.Cut(text, "/")
	if !qualified {
		name = text
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for addr := range x.pods {
		pod := x.podAt(addr)
		if pod.Name != name || qualified && pod.Namespace != namespace {
			continue
		}
		i := slices.IndexFunc(found, func(c explainClient) bool { return c.pod == pod })
		switch {
		case i < 0:
			found = append(found, explainClient{addr, pod})
		case prefers(addr, found[i].addr, v6):
			found[i].addr = addr
		}
	}
	return found
}

// prefers reports whether a is to be taken in place of b.
func prefers(a, b netip.Addr, v6 bool) bool {
	if a.Is6() != b.Is6() {
		return a.Is6() == v6
	}
	return a.Less(b)
}

// explain returns the explanation of q.
func (a *agent) explain(ctx context.Context, q *explainQuery) *report.Explanation {
	e := &report.Explanation{
		Header:   a.header(),
		Listener: report.ExplainedListener{Address: q.listen.String(), Transport: q.listener.Transport.String(), Protocol: q.proto.String()},
		Client: report.ExplainedClient{
			Address: q.from.addr.String(), Namespace: q.from.pod.Namespace, Pod: q.from.pod.Name,
			WorkloadKind: q.from.pod.Workload.Kind, Workload: q.from.pod.Workload.Name, Kernel: q.kernelClient(),
		},
		Ndots: q.ndots, Search: []string{}, Questions: []report.ExplainedQuestion{},
	}
	e.Client.Limited, e.Client.LimitedSeconds = a.limitedNow(q.from.addr)
	if q.message != nil {
		e.Questions = append(e.Questions, q.question(ctx, q.message))
		return e
	}
	began := time.Now()
	for _, domain := range a.searchPath(q) {
		e.Search = append(e.Search, domain.String())
	}
	conditional := false
	for _, name := range q.names(a.searchPath(q)) {
		x := q.question(ctx, q.packet(name))
		x.Conditional = conditional
		e.Questions = append(e.Questions, x)
		conditional = conditional || x.Waits != "" && x.Asked == nil
		if endsSearch(&x) {
			break
		}
		if time.Since(began) > maxAskTime {
			q.ask = false
		}
	}
	return e
}

// searchPath returns the search domains of q's client if it is a pod and the name is not fully qualified:
// those of a pod with dnsPolicy ClusterFirst.
func (a *agent) searchPath(q *explainQuery) []wire.Name {
	if q.from.pod == (clients.Pod{}) || strings.HasSuffix(q.name, ".") {
		return nil
	}
	zone := clusterZone(a.current.Load())
	var path []wire.Name
	for _, prefix := range []string{q.from.pod.Namespace + ".svc.", "svc.", ""} {
		if domain, err := wire.ParseName(prefix + zone.String()); err == nil {
			path = append(path, domain)
		}
	}
	if !a.dry { // this machine is no node
		path = append(path, nodeSearch()...)
	}
	return path[:min(len(path), maxSearchDomains)]
}

// clusterZone returns the zone of the cluster: the first of a kubernetes directive that is not a reverse
// zone, cluster.local without one.
func clusterZone(g *generation) wire.Name {
	for _, b := range g.cfg.Blocks {
		if b.Kubernetes == nil {
			continue
		}
		for _, zone := range b.Kubernetes.Zones {
			if zone != wire.Root && !zone.Under("\x04arpa\x00") {
				return zone
			}
		}
	}
	return "\x07cluster\x05local\x00"
}

// names returns the names that the client's resolver asks for, in order (resolv.conf(5), ndots).
func (q *explainQuery) names(search []wire.Name) (list []wire.Name) {
	name, _ := wire.ParseName(q.name)
	for _, domain := range search {
		if full := name[:len(name)-1] + domain; len(full) <= wire.MaxName {
			list = append(list, full)
		}
	}
	if strings.Count(q.name, ".") >= q.ndots {
		return append([]wire.Name{name}, list...)
	}
	return append(list, name)
}

// endsSearch reports whether the C library asks for no other name after the reply to x: it goes on after
// NXDOMAIN, SERVFAIL, and a reply without records.
func endsSearch(x *report.ExplainedQuestion) bool {
	if x.Asked != nil {
		return x.Asked.NoReply || !slices.Contains([]string{"NXDOMAIN", "SERVFAIL"}, x.Asked.Rcode) && (x.Asked.Rcode != "NOERROR" || len(x.Asked.Answers) > 0)
	}
	switch x.Rcode {
	case "NOERROR":
		return len(x.Answers) > 0
	case "NXDOMAIN", "SERVFAIL":
		return false
	}
	return x.Waits == ""
}

// packet returns the query for name.
func (q *explainQuery) packet(name wire.Name) []byte {
	return wire.AppendClientQuery(nil, uint16(rand.Uint32()), []byte(name), q.qtype, q.dnssec, q.disabled)
}

// question returns the explanation of one query.
func (q *explainQuery) question(ctx context.Context, packet []byte) report.ExplainedQuestion {
	out := report.ExplainedQuestion{
		Steps: []report.ExplainedStep{}, Alternatives: []string{}, Cached: []report.CacheEntry{}, ExplainedReply: report.ExplainedReply{Answers: []string{}},
	}
	client := netip.AddrPortFrom(q.from.addr, 0)
	x, verdict := q.listener.Routes.Explain(packet, client, q.proto)
	if verdict != wire.Serve {
		out.Error = "the query is not valid"
		return out
	}
	out.Name, out.Type = x.Name.String(), wire.TypeName(x.Type)
	out.MoreSteps, out.Source, out.Waits = x.MoreSteps, x.Source, x.Waits.String()
	out.Alternatives = append(out.Alternatives, x.Alternatives...)
	for i := range x.Steps {
		out.Steps = append(out.Steps, newExplainedStep(&x.Steps[i]))
	}
	if z := x.Zone; z != nil {
		out.Zone = &report.ExplainedZone{Name: z.Name.String(), Line: z.Line, View: z.View.Name()}
		if z.Cache != nil {
			out.Cached = newCacheEntries(z.Cache.Entries([]byte(x.Name)))
		}
	}
	out.Kernel = q.explainedKernel(packet, x)
	switch x.Waits {
	case resolver.WaitUpstream:
		out.Forward = newExplainedForward(x, q.proto)
	case resolver.NoWait:
		out.ExplainedReply = newExplainedReply(x.Reply, x.Rcode, x.Err)
	case resolver.WaitView:
	}
	if q.ask {
		if a, _ := q.listener.Routes.Ask(ctx, packet, client, q.proto); a != nil {
			out.Asked = &report.AskedQuestion{Source: a.Source, Seconds: a.Latency.Seconds(), ExplainedReply: newExplainedReply(a.Reply, a.Rcode, a.Err)}
		}
	}
	return out
}

// newExplainedStep returns s for the reply.
func newExplainedStep(s *resolver.ExplainedStep) report.ExplainedStep {
	out := report.ExplainedStep{
		Depth: s.Depth, Name: s.Name.String(), Type: wire.TypeName(s.Type), Step: s.Step, Outcome: s.Outcome.String(), Reason: s.Reason,
	}
	if s.Cached != nil {
		entry := newCacheEntry(s.Cached)
		out.Cached = &entry
	}
	return out
}

// newExplainedForward returns the forward directive of x, nil for none.
func newExplainedForward(x *resolver.Explanation, proto resolver.Proto) *report.ExplainedForward {
	if x.Pool == nil {
		return nil
	}
	f := &report.ExplainedForward{From: x.Pool.From().String(), Policy: x.Pool.Policy(), Stopped: x.Stopped, Upstreams: []report.ExplainedUpstream{}}
	for _, c := range x.Pool.Candidates(proto == resolver.TCP) {
		f.Upstreams = append(f.Upstreams, report.ExplainedUpstream{To: c.To.String(), Down: c.Down, Suspect: c.Suspect, RTTSeconds: c.RTT.Seconds()})
	}
	return f
}

// newExplainedReply returns what the message, nil for none, has. failure is why it is an error, nil if it is none.
func newExplainedReply(message []byte, rcode wire.Rcode, failure error) report.ExplainedReply {
	out := report.ExplainedReply{Rcode: rcodeName(rcode), NoReply: message == nil, Answers: []string{}}
	if failure != nil {
		out.Error = failure.Error()
	}
	if message == nil {
		return out
	}
	p, err := wire.Present(message)
	if err != nil {
		out.Error = cmp.Or(out.Error, "the reply is not valid: "+err.Error())
		return out
	}
	out.TTLSeconds = p.TTL
	shown := min(len(p.Answers), maxShownRecords)
	out.Answers = append(out.Answers, p.Answers[:shown]...)
	out.MoreAnswers = len(p.Answers) - shown
	return out
}

// rcodeName returns the name of a reply's rcode. 16 has another meaning in signed messages.
func rcodeName(rcode wire.Rcode) string {
	if rcode == wire.BadVers {
		return "BADVERS"
	}
	return rcode.String()
}

// newCacheEntries returns the first entries of list for the reply.
func newCacheEntries(list []cache.EntryInfo) []report.CacheEntry {
	entries := []report.CacheEntry{}
	for i := range list[:min(len(list), maxShownEntries)] {
		entries = append(entries, newCacheEntry(&list[i]))
	}
	return entries
}

// newCacheEntry returns i for the reply.
func newCacheEntry(i *cache.EntryInfo) report.CacheEntry {
	e := report.CacheEntry{
		Name: i.Name.String(), Type: wire.TypeName(i.Type), Class: wire.ClassName(i.Class), DNSSEC: i.DO, CheckingDisabled: i.CD,
		Rcode: i.Rcode.String(), Kind: "success", Answers: i.Answers, Subtree: i.Subtree,
		TTLSeconds: i.TTL.Seconds(), StaleSeconds: i.Stale.Seconds(), Bytes: i.Size,
	}
	if i.Denial {
		e.Kind = "denial"
	}
	if i.Age >= 0 {
		age := i.Age.Seconds()
		e.AgeSeconds = &age
	}
	return e
}

// kernelClient returns what the programs know of q's client; nil without programs, and if they do not know it.
func (q *explainQuery) kernelClient() *report.KernelClient {
	if !q.kernel.available() {
		return nil
	}
	c, ok := q.kernel.program.Client(q.from.addr, q.listen)
	if !ok {
		return nil
	}
	out := &report.KernelClient{Answering: c.Answering, Result: c.Result}
	if i, err := net.InterfaceByIndex(c.Interface); err == nil {
		out.Interface = i.Name
	}
	return out
}

// explainedKernel returns what the programs have for the question of x, whose query is packet; nil without programs.
func (q *explainQuery) explainedKernel(packet []byte, x *resolver.Explanation) *report.ExplainedKernel {
	if !q.kernel.available() {
		return nil
	}
	k := &report.ExplainedKernel{Excluded: cmp.Or(q.excluded(), x.NotCopied)}
	var query wire.Query
	if query.Parse(packet) == wire.Serve {
		k.Excluded = cmp.Or(k.Excluded, kernelpath.Unsupported(&query, x.Reply))
	}
	k.Copies = newKernelCopies(q.kernel.program.Copies([]byte(x.Name), x.Type, q.listen))
	return k
}

// excluded returns why the kernel answers no query to q's listener, "" if it may.
func (q *explainQuery) excluded() string {
	switch {
	case q.listener.Transport != config.PlainDNS:
		return "clients use " + q.listener.Transport.String()
	case q.proto != resolver.UDP:
		return "the query comes over TCP"
	case q.listen.Addr().IsUnspecified():
		return "the agent listens on all addresses"
	}
	return ""
}
