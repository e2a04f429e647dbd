package config

import (
	"strconv"
	"strings"
	"time"
)

const (
	// defaultStale is CoreDNS's default. RFC 8767 recommends one to three days for shared
	// resolvers; the names that a node's pods use change with each deployment.
	defaultStale = time.Hour
	// maxStale is a year. Entries unused for so long are evicted earlier anyway.
	maxStale = 365 * 24 * time.Hour
	// staleClientTimeout is the client response timer of RFC 8767, 5: just below the two
	// seconds after which many clients retry.
	staleClientTimeout = 1800 * time.Millisecond
	// staleTTL is the TTL of expired answers (RFC 8767, 4).
	staleTTL = 30 * time.Second
	// staleRecheck is the failure recheck timer of RFC 8767, 5.
	staleRecheck = 30 * time.Second
	// maxClientTimeout is longer than any exchange.
	maxClientTimeout = time.Hour
	// maxRecheck is the longest a failure may be remembered (RFC 8767, 5).
	maxRecheck = 5 * time.Minute

	staleUsage    = "serve_stale [DURATION] [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]"
	prefetchUsage = "prefetch AMOUNT [DURATION [PERCENT%]]"

	// maxPrefetch fits the hit count of 16 bits.
	maxPrefetch = 60_000
	// maxGap is longer than the TTL of most names.
	maxGap = 24 * time.Hour
	// CoreDNS's defaults and limits.
	prefetchGap               = time.Minute
	prefetchPercent           = 10
	leastPercent, mostPercent = 10, 90
)

func (f *Prefetch) parse(p *parser, args []token) {
	n, _ := p.number(args[0], 0, maxPrefetch)
	*f = Prefetch{Amount: int(n), Within: prefetchGap, Percent: prefetchPercent}
	if len(args) > 1 {
		f.Within, _ = p.duration(args[1], 0, maxGap)
	}
	if len(args) > 2 {
		f.percent(p, args[2])
	}
}

func (f *Prefetch) percent(p *parser, w token) {
	digits, ok := strings.CutSuffix(w.text, "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < leastPercent || n > mostPercent {
		p.errorf(w, "%q is not a percentage such as 10%%; allowed: %d%% to %d%%", w.text, leastPercent, mostPercent)
		return
	}
	f.Percent = n
}

// options returns the options for expired answers. s is the directive.
func (st *Stale) options(p *parser, s statement) options {
	serve := opt(staleUsage, func(args []token) { st.parse(p, args) })
	serve.most = 5 // of verify
	return options{serve, opt("serve_stale_policy prefer_positive", func(args []token) {
		st.PreferPositive, _ = choice(p, lowerToken(args[0]), "policy", map[string]bool{"prefer_positive": true})
		if _, ok := s.last("serve_stale"); !ok {
			p.errorf(args[0], "there is no serve_stale that it could be the policy of; add serve_stale, or take the line out")
		}
	})}
}

func (st *Stale) parse(p *parser, args []token) {
	*st = Stale{
		For: defaultStale, ClientTimeout: staleClientTimeout, TTL: staleTTL, Recheck: staleRecheck,
		PreferPositive: st.PreferPositive,
	}
	if len(args) > 0 {
		st.For, _ = p.duration(args[0], 0, maxStale)
	}
	if len(args) < 2 {
		return
	}
	mode, ok := choice(p, lowerToken(args[1]), "mode", map[string]StaleMode{"immediate": StaleImmediate, "verify": StaleVerify})
	if !ok {
		return
	}
	st.Mode, args = mode, args[2:]
	if mode == StaleVerify { // as in CoreDNS: each time, without a limit
		st.ClientTimeout, st.Recheck = 0, 0
		if len(args) > 0 {
			st.ClientTimeout, _ = p.duration(args[0], 0, maxClientTimeout)
			args = args[1:]
		}
	}
	st.rest(p, args)
}

// lowerToken returns w in lower case, for words that CoreDNS accepts in any case.
func lowerToken(w token) token {
	w.text = strings.ToLower(w.text)
	return w
}

// rest reads the arguments that both modes have last.
func (st *Stale) rest(p *parser, args []token) {
	if len(args) > 0 {
		ttl, ok := p.duration(args[0], 0, maxTTL*time.Second)
		if ok && ttl%time.Second != 0 {
			p.errorf(args[0], "%q is no TTL: it has parts of a second", args[0].text)
		}
		st.TTL = ttl
	}
	if len(args) > 1 {
		st.Recheck, _ = p.duration(args[1], 0, maxRecheck)
	}
	if len(args) > 2 {
		p.errorf(args[2], "%q is one argument too many; write: %s", args[2].text, staleUsage)
	}
}
