package zonefile

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nodens-dns/nodens/internal/authority"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Policies are the response policy zones of one server block (draft-vixie-dnsop-dns-rpz). They are loaded and kept up to date like
// the zones of [New] and [NewSecondary], and looked up in another way: the rule for a name is the node of that name in front of
// the zone's origin, or else the longest wildcard that the name is below. A zone that has expired keeps its rules.
//
// Policies are created by [NewPolicies] and safe for concurrent use. Look-ups take no lock.
type Policies struct {
	lists   []*policyList
	changed func()
}

// policyList is one response policy zone.
type policyList struct {
	cfg    *config.RPZ
	table  *Table
	rules  atomic.Pointer[policyRules] // nil until the zone is loaded
	counts [2][authority.NumPolicyActions]atomic.Uint64
	log    *slog.Logger
}

// policyRules are the rules of a version of a response policy zone.
type policyRules struct {
	zone *Zone
	// addrs are the rules about addresses in replies, sorted, and lengths the lengths of their prefixes, the longest
	// first: those of IPv4 addresses as if they were mapped.
	addrs   []addrRule
	lengths []int
	stats   PolicyStats
}

// addrRule is a rule about the addresses of a prefix, which is of IPv6.
type addrRule struct {
	prefix netip.Prefix
	at     uint32 // of the node
}

// addrRuleSize is the size of an addrRule in memory, in bytes.
const addrRuleSize = 40

// PolicyStats says how many rules a response policy zone has.
type PolicyStats struct {
	// Names and Addrs are the rules about names and about addresses in replies; Ignored are those with triggers or actions that are
	// not supported.
	Names, Addrs, Ignored int
	// Loaded says that the zone is loaded.
	Loaded bool
	// Bytes is the size of the rules in memory.
	Bytes int
}

// NewPolicies returns the response policy zones of cfg and of the directives chained to it. Those of primary servers have no
// rules until [Policies.Run] has transferred them. opts.Changed is not used: changed is called after the rules of a zone have changed.
func NewPolicies(cfg *config.RPZ, primaries *Primaries, opts Options, changed func()) (*Policies, error) {
	p := &Policies{changed: changed}
	for _, d := range cfg.All() {
		l := &policyList{cfg: d, log: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))}
		opts := Options{Logger: opts.Logger, policies: true, Changed: func(z *Zone) {
			if rules := l.rules.Load(); rules == nil || rules.zone != z { // else it is the one that was read below
				l.load(z)
				p.changed()
			}
		}}
		zones := []wire.Name{d.Zone}
		if d.File == "" {
			l.table = NewSecondary(&config.Secondary{Zones: zones, From: d.From}, primaries, opts)
		} else {
			var err error
			if l.table, err = New(&config.ZoneFile{Path: d.File, Zones: zones, Reload: d.Reload, ByModTime: true}, opts); err != nil {
				return nil, err
			}
			if z := l.table.Zone(d.Zone); z != nil {
				l.load(z)
			}
		}
		p.lists = append(p.lists, l)
	}
	return p, nil
}

// Run keeps the zones up to date until ctx ends.
func (p *Policies) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, l := range p.lists {
		running.Go(func() { l.table.Run(ctx) })
	}
	running.Wait()
}

// Settled reports whether each zone is loaded, or the first attempt to transfer it has failed.
func (p *Policies) Settled() bool {
	return !slices.ContainsFunc(p.lists, func(l *policyList) bool { return !l.table.Settled() })
}

// Notify implements [authority.ResponsePolicies].
func (p *Policies) Notify(origin []byte, from netip.Addr) authority.NotifyResult {
	for _, l := range p.lists {
		if string(l.cfg.Zone) == string(origin) {
			return l.table.Notify(origin, from)
		}
	}
	return authority.NotSecondary
}

// Each calls f for each zone. queries calls its argument for each action and mode, enforce or audit, with the number of queries to
// which rules were applied or, in audit mode, would have been.
func (p *Policies) Each(f func(zone wire.Name, st PolicyStats, queries func(func(action, mode string, n uint64)))) {
	for _, l := range p.lists {
		var st PolicyStats
		if rules := l.rules.Load(); rules != nil {
			st = rules.stats
		}
		f(l.cfg.Zone, st, l.eachCount)
	}
}

func (l *policyList) eachCount(f func(action, mode string, n uint64)) {
	for mode, name := range [...]string{"enforce", "audit"} {
		for a := range l.counts[mode] {
			if n := l.counts[mode][a].Load(); n > 0 {
				f(authority.PolicyAction(a).String(), name, n) //nolint:gosec // an index
			}
		}
	}
}

// NameRule implements [authority.ResponsePolicies].
func (p *Policies) NameRule(name []byte, c authority.PolicyClient) (r *authority.PolicyRule, byClient bool) {
	return p.first(c, func(rules *policyRules) node { return rules.zone.trigger(name) })
}

// AddrRule implements [authority.ResponsePolicies].
func (p *Policies) AddrRule(addr netip.Addr, c authority.PolicyClient) (r *authority.PolicyRule, byClient bool) {
	return p.first(c, func(rules *policyRules) node { return rules.addr(addr) })
}

// HasAddrRules implements [authority.ResponsePolicies].
func (p *Policies) HasAddrRules() bool {
	for _, l := range p.lists {
		if rules := l.rules.Load(); rules != nil && len(rules.addrs) > 0 {
			return true
		}
	}
	return false
}

// first returns the rule of the first zone in which find finds one for the client. That of a zone in audit mode only counts if no other
// zone has one.
func (p *Policies) first(c authority.PolicyClient, find func(*policyRules) node) (r *authority.PolicyRule, byClient bool) {
	for _, l := range p.lists {
		rules := l.rules.Load()
		if rules == nil {
			continue
		}
		n := find(rules)
		if !n.ok() {
			continue
		}
		found := l.rule(n)
		if found.Action == authority.UnknownPolicy {
			continue
		}
		byClient = byClient || l.cfg.Namespaces != nil
		switch {
		case !l.binds(c):
		case !l.cfg.Audit:
			return found, byClient
		case r == nil:
			r = found
		}
	}
	return r, byClient
}

// binds reports whether the rules of l are for c: also while it is not known whose address it is.
func (l *policyList) binds(c authority.PolicyClient) bool {
	if l.cfg.Namespaces == nil {
		return true
	}
	ns, known := c.Namespace()
	return !known || slices.Contains(l.cfg.Namespaces, ns)
}

// load makes the rules of z those in service.
func (l *policyList) load(z *Zone) {
	rules := &policyRules{zone: z, stats: PolicyStats{Loaded: true}}
	for n := (node{z, 0}); n.at < len(z.data); n = n.following() {
		rules.add(l, n)
	}
	slices.SortFunc(rules.addrs, func(a, b addrRule) int { return comparePrefixes(a.prefix, b.prefix) })
	slices.SortFunc(rules.lengths, func(a, b int) int { return b - a })
	rules.stats.Bytes = z.Size() + addrRuleSize*len(rules.addrs)
	if rules.stats.Ignored > 0 {
		l.log.Warn("left out rules of the response policy zone, with triggers or actions that are not supported", "zone", z.origin, "rules", rules.stats.Ignored)
	}
	l.rules.Store(rules)
}

// Labels below the origin of a response policy zone that make triggers other than the qname (draft-vixie-dnsop-dns-rpz, 4).
var (
	addrTrigger   = []byte("\x06rpz-ip")
	otherTriggers = [][]byte{[]byte("\x0drpz-client-ip"), []byte("\x0brpz-nsdname"), []byte("\x08rpz-nsip")}
)

// Names that a CNAME record leads to instead of another name: the actions.
var actionNames = map[string]authority.PolicyAction{
	"\x00": authority.PolicyNXDomain, "\x01*\x00": authority.PolicyNoData, "\x0crpz-passthru\x00": authority.PolicyPassthru,
	"\x08rpz-drop\x00": authority.PolicyDrop, "\x0crpz-tcp-only\x00": authority.PolicyTCPOnly,
}

// action returns what the rule at n does; target is where a redirect leads.
func (z *Zone) action(n node) (a authority.PolicyAction, target []byte) {
	s, ok := n.find(wire.TypeCNAME)
	if !ok {
		return authority.PolicyLocalData, nil
	}
	_, target = s.first()
	target = wire.AppendLower(nil, target)
	if a, ok = actionNames[string(target)]; ok {
		return a, nil
	}
	owner := n.name()
	if trigger := owner[:len(owner)-len(z.origin)]; string(trigger) == string(target[:len(target)-1]) {
		return authority.PolicyPassthru, nil // as it was written before rpz-passthru
	}
	if last := lastLabel(target[:len(target)-1]); bytes.HasPrefix(last[1:], []byte("rpz-")) {
		return authority.UnknownPolicy, nil
	}
	return authority.PolicyRedirect, target
}

// lastLabel returns the last label of a name without the root, with its length.
func lastLabel(name []byte) []byte {
	for len(name) > 1+int(name[0]) {
		name = name[1+int(name[0]):]
	}
	return name
}

// rule returns the rule at n.
func (l *policyList) rule(n node) *authority.PolicyRule {
	r := &authority.PolicyRule{Audit: l.cfg.Audit, Zone: l.cfg.Zone, Trigger: n.name(), Counts: &l.counts}
	if r.Action, r.Target = n.z.action(n); r.Action == authority.PolicyLocalData {
		r.AddData = n.addTo
	}
	return r
}

// addTo adds the records of n that answer a query for qtype, with the question's name.
func (n node) addTo(r *wire.Reply, qtype uint16) {
	if qtype == wire.TypeANY {
		qtype = firstType(n)
	}
	s, ok := n.find(qtype)
	if !ok {
		return
	}
	for ttl, data, ok := s.next(); ok; ttl, data, ok = s.next() {
		r.Add(wire.Answer, wire.AtQuestion, qtype, ttl, data)
	}
}

// trigger returns the rule for a name: the one of the name itself, or else of the longest wildcard above it. Without a rule, the node is
// not ok. A wildcard is also for names below which there are other rules, which it would not be as a name of a zone (RFC 4592, 2.2.2).
func (z *Zone) trigger(name []byte) node {
	var full [2 * wire.MaxName]byte
	var starts [wire.MaxName/2 + 1]uint8
	n := copy(full[:], name[:len(name)-1])
	depth := 0
	for at := 0; at < n; at += 1 + int(name[at]) {
		starts[depth] = uint8(at) //nolint:gosec // at most 254
		depth++
	}
	end := n + copy(full[n:], z.origin)
	have := depth // the names from here on are nodes
	for have > 0 {
		found := z.node(full[starts[have-1]:end])
		if !found.ok() {
			break
		}
		if have--; have == 0 && found.sets().left > 0 {
			return found
		}
	}
	for above := max(have, 1); above <= depth; above++ {
		at := n
		if above < depth {
			at = int(starts[above])
		}
		if _, found, _ := z.searchWildcard(full[:end], at); found.ok() && found.sets().left > 0 {
			return found
		}
	}
	return node{}
}

// add adds the rule at n, which may be none.
func (rules *policyRules) add(l *policyList, n node) {
	name := n.name()
	trigger := name[:len(name)-len(rules.zone.origin)]
	if len(trigger) == 0 || n.sets().left == 0 {
		return
	}
	if a, _ := rules.zone.action(n); a == authority.UnknownPolicy {
		rules.stats.Ignored++
		return
	}
	last := lastLabel(trigger)
	switch {
	case slices.ContainsFunc(otherTriggers, func(t []byte) bool { return bytes.Equal(t, last) }):
		rules.stats.Ignored++
	case !bytes.Equal(addrTrigger, last):
		rules.stats.Names++
	default:
		prefix, ok := addrPrefix(trigger[:len(trigger)-len(last)])
		if !ok {
			rules.stats.Ignored++
			return
		}
		rules.stats.Addrs++
		rules.addrs = append(rules.addrs, addrRule{prefix, uint32(n.at)}) //nolint:gosec // below maxZoneSize
		if !slices.Contains(rules.lengths, prefix.Bits()) {
			rules.lengths = append(rules.lengths, prefix.Bits())
		}
	}
}

// addrPrefix reads the labels of a trigger in front of rpz-ip, such as 24.0.2.0.192 and 48.zz.db8.2001, where zz is a run of zeros.
// The prefix is of IPv6, that of an IPv4 address of mapped ones.
func addrPrefix(labels []byte) (p netip.Prefix, ok bool) {
	var words []string
	for ; len(labels) > 0; labels = labels[1+int(labels[0]):] {
		words = append(words, string(labels[1:1+int(labels[0])]))
	}
	if len(words) < 2 {
		return p, false
	}
	length := words[0]
	slices.Reverse(words)
	p, err := netip.ParsePrefix(addrText(words[:len(words)-1]) + "/" + length)
	if err != nil || p.Bits() == 0 || p.Masked() != p {
		return p, false
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+128-p.Addr().BitLen()), true
}

// addrText joins the words of an address.
func addrText(words []string) string {
	if len(words) == 4 && !slices.Contains(words, "zz") {
		return strings.Join(words, ".")
	}
	text := strings.ReplaceAll(strings.Join(words, ":"), "zz", "")
	if words[0] == "zz" {
		text = ":" + text
	}
	if words[len(words)-1] == "zz" {
		text += ":"
	}
	return text
}

// addr returns the rule with the longest prefix that contains addr. Without one, the node is not ok.
func (rules *policyRules) addr(addr netip.Addr) node {
	if len(rules.addrs) == 0 {
		return node{}
	}
	addr = netip.AddrFrom16(addr.As16())
	for _, bits := range rules.lengths {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		if i, ok := slices.BinarySearchFunc(rules.addrs, prefix, func(r addrRule, p netip.Prefix) int { return comparePrefixes(r.prefix, p) }); ok {
			return node{rules.zone, int(rules.addrs[i].at)}
		}
	}
	return node{}
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
