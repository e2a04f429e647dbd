package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/rig/load"
)

// tally counts the outcomes of queries.
type tally struct {
	asked, lost, servfail, wrong int
	again                        int        // queries that were repeated
	faults                       []string   // the first of them
	unanswered                   []question // those that were lost over UDP
}

const maxFaults = 10

func (t *tally) add(o tally) {
	t.asked += o.asked
	t.lost += o.lost
	t.servfail += o.servfail
	t.wrong += o.wrong
	t.again += o.again
	t.faults = append(t.faults, o.faults...)
	t.faults = t.faults[:min(len(t.faults), maxFaults)]
	t.unanswered = append(t.unanswered, o.unanswered...)
}

// count adds the outcome of a query; nil is no reply.
func (t *tally) count(q question, m *dns.Msg) {
	t.asked++
	switch {
	case m == nil:
		t.lost++
	case q.answeredBy(m):
		return
	case m.Rcode == dns.RcodeServerFailure:
		t.servfail++
	default:
		t.wrong++
	}
	if len(t.faults) < maxFaults {
		t.faults = append(t.faults, q.describe(m))
	}
}

// answeredBy reports whether m is the expected answer.
func (q question) answeredBy(m *dns.Msg) bool {
	return m.Rcode == q.rcode && slices.Equal(addresses(m), q.addrs)
}

func (q question) describe(m *dns.Msg) string {
	if m == nil {
		return q.name + ": no reply"
	}
	return fmt.Sprintf("%s: %s %v, want %s %v", q.name, dns.RcodeToString[m.Rcode], addresses(m), dns.RcodeToString[q.rcode], q.addrs)
}

// addresses returns the addresses of the answer, sorted; nil for none.
func addresses(m *dns.Msg) (list []netip.Addr) {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			if ip, ok := netip.AddrFromSlice(a.A.To4()); ok {
				list = append(list, ip)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// sockets is the number of client sockets: the kernel spreads them over an agent's.
const sockets = 4

// maxQueries bounds what one socket sends in a phase, which takes some seconds.
const maxQueries = 60_000

// loadServers asks the servers in turn, at rate queries a second, one of the questions at random after the
// other, until stop is closed, and returns the outcomes. ask makes each client's questions
// from the client's number and the number of the query.
func loadServers(ctx context.Context, servers []netip.AddrPort, rate int, stop <-chan struct{}, ask func(client, i int) question) (tally, error) {
	var wg sync.WaitGroup
	tallies, errs := make([]tally, sockets), make([]error, sockets)
	for client := range sockets {
		wg.Go(func() {
			server := servers[client%len(servers)]
			tallies[client], errs[client] = loadOne(ctx, load.Schedule{Server: server, Count: maxQueries, Rate: max(1, rate/sockets), Stop: stop, RefusedIsLost: true},
				func(i int) question { return ask(client, i) })
		})
	}
	wg.Wait()
	var sum tally
	for _, t := range tallies {
		sum.add(t)
	}
	return sum, errors.Join(errs...)
}

func loadOne(ctx context.Context, s load.Schedule, ask func(i int) question) (tally, error) {
	var t tally // of replies, which one goroutine reads
	s.Name = func(i int) string { return ask(i).name }
	s.Right = func(i int, reply []byte) bool {
		m := new(dns.Msg)
		if err := m.Unpack(reply); err != nil {
			m.Rcode = dns.RcodeFormatError
		}
		q := ask(i)
		t.count(q, m)
		return q.answeredBy(m)
	}
	results, err := s.Run(ctx)
	for i, r := range results {
		if r.Lost {
			t.count(ask(i), nil)
			t.unanswered = append(t.unanswered, ask(i))
		}
	}
	return t, err
}
