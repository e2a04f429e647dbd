package app

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/server"
)

const (
	// progressInterval is the time between two looks at the readers and the queries that wait.
	progressInterval = time.Second
	// maxReaderStops is the number of looks in a row without progress of a reader that make /health fail. A reader
	// does not wait; it answers a batch in less than a millisecond.
	maxReaderStops = 5
	// maxWaiterStops is the same for queries that wait, which end after some seconds.
	maxWaiterStops = 60
)

// progress says whether the server's goroutines make progress. It is safe for concurrent use.
type progress struct {
	// readers and waiters count the looks in a row that have seen no progress.
	readers, waiters atomic.Int32
	// interval is the time between two looks; 0: progressInterval.
	interval time.Duration
}

// errStuck are the reasons for which /health fails. A restart is all that helps.
var (
	errReaderStuck  = errors.New("a reader of a UDP socket does not continue; queries are lost")
	errWaitersStuck = errors.New("no query that waits for an upstream or for the cluster view comes to an end")
)

// watch looks at s until ctx ends. It counts looks and not time, so that a process that was
// stopped does not look stuck.
func (p *progress) watch(ctx context.Context, s *server.Server) {
	watchdog := s.NewWatchdog()
	tick := time.NewTicker(cmp.Or(p.interval, progressInterval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		count(&p.readers, watchdog.Alive())
		count(&p.waiters, watchdog.WaitersFinish())
	}
}

func count(n *atomic.Int32, alive bool) {
	if alive {
		n.Store(0)
		return
	}
	n.Add(1)
}

// err returns why the agent has to be restarted, nil if it need not be.
func (p *progress) err() error {
	switch {
	case p.readers.Load() >= maxReaderStops:
		return errReaderStuck
	case p.waiters.Load() >= maxWaiterStops:
		return errWaitersStuck
	}
	return nil
}
