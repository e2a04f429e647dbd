package scenario

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// query is what a client asks, once or many times at once.
type query struct {
	name   string
	qtype  uint16
	class  uint16
	over   string
	set    []string // header flags
	edns   bool
	size   uint16
	do     bool
	nsid   bool
	from   netip.Addr // not valid: any
	times  int
	window int    // how many are asked at once; 0: all
	label  string // "" waits for the replies at once
	spread bool   // each asks for a name of its own: N before the name
	again  bool   // asked anew until the replies are as expected
}

const queryUsage = "NAME TYPE [over udp|tcp|tls|https] [do] [cd] [ad] [-rd] [edns SIZE] [nsid] [class C] [from IP] [times N [spread] [window M]] [again] [as LABEL]"

// clientPayload is the UDP size of clients with EDNS that give none.
const clientPayload = 1232

func (p *parser) query(w *tokens) {
	q := &query{over: "udp", class: dns.ClassINET, set: []string{"rd"}, times: 1, size: clientPayload}
	q.name = w.name("name")
	q.qtype = w.qtype()
	flag := func(f string) func() { return func() { q.set = append(q.set, f) } }
	w.options(map[string]func(){
		"over": func() { q.over = w.transport() },
		"do":   func() { q.edns, q.do = true, true },
		"cd":   flag("cd"),
		"ad":   flag("ad"),
		"aa":   flag("aa"),
		"-rd":  func() { q.set = slices.DeleteFunc(q.set, func(f string) bool { return f == "rd" }) },
		"edns": func() { q.edns, q.size = true, uint16(w.number("size", 0, 65535)) },
		"nsid": func() { q.edns, q.nsid = true, true },
		"class": func() {
			c, ok := dns.StringToClass[w.next("a class")]
			if q.class = c; !ok {
				w.fail("no such class")
			}
		},
		"from":   func() { q.from = w.addr() },
		"times":  func() { q.times = w.number("number", 1, maxTimes) },
		"spread": func() { q.spread = true },
		"window": func() { q.window = w.number("number", 1, maxTimes) },
		"again":  func() { q.again = true },
		"as":     func() { q.label = w.next("a label") },
	})
	p.add(q)
}

// message is the ith of the queries.
func (q *query) message(i int) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	name := q.name
	if q.spread {
		name = fmt.Sprintf("%d.%s", i+1, name)
	}
	m.Question = []dns.Question{{Name: name, Qtype: q.qtype, Qclass: q.class}}
	for _, f := range q.set {
		*flagBit(m, f) = true
	}
	if q.edns {
		m.SetEdns0(q.size, q.do)
		if q.nsid {
			opt := m.IsEdns0()
			opt.Option = append(opt.Option, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
		}
	}
	return m
}

// sentQuery are the queries of one step that are under way, and what comes back.
type sentQuery struct {
	query   *query
	done    sync.WaitGroup
	replies []reply
}

// reply is what came back to one query.
type reply struct {
	msg   *dns.Msg
	bytes int
	err   error // errSilence if nothing came
}

// startQuery starts the queries of q, as many at once as its window says.
func (st *run) startQuery(ctx context.Context, q *query) *sentQuery {
	a := &sentQuery{query: q, replies: make([]reply, q.times)}
	places := make(chan struct{}, cmp.Or(q.window, q.times))
	for i := range a.replies {
		a.done.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			m := q.message(i)
			a.replies[i] = st.ask(ctx, q, m)
			if observe := st.scenario.Observe; observe != nil {
				observe(m, a.replies[i].msg, "")
			}
		})
	}
	return a
}

func (q *query) run(ctx context.Context, st *run) error {
	a := st.startQuery(ctx, q)
	st.last = a
	if q.label != "" {
		st.queries[q.label] = a
		return nil
	}
	a.done.Wait()
	return nil
}
