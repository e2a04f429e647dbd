package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ClientLimit is `client_limit QPS [BURST] [ACTION] { except CIDRS… }`: how many queries a second each client may
// ask. A block has at most one.
type ClientLimit struct {
	// Rate is in queries per second, and Burst how many may come at once; both are from 1 to MaxClientRate. The
	// default of Burst is Rate.
	Rate, Burst int
	Action      LimitAction
	// Except are the clients without a limit; none is an IPv4 prefix in IPv6 form.
	Except []netip.Prefix
}

func (*ClientLimit) needsAgent() bool { return true }

// MaxClientRate bounds the rate and the burst of a [ClientLimit].
const MaxClientRate = 1_000_000

// LimitAction is what happens to a query over the limit.
type LimitAction uint8

// The actions.
const (
	LimitRefuse   LimitAction = iota // REFUSED
	LimitTruncate                    // over UDP a reply with TC set and no records; over others REFUSED
	LimitDrop                        // over UDP no reply; over others REFUSED
)

// limitActions are the names of the actions.
var limitActions = []string{"refuse", "truncate", "drop"}

// String returns the name of the action.
func (a LimitAction) String() string { return limitActions[a] }

// clientLimitUsage is the syntax of the arguments.
const clientLimitUsage = "QPS [BURST] [refuse|truncate|drop]"

// ParseClientLimit reads the arguments of a client_limit from text, as in "100 200 refuse".
func ParseClientLimit(text string) (*ClientLimit, error) {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > 3 {
		return nil, errors.New("give " + clientLimitUsage + `, such as "100" or "100 200 drop"`)
	}
	c := new(ClientLimit)
	if _, err := c.setArguments(words); err != nil {
		return nil, err
	}
	return c, nil
}

// setArguments reads words, from one to three. On an error it returns the index of the word at fault.
func (c *ClientLimit) setArguments(words []string) (at int, err error) {
	if c.Rate, err = limitNumber(words[0]); err != nil {
		return 0, err
	}
	c.Burst = c.Rate
	rest := words[1:]
	if len(rest) > 0 && !slices.Contains(limitActions, rest[0]) {
		if c.Burst, err = limitNumber(rest[0]); err != nil {
			return 1, err
		}
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return 0, nil
	}
	at = len(words) - len(rest)
	action := slices.Index(limitActions, rest[0])
	switch {
	case action < 0:
		return at, fmt.Errorf("%q is no action; give refuse, truncate or drop", rest[0])
	case len(rest) > 1:
		return at + 1, fmt.Errorf("%q follows the action; write: %s", rest[1], clientLimitUsage)
	}
	c.Action = LimitAction(action)
	return 0, nil
}

// limitNumber reads a rate or a burst.
func limitNumber(word string) (int, error) {
	n, err := strconv.Atoi(word)
	if err != nil || n < 1 || n > MaxClientRate {
		return 0, fmt.Errorf("%q is not a number of queries; allowed: 1 to %d", word, MaxClientRate)
	}
	return n, nil
}

// ParseNets reads addresses and CIDRs, separated by commas or spaces. The host bits of a CIDR don't matter.
func ParseNets(text string) (list []netip.Prefix, err error) {
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' }) {
		prefix, ok := parseNet(word)
		if !ok {
			return nil, fmt.Errorf("%q is not an address or a CIDR such as 10.0.0.0/8", word)
		}
		list = append(list, prefix)
	}
	return list, nil
}

// minUsualBurst is the number of queries of one look-up in a pod: for two types, its name below three domains of the
// cluster and one of the node, and as it is.
const minUsualBurst = 10

func (c *ClientLimit) parse(p *parser, s statement) {
	p.body(s, opt("except CIDRS…", func(args []token) { c.Except = p.nets(c.Except, args) }))
	if !p.count(s, "client_limit "+clientLimitUsage) {
		return
	}
	args := s.args()
	if at, err := c.setArguments(texts(args)); err != nil {
		p.errorf(args[at], "%v", err)
		return
	}
	switch {
	case c.Burst < minUsualBurst:
		p.suspect(s.name(), "one look-up of a pod is up to %d queries at once, and the limit is %d: give a BURST of %d or more", minUsualBurst, c.Burst, minUsualBurst)
	case c.Action == LimitTruncate && p.block.Transport != PlainDNS:
		p.suspect(s.name(), "clients of %s:// get REFUSED in place of a truncated reply, which is for UDP; write refuse", p.block.Transport)
	}
}
