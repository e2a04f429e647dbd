package config

import (
	"math"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
)

// Policy is how `forward` chooses among its upstreams.
type Policy uint8

// The policies; Random is what is used where none is given.
const (
	PolicyRandom Policy = iota
	PolicyRoundRobin
	PolicySequential
)

// Forward is `forward FROM TO… { … }`. A block may have several: the first whose
// From holds the qname, and whose Except doesn't, takes the query.
type Forward struct {
	From   wire.Name
	Except []wire.Name
	// To are the upstreams; resolv.conf files are read when the Config is made.
	// Files are those files, so that a reload can look at them again.
	To                   []Target
	Files                []string
	ForceTCP, PreferUDP  bool
	Policy               Policy
	MaxFails             int           // 2; 0: never down
	Expire               time.Duration // 10s: idle connections are closed
	ReadTimeout          time.Duration // 2s
	HealthInterval       time.Duration // 500ms
	HealthNoRec          bool
	HealthDomain         wire.Name // the root
	MaxConcurrent        int       // 0: no limit but the server's own
	FailfastAllUnhealthy bool
	// Next is the next forward of the same block, nil for the last.
	Next *Forward
}

const (
	// maxUpstreams is CoreDNS's bound. More hide from the policies which of them
	// works.
	maxUpstreams = 15
	// maxForwards bounds a block's chain, which is walked for each query; zones are
	// looked up faster.
	maxForwards  = 100
	forwardUsage = "forward FROM TO… (TO: an IP address with or without a port, or a resolv.conf file)"
)

// defaultForward is `forward .` without more.
func defaultForward() Forward {
	return Forward{
		From:           wire.Root,
		MaxFails:       2,
		Expire:         10 * time.Second,
		ReadTimeout:    2 * time.Second,
		HealthInterval: 500 * time.Millisecond,
		HealthDomain:   wire.Root,
	}
}

func (f *Forward) parse(p *parser, s statement) {
	*f = defaultForward()
	if p.count(s, 2, -1, forwardUsage) {
		f.from(p, s.args()[0])
		f.upstreams(p, s.args()[1:])
	}
	var maxAge time.Duration
	var maxAgeAt word
	table := f.options(p)
	// Connections are closed when they have been idle for expire, and none is kept
	// past its use for longer, so an older one than max_age ≥ expire is as good as any.
	table["max_age"] = option{usage: "max_age DURATION", least: 1, most: 1, set: func(args []word) {
		maxAgeAt = args[0]
		maxAge, _ = p.duration(args[0], 0, longest)
	}}
	p.body(s, table)
	if maxAge > 0 && maxAge < f.Expire {
		p.fault(maxAgeAt, "max_age %s is less than expire %s; make it at least that", maxAge, f.Expire)
	}
}

func (f *Forward) options(p *parser) options {
	table := options{
		"force_tcp":  flag("force_tcp", &f.ForceTCP),
		"prefer_udp": flag("prefer_udp", &f.PreferUDP),
		"policy": {usage: "policy random|round_robin|sequential", least: 1, most: 1, set: func(args []word) {
			f.Policy, _ = choice(p, args[0], "policy", map[string]Policy{
				"random": PolicyRandom, "round_robin": PolicyRoundRobin, "sequential": PolicySequential,
			})
		}},
		"except":                           {usage: "except ZONES…", least: 1, most: -1, set: func(args []word) { f.Except = append(f.Except, p.zones(args)...) }},
		"failfast_all_unhealthy_upstreams": flag("failfast_all_unhealthy_upstreams", &f.FailfastAllUnhealthy),
		"health_check":                     {usage: healthUsage, least: 1, most: 4, set: func(args []word) { f.health(p, args) }},

		"tls":            later("upstreams are asked over plain UDP and TCP; forward to a CoreDNS that has the tls"),
		"tls_servername": later("upstreams are asked over plain UDP and TCP; forward to a CoreDNS that has the tls"),
		"doh_method":     later("upstreams are asked over plain UDP and TCP"),
		"resolver":       later("write the upstreams' IP addresses"),
		"source_address": later("the system chooses the source address; take the line out"),
		"next":           later("the first answer counts; take the line out"),
		"next_on_nodata": later("the first answer counts; take the line out"),
		"failover":       later("the first answer counts; take the line out"),
	}
	f.limits(p, table)
	return table
}

// limits adds the options that are durations or numbers.
func (f *Forward) limits(p *parser, table options) {
	duration := func(name string, least time.Duration, dst *time.Duration) {
		table[name] = option{usage: name + " DURATION", least: 1, most: 1, set: func(args []word) {
			*dst, _ = p.duration(args[0], least, longest)
		}}
	}
	number := func(name string, dst *int) {
		table[name] = option{usage: name + " NUMBER", least: 1, most: 1, set: func(args []word) {
			n, _ := p.number(args[0], 0, math.MaxInt32)
			*dst = int(n)
		}}
	}
	duration("expire", 0, &f.Expire)
	duration("read_timeout", time.Nanosecond, &f.ReadTimeout)
	number("max_fails", &f.MaxFails)
	number("max_concurrent", &f.MaxConcurrent)
	// Idle connections are few and short-lived, and the whole deadline of a query
	// bounds its attempts, so the bounds that CoreDNS sets here are met anyway.
	var unused int
	number("max_idle_conns", &unused)
	number("max_connect_attempts", &unused)
}

const healthUsage = "health_check DURATION [no_rec] [domain NAME]"

// health reads the health_check option.
func (f *Forward) health(p *parser, args []word) {
	f.HealthInterval, _ = p.duration(args[0], 0, longest)
	for i := 1; i < len(args); i++ {
		switch w := args[i]; {
		case w.text == "no_rec":
			f.HealthNoRec = true
		case w.text == "domain" && i+1 < len(args):
			i++
			name, err := wire.ParseName(args[i].text)
			if err != nil {
				p.fault(args[i], "%v", err)
			}
			f.HealthDomain = name
		case w.text == "domain":
			p.fault(w, "a name is missing after %q; write: %s", w.text, healthUsage)
		default:
			p.unknown(w, "option", []string{"domain", "no_rec"})
		}
	}
}

// from reads FROM, which is one zone.
func (f *Forward) from(p *parser, w word) {
	zones := p.zones([]word{w})
	if len(zones) > 1 {
		p.fault(w, "%q is %d reverse zones; write a forward for each, or a CIDR that ends at a label", w.text, len(zones))
	}
	if len(zones) > 0 {
		f.From = zones[0]
	}
}

// join appends a further forward to the chain.
func (f *Forward) join(p *parser, s statement, next directive) {
	last, n := f, 2
	for ; last.Next != nil; n++ {
		last = last.Next
	}
	if n > maxForwards {
		p.fault(s.name(), "a block has more than %d forwards; write a server block for each zone", maxForwards)
		return
	}
	last.Next = next.(*Forward)
}

// add appends an upstream once.
func (f *Forward) add(to Target) {
	if !slices.Contains(f.To, to) {
		f.To = append(f.To, to)
	}
}
