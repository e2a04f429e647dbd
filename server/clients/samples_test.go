package clients_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/server/clients"
)

// TestSamplesExact: while readers count below the limit of samples, and a report looks, each query is counted once,
// with long names as with short ones.
func TestSamplesExact(t *testing.T) {
	const readers, queries = 4, 900
	table := clients.New(clients.Options{Stripes: 2, Clock: new(fakeClock).read})
	names := []string{".", "a.test.", strings.Repeat(strings.Repeat("x", 61)+".", 4)}
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			for i := range queries / readers {
				name, err := wire.ParseName(names[i%len(names)])
				if err != nil {
					t.Error(err)
					return
				}
				table.Count(r, addr(r), clients.Query{Name: []byte(name), Rcode: wire.ServFail})
				if i%50 == 0 {
					table.Names(clients.TopNames, clients.Minute, 1)
				}
			}
		})
	}
	wg.Wait()
	for _, topic := range []clients.Topic{clients.TopNames, clients.TopClientNames, clients.TopFailing} {
		r := table.Names(topic, clients.Minute, 100)
		var sum uint64
		for _, n := range r.Names {
			sum += n.Count
		}
		if r.Total != queries || sum != queries {
			t.Errorf("topic %d: %d queries, of the names together %d, want %d", topic, r.Total, sum, queries)
		}
	}
}

// TestSamplesInWindow: a query belongs to the window of its own time, also if another reader's queries are the first
// ones of the next window, and no report has looked in between.
func TestSamplesInWindow(t *testing.T) {
	table := newNameTable()
	table.clock.advance(time.Second)
	table.ask(t, 0, "old.test.", clients.Query{}, 3)
	table.clock.advance(10 * time.Second)
	table.ask(t, 1, "new.test.", clients.Query{}, 200)
	table.clock.advance(3 * time.Second)
	r := table.Names(clients.TopNames, clients.TenSeconds, 10)
	if len(r.Names) != 1 || r.Names[0].Name != "new.test." || r.Total != 200 {
		t.Errorf("%d queries in %v: %v", r.Total, r.Covered, r.Names)
	}
	if r := table.Names(clients.TopNames, clients.Minute, 10); r.Total != 203 {
		t.Errorf("%d queries in %v, want 203", r.Total, r.Covered)
	}
}
