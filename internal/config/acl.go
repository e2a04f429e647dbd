package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// ACL is `acl [ZONES…] { ACTION [type QTYPES…] [net SOURCES…] }`. A block may have
// several; the rules apply in the order of the file.
type ACL struct {
	Rules []ACLRule // never empty
}

// ACLRule is one acl. The first of its policies that matches the query decides; if none
// does, the next rule follows.
type ACLRule struct {
	Zones    []wire.Name // by default the block's zones
	Policies []ACLPolicy
}

// ACLPolicy is one line of a rule.
type ACLPolicy struct {
	Action ACLAction
	Types  []uint16       // nil is all
	Nets   []netip.Prefix // nil is all; none is an IPv4 prefix in IPv6 form
}

// ACLAction is what happens to a query.
type ACLAction uint8

// The actions, in the order of their names.
const (
	ACLAllow  ACLAction = iota
	ACLBlock            // REFUSED
	ACLDrop             // no reply
	ACLFilter           // no records
)

var aclActions = map[string]ACLAction{"allow": ACLAllow, "block": ACLBlock, "drop": ACLDrop, "filter": ACLFilter}

func (a *ACL) parse(p *parser, s statement) {
	rule := ACLRule{Zones: p.zonesOr(s.args())}
	for _, line := range s.body {
		name := line.name()
		action, ok := aclActions[strings.ToLower(name.text)]
		switch {
		case !ok:
			choice(p, name, "action", aclActions)
		case line.body != nil:
			p.errorf(name, "%q takes no block in braces; write: %s [type QTYPES…] [net SOURCES…]", name.text, name.text)
		default:
			p.option = strings.ToLower(name.text)
			rule.Policies = append(rule.Policies, p.policy(action, line.args()))
			p.option = ""
		}
	}
	a.Rules = []ACLRule{rule}
}

func (a *ACL) join(_ *parser, _ statement, next directive) {
	a.Rules = append(a.Rules, next.(*ACL).Rules...)
}

// policy reads the arguments of an action: sections that begin with `type` or `net`, in any
// order.
func (p *parser) policy(action ACLAction, args []token) ACLPolicy {
	line := ACLPolicy{Action: action}
	var allTypes, allNets bool
	for len(args) > 0 {
		var head token
		var values []token
		head, values, args = cutSection(args)
		switch {
		case !isSection(head):
			p.unknown(head, "word", []string{"net", "type"})
		case len(values) == 0:
			p.errorf(head, "%q needs a value; name some, or * for all", head.text)
		case strings.EqualFold(head.text, "type"):
			line.Types, allTypes = p.qtypes(line.Types, values), allTypes || matchesAll(values)
		default:
			line.Nets, allNets = p.nets(line.Nets, values), allNets || matchesAll(values)
		}
	}
	if allTypes {
		line.Types = nil
	}
	if allNets {
		line.Nets = nil
	}
	return line
}

// cutSection splits args into the keyword of the first section, its values, and the other
// sections.
func cutSection(args []token) (head token, values, rest []token) {
	n := 1
	for n < len(args) && !isSection(args[n]) {
		n++
	}
	return args[0], args[1:n], args[n:]
}

func isSection(w token) bool {
	return strings.EqualFold(w.text, "type") || strings.EqualFold(w.text, "net")
}

// wildcard is the word for all types and all nets.
const wildcard = "*"

func matchesAll(words []token) bool {
	return slices.ContainsFunc(words, func(w token) bool { return w.text == wildcard })
}

// qtypes adds the types that words name to list.
func (p *parser) qtypes(list []uint16, words []token) []uint16 {
	for _, w := range words {
		if w.text == wildcard {
			continue
		}
		qtype, ok := wire.ParseType(w.text)
		if !ok {
			p.errorf(w, "%q is not a type of records such as A, AAAA or TXT", w.text)
			continue
		}
		list = append(list, qtype)
	}
	return list
}

// nets adds the addresses and nets that words name to list.
func (p *parser) nets(list []netip.Prefix, words []token) []netip.Prefix {
	for _, w := range words {
		if w.text == wildcard {
			continue
		}
		prefix, ok := parseNet(w.text)
		if !ok {
			p.errorf(w, "%q is not an address or a CIDR such as 10.0.0.0/8", w.text)
			continue
		}
		list = append(list, prefix)
	}
	return list
}

// parseNet reads an address or a CIDR, whose host bits don't matter.
func parseNet(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.WithZone("").Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	if addr := prefix.Addr(); addr.Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}
