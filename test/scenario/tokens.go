package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// tokens are those of one line behind its keyword. Its methods note the first fault;
// what they give behind one means nothing.
type tokens struct {
	list  []string
	usage string
	err   error
}

func (w *tokens) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format+"; write: %s", append(args, w.usage)...)
	}
}

// more reports whether there are words left.
func (w *tokens) more() bool { return len(w.list) > 0 && w.err == nil }

// next takes a word; what says what is expected.
func (w *tokens) next(what string) string {
	if !w.more() {
		w.fail("%s is missing", what)
		return ""
	}
	word := w.list[0]
	w.list = w.list[1:]
	return word
}

// accept takes the next word if it is word.
func (w *tokens) accept(word string) bool {
	if w.more() && w.list[0] == word {
		w.list = w.list[1:]
		return true
	}
	return false
}

// end notes words that are left over.
func (w *tokens) end() {
	if w.more() {
		w.fail("%q is not expected", w.list[0])
	}
}

// options takes all words that are left: each is a key of table, whose function
// takes the words that belong to it.
func (w *tokens) options(table map[string]func()) {
	for w.more() {
		word := w.next("an option")
		set, ok := table[word]
		if !ok {
			w.fail("%q is not an option", word)
			return
		}
		set()
	}
}

func (w *tokens) choice(what string, of ...string) string {
	word := w.next(what)
	if !slices.Contains(of, word) {
		w.fail("%q is no %s, which is one of %s", word, what, strings.Join(of, ", "))
	}
	return word
}

// number takes a number from least to most.
func (w *tokens) number(what string, least, most int) int {
	word := w.next(what)
	n, err := strconv.Atoi(word)
	if err != nil || n < least || n > most {
		w.fail("%q is no %s, which is a number from %d to %d", word, what, least, most)
	}
	return n
}

// countRange takes "N", "N..M" or "N..".
func (w *tokens) countRange(what string) countRange {
	word := w.next(what)
	s, ok := parseCountRange(word)
	if !ok {
		w.fail("%q is no %s, which is N, N..M or N..", word, what)
	}
	return s
}

func parseCountRange(word string) (countRange, bool) {
	low, high, ranged := strings.Cut(word, "..")
	least, err := strconv.Atoi(low)
	if err != nil || least < 0 {
		return countRange{}, false
	}
	switch {
	case !ranged:
		return countRange{least, least}, true
	case high == "":
		return countRange{least, unbounded}, true
	}
	most, err := strconv.Atoi(high)
	return countRange{least, most}, err == nil && most >= least
}

// maxDuration bounds what a scenario can make a server wait; the clock it may move by
// a year, maxAdvance.
const (
	maxDuration = 10 * time.Second
	maxAdvance  = 366 * 24 * time.Hour
)

func (w *tokens) duration(what string, most time.Duration) time.Duration {
	word := w.next(what)
	d, err := time.ParseDuration(word)
	if err != nil || d < 0 || d > most {
		w.fail("%q is no %s, which is a duration such as 20ms or 30s, at most %s", word, what, most)
	}
	return d
}

// name takes a domain name, and makes it absolute.
func (w *tokens) name(what string) string {
	word := w.next(what)
	if _, ok := dns.IsDomainName(word); !ok {
		w.fail("%q is no %s", word, what)
	}
	return dns.Fqdn(word)
}

func (w *tokens) qtype() uint16 {
	word := w.next("a type")
	t, ok := dns.StringToType[word]
	if n, numbered := strings.CutPrefix(word, "TYPE"); !ok && numbered {
		if v, err := strconv.ParseUint(n, 10, 16); err == nil {
			return uint16(v)
		}
	}
	if !ok {
		w.fail("%q is no type, which is one such as A or HTTPS or TYPE65280", word)
	}
	return t
}

func (w *tokens) rcode() int {
	word := w.next("an rcode")
	c, ok := dns.StringToRcode[word]
	if !ok {
		w.fail("%q is no rcode, which is one such as NOERROR or NXDOMAIN", word)
	}
	return c
}

func (w *tokens) addr() netip.Addr {
	word := w.next("an address")
	a, err := netip.ParseAddr(word)
	if err != nil {
		w.fail("%q is no IP address", word)
	}
	return a
}

// transports are the words behind "over".
var transports = []string{"udp", "tcp", "tls", "https"}

func (w *tokens) transport() string { return w.choice("transport", transports...) }

// flags takes words for bits of the header, "-" before one that is not set.
func (w *tokens) flags(set, unset *[]string, of ...string) {
	for w.more() {
		word, off := strings.CutPrefix(w.list[0], "-")
		if !slices.Contains(of, word) {
			return
		}
		if off {
			*unset = append(*unset, word)
		} else {
			*set = append(*set, word)
		}
		w.list = w.list[1:]
	}
}

// headerFlags are the bits of the header that have names.
var headerFlags = []string{"aa", "tc", "rd", "ra", "ad", "cd"}

// flagBit is where the flag is in m; nil for no flag.
func flagBit(m *dns.Msg, flag string) *bool {
	switch flag {
	case "aa":
		return &m.Authoritative
	case "tc":
		return &m.Truncated
	case "rd":
		return &m.RecursionDesired
	case "ra":
		return &m.RecursionAvailable
	case "ad":
		return &m.AuthenticatedData
	case "cd":
		return &m.CheckingDisabled
	}
	return nil
}
