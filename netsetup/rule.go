package netsetup

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Family tells iptables from ip6tables.
type Family uint8

// The two families. There is no unknown one: a Family comes from an address.
const (
	IPv4 Family = iota
	IPv6
)

// String returns the name of the family's tool.
func (f Family) String() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

func familyOf(a netip.Addr) Family {
	if a.Is6() {
		return IPv6
	}
	return IPv4
}

// Rule is one packet-filter rule.
type Rule struct {
	Family Family
	Table  string
	Chain  string

	// Spec is what follows the chain on iptables' command line, one word each.
	// Nobody changes it.
	Spec []string
}

// String returns the shell command that inserts the rule at the chain's head.
func (r Rule) String() string {
	words := make([]string, 0, len(r.Spec))
	for _, w := range r.Spec {
		if strings.ContainsAny(w, " \"\\") {
			w = strconv.Quote(w)
		}
		words = append(words, w)
	}
	return r.Family.String() + " -w -t " + r.Table + " -I " + r.Chain + " 1 " + strings.Join(words, " ")
}

// The comments are NodeLocal DNSCache's: iptables compares them when it looks
// for a rule, so with any other text both programs' rules would stand side by side.
const (
	commentSkip  = "NodeLocal DNS Cache: skip conntrack"
	commentAllow = "NodeLocal DNS Cache: allow DNS traffic"
)

// rulesFor lists the rules of one local address in the order of applying them:
// ACCEPT before NOTRACK, see the package doc. Within each chain the order is that
// of NodeLocal DNSCache.
func rulesFor(local netip.Addr, dns, health uint16) []Rule {
	to := func(proto string, port uint16) []string {
		return []string{"-p", proto, "-d", local.String(), "--dport", strconv.Itoa(int(port))}
	}
	from := func(proto string, port uint16) []string {
		return []string{"-p", proto, "-s", local.String(), "--sport", strconv.Itoa(int(port))}
	}
	var rules []Rule
	add := func(table, chain string, match []string, target, comment string) {
		rules = append(rules, Rule{
			Family: familyOf(local),
			Table:  table,
			Chain:  chain,
			Spec:   append(match, "-j", target, "-m", "comment", "--comment", comment),
		})
	}
	protos := []string{"tcp", "udp"}
	for _, p := range protos { // queries come in though the firewall sees no connection
		add("filter", "INPUT", to(p, dns), "ACCEPT", commentAllow)
	}
	for _, p := range protos { // and so do the answers go out
		add("filter", "OUTPUT", from(p, dns), "ACCEPT", commentAllow)
	}
	for _, p := range protos { // queries of pods
		add("raw", "PREROUTING", to(p, dns), "NOTRACK", commentSkip)
	}
	for _, p := range protos { // answers
		add("raw", "OUTPUT", from(p, dns), "NOTRACK", commentSkip)
	}
	for _, p := range protos { // queries of the node itself and of host-network pods
		add("raw", "OUTPUT", to(p, dns), "NOTRACK", commentSkip)
	}
	if health != 0 { // the kubelet's liveness probe, both ways
		add("raw", "OUTPUT", to("tcp", health), "NOTRACK", commentSkip)
		add("raw", "OUTPUT", from("tcp", health), "NOTRACK", commentSkip)
	}
	return rules
}

// listed reports whether line, as `iptables -S` prints it, is exactly this rule.
// Tools differ in the order of words and in how they name NOTRACK, so the options
// are compared as a set with one name for that target. A rule with one option more
// or less is another rule and is not ours to touch.
func (r Rule) listed(line string) bool {
	words := splitWords(line)
	if len(words) < 2 || words[0] != "-A" || words[1] != r.Chain {
		return false
	}
	return slices.Equal(options(words[2:]), options(r.Spec))
}

// options returns the sorted "option value" pairs of a rule, without the names of
// match modules, which follow from the options.
func options(words []string) []string {
	var pairs []string
	for len(words) > 0 {
		opt, val := words[0], ""
		words = words[1:]
		if len(words) > 0 {
			val, words = words[0], words[1:]
		}
		switch opt {
		case "-m":
			continue
		case "-s", "-d":
			val, _, _ = strings.Cut(val, "/")
		case "-j":
			if val == "CT" && len(words) > 0 && words[0] == "--notrack" {
				val, words = "NOTRACK", words[1:] // the modern spelling
			}
		}
		// An option without a value, or a negation, pairs what does not belong
		// together; that equals no rule of ours, as ours have neither.
		pairs = append(pairs, opt+" "+val)
	}
	slices.Sort(pairs)
	return pairs
}

// splitWords cuts a line of `iptables -S` at blanks. Double quotes hold words
// together and a backslash in them escapes, which is all the quoting iptables does.
func splitWords(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '"':
			quoted, inWord = !quoted, true
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}
