package app

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server"
	"github.com/nodens-dns/nodens/server/clients"
	"github.com/nodens-dns/nodens/server/resolver"
)

const (
	// maxShownRecords and maxShownEntries bound the records and cache entries for one question.
	maxShownRecords = 64
	maxShownEntries = 64
	// maxSearchDomains bounds the search path of a pod: resolvers take 32 at most (resolv.conf(5)).
	maxSearchDomains = 32
	// defaultNdots is the option in the resolv.conf of pods.
	defaultNdots = 5
)

// showExplain answers what the agent would do with a query.
func (a *agent) showExplain(w http.ResponseWriter, r *http.Request) {
	q, err := a.parseExplain(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(w, a.explain(q))
}

// explainQuery is a parsed request for an explanation.
type explainQuery struct {
	name     string // as given: it may be relative
	qtype    uint16
	dnssec   bool
	disabled bool // CD
	proto    resolver.Proto
	from     explainClient
	ndots    int
	listen   netip.AddrPort
	listener server.ListenerConfig
}

// explainClient is the client of an explanation; pod is zero unless it is a pod of the node.
type explainClient struct {
	addr netip.Addr
	pod  clients.Pod
}

// parseExplain reads the parameters of /explain.
func (a *agent) parseExplain(values url.Values) (*explainQuery, error) {
	q := &explainQuery{name: values.Get("name"), ndots: defaultNdots, qtype: wire.TypeA}
	if _, err := wire.ParseName(q.name); err != nil || q.name == "" {
		return nil, fmt.Errorf("name is %q; give a domain name", q.name)
	}
	if text := values.Get("type"); text != "" {
		var err error
		if q.qtype, err = parseType(text); err != nil {
			return nil, err
		}
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
	q.dnssec, q.disabled = values.Get("dnssec") == "true", values.Get("cd") == "true"
	var err error
	if q.listen, q.listener, err = a.current.Load().listenerAt(values.Get("server")); err != nil {
		return nil, err
	}
	q.from, err = a.explainFrom(values.Get("from"), q.listen.Addr())
	return q, err
}

// parseType returns the number of a record type: its name, or TYPEn (RFC 3597).
func parseType(text string) (uint16, error) {
	upper := strings.ToUpper(text)
	if t, ok := dns.StringToType[upper]; ok {
		return t, nil
	}
	if digits, ok := strings.CutPrefix(upper, "TYPE"); ok {
		if n, err := strconv.ParseUint(digits, 10, 16); err == nil {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("type is %q; give the name of a record type, such as AAAA or TYPE65", text)
}

// listenerAt returns the listener at an address, with or without a port. "" is the first one for plain
// DNS in the order of the Corefile, or else the first one.
func (g *generation) listenerAt(text string) (netip.AddrPort, server.ListenerConfig, error) {
	var all []netip.AddrPort
	for _, p := range g.blocks {
		all = append(all, p.block.Listen...)
	}
	matches := func(at netip.AddrPort) bool { return g.listeners[at].Transport == config.PlainDNS }
	if text != "" {
		matches = func(at netip.AddrPort) bool { return at.String() == text || at.Addr().String() == text }
	}
	at := slices.IndexFunc(all, matches)
	if at < 0 && text != "" {
		return netip.AddrPort{}, server.ListenerConfig{}, fmt.Errorf("server is %q; the agent listens at %s", text, strings.Join(atMost(maxListed, g.addresses()), ", "))
	}
	return all[max(at, 0)], g.listeners[all[max(at, 0)]], nil
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
func (a *agent) explain(q *explainQuery) *report.Explanation {
	e := &report.Explanation{
		Header:   a.header(),
		Listener: report.ExplainedListener{Address: q.listen.String(), Transport: q.listener.Transport.String(), Protocol: q.proto.String()},
		Client: report.ExplainedClient{
			Address: q.from.addr.String(), Namespace: q.from.pod.Namespace, Pod: q.from.pod.Name,
			WorkloadKind: q.from.pod.Workload.Kind, Workload: q.from.pod.Workload.Name,
		},
		Ndots: q.ndots, Search: []string{}, Questions: []report.ExplainedQuestion{},
	}
	for _, domain := range a.searchPath(q) {
		e.Search = append(e.Search, domain.String())
	}
	conditional := false
	for _, name := range q.names(a.searchPath(q)) {
		x := q.question(name)
		x.Conditional = conditional
		e.Questions = append(e.Questions, x)
		conditional = conditional || x.Waits != ""
		if endsSearch(&x) {
			break
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
	zone := a.current.Load().clusterZone()
	var path []wire.Name
	for _, prefix := range []string{q.from.pod.Namespace + ".svc.", "svc.", ""} {
		if domain, err := wire.ParseName(prefix + zone.String()); err == nil {
			path = append(path, domain)
		}
	}
	path = append(path, nodeSearch()...)
	return path[:min(len(path), maxSearchDomains)]
}

// clusterZone returns the zone of the cluster: the first of a kubernetes directive that is not a reverse
// zone, cluster.local without one.
func (g *generation) clusterZone() wire.Name {
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
	m := new(dns.Msg)
	m.SetQuestion(name.String(), q.qtype)
	m.CheckingDisabled = q.disabled
	m.SetEdns0(wire.SafeUDP, q.dnssec)
	packet, err := m.Pack()
	if err != nil { // a valid name always packs
		return nil
	}
	return packet
}

// question returns the explanation of one query.
func (q *explainQuery) question(name wire.Name) report.ExplainedQuestion {
	out := report.ExplainedQuestion{
		Name: name.String(), Type: wire.TypeName(q.qtype), Steps: []report.ExplainedStep{}, Alternatives: []string{}, Answers: []string{}, Cached: []report.CacheEntry{},
	}
	x, verdict := q.listener.Routes.Explain(q.packet(name), netip.AddrPortFrom(q.from.addr, 0), q.proto)
	if verdict != wire.Serve {
		out.Error = "the query is not valid"
		return out
	}
	out.MoreSteps, out.Source, out.Waits = x.MoreSteps, x.Source, x.Waits.String()
	out.Alternatives = append(out.Alternatives, x.Alternatives...)
	for i := range x.Steps {
		out.Steps = append(out.Steps, newExplainedStep(&x.Steps[i]))
	}
	if x.Err != nil {
		out.Error = x.Err.Error()
	}
	if z := x.Zone; z != nil {
		out.Zone = &report.ExplainedZone{Name: z.Name.String(), Line: z.Line, View: z.View.Name()}
		if z.Cache != nil {
			out.Cached = newCacheEntries(z.Cache.Entries([]byte(x.Name)))
		}
	}
	switch x.Waits {
	case resolver.WaitUpstream:
		out.Forward = newExplainedForward(x, q.proto)
	case resolver.NoWait:
		out.NoReply = x.Reply == nil
		addReply(&out, x.Reply)
	case resolver.WaitView:
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

// addReply adds what the message has to out.
func addReply(out *report.ExplainedQuestion, message []byte) {
	if message == nil {
		return
	}
	m := new(dns.Msg)
	if err := m.Unpack(message); err != nil {
		out.Error = cmp.Or(out.Error, "the reply is not valid: "+err.Error())
		return
	}
	out.Rcode = dns.RcodeToString[m.Rcode]
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		if ttl := rr.Header().Ttl; out.TTLSeconds == nil || ttl < *out.TTLSeconds {
			out.TTLSeconds = &ttl
		}
	}
	for _, rr := range m.Answer {
		if len(out.Answers) == maxShownRecords {
			out.MoreAnswers++
			continue
		}
		out.Answers = append(out.Answers, strings.ReplaceAll(rr.String(), "\t", " "))
	}
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
		Name: i.Name.String(), Type: wire.TypeName(i.Type), Class: dns.Class(i.Class).String(), DNSSEC: i.DO, CheckingDisabled: i.CD,
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
