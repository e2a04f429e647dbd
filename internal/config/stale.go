package config

import (
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

const (
	// defaultStale is CoreDNS's. RFC 8767 has one to three days in mind for resolvers
	// that many share; what a node's pods ask for changes with each deployment.
	defaultStale = time.Hour
	// maxStale is a year. What has not been asked for in that time is pushed out long
	// before; a larger number is a slip.
	maxStale = 365 * 24 * time.Hour
	// staleClientTimeout is the client response timer of RFC 8767, 5: just under the two
	// seconds after which many clients ask again. Half of it would give expired answers
	// where a name server far away had only lost one packet; with twice as much, the
	// client has asked again.
	staleClientTimeout = 1800 * time.Millisecond
	// staleTTL is that of expired answers (RFC 8767, 4). With half of it clients ask twice
	// as often while upstreams are down; with twice as much they stay with what is old for
	// a minute longer than need be.
	staleTTL = 30 * time.Second
	// staleRecheck is the failure recheck timer of RFC 8767, 5. Half of it would double
	// what a server gets that is down; twice as much is a minute in which it may be up
	// again.
	staleRecheck = 30 * time.Second
	// maxClientTimeout is far more than any ask takes, so that a larger number means the same.
	maxClientTimeout = time.Hour
	// maxRecheck is the longest a failure may be remembered (RFC 8767, 5).
	maxRecheck = 5 * time.Minute

	staleUsage    = "serve_stale [DURATION] [immediate [TTL [RECHECK]] | verify [TIMEOUT [TTL [RECHECK]]]]"
	policyUsage   = "serve_stale_policy prefer_positive"
	prefetchUsage = "prefetch AMOUNT [DURATION [PERCENT%]]"

	// maxPrefetch is more hits than tell anything: a name asked for so often is asked for
	// all the time. The count has 16 bits.
	maxPrefetch = 60_000
	// maxGap is far more than any TTL a name asked for so rarely should have.
	maxGap = 24 * time.Hour
	// CoreDNS's defaults, and what it takes for the percentage.
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

// options adds the options that are about expired answers; s is the directive.
func (st *Stale) options(p *parser, s statement, table options) {
	table["serve_stale"] = option{usage: staleUsage, most: 5, set: func(args []token) { st.parse(p, args) }}
	table["serve_stale_policy"] = option{usage: policyUsage, least: 1, most: 1, set: func(args []token) {
		st.PreferPositive, _ = choice(p, lowerToken(args[0]), "policy", map[string]bool{"prefer_positive": true})
		for _, line := range s.body {
			if line.name().text == "serve_stale" {
				return
			}
		}
		p.errorf(args[0], "there is no serve_stale that it could be the policy of; add serve_stale, or take the line out")
	}}
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
	if mode == StaleVerify { // as CoreDNS has it: every time, for as long as it takes
		st.ClientTimeout, st.Recheck = 0, 0
		if len(args) > 0 {
			st.ClientTimeout, _ = p.duration(args[0], 0, maxClientTimeout)
			args = args[1:]
		}
	}
	st.rest(p, args)
}

// lowerToken is w in lower case, for words that CoreDNS takes in any.
func lowerToken(w token) token {
	w.text = strings.ToLower(w.text)
	return w
}

// rest reads what both modes have in the end.
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

// Boundaries are the names at which another source begins than above them: a denial of a
// name above one of them says nothing about what is below.
func (b *Block) Boundaries() []wire.Name {
	bounds := append([]wire.Name(nil), b.Zones...)
	for f := b.Forward; f != nil; f = f.Next {
		bounds = append(append(bounds, f.From), f.Except...)
	}
	if b.Kubernetes != nil {
		bounds = append(append(bounds, b.Kubernetes.Zones...), b.Kubernetes.Multicluster...)
	}
	if b.K8sExternal != nil {
		bounds = append(bounds, b.K8sExternal.Zones...)
	}
	return bounds
}
