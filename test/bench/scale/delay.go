package scale

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/wiretap"
)

const (
	// changeRate is how many objects change in a second: what a rollout of the
	// largest clusters makes, and a third of what an API server on two cores can do.
	changeRate = 200
	// maxPending is how many changes may wait for their answer: with a tenth of a
	// second each there are twenty.
	maxPending = 64
	// pollInterval is the time between two questions about a change, and so the error of
	// its delay.
	pollInterval = 2 * time.Millisecond
	// unseenAfter is when a change counts as not seen.
	unseenAfter = 5 * time.Second
)

// measureDelays changes objects of the namespaces in use at a rate, and asks about each
// until the answer shows it.
func (h *setup) measureDelays(ctx context.Context, r *harness.RunningServer, _ *wiretap.Tap, st *clusterRun) error {
	n := int(h.delayTime().Seconds() * changeRate)
	unseen := unseenAfter
	if h.Short {
		unseen = h.Patience()
	}
	at := r.Any().Port
	start := time.Now()
	var mu sync.Mutex
	note := func(c apiobjects.Change, shown time.Time, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if !ok {
			st.unseen++
		}
		// A change that is not seen has taken all the time that it was given.
		st.delays = append(st.delays, max(0, shown.Sub(c.Made)))
		st.whole = append(st.whole, shown.Sub(c.Sent))
	}
	err := h.world.ChangeServices(ctx, n, changeRate, maxPending, h.usedServices, func(c apiobjects.Change) error {
		shown, ok, err := awaitChange(ctx, at, c, unseen)
		if err == nil {
			note(c, shown, ok)
		}
		return err
	})
	st.rate = float64(len(st.delays)) / time.Since(start).Seconds()
	slices.Sort(st.delays)
	slices.Sort(st.whole)
	return err
}

// delayTime is for how long objects change: some hundreds of changes a round, so
// that the p99 is not one of a handful.
func (h *setup) delayTime() time.Duration { return min(5*time.Second, 3*h.Length) }

// awaitChange asks about a change until the answer shows it, and returns when that was;
// false if it did not in the time unseen.
func awaitChange(ctx context.Context, at harness.Port, c apiobjects.Change, unseen time.Duration) (time.Time, bool, error) {
	conn, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", at.String()))
	if err != nil {
		return time.Time{}, false, err
	}
	defer conn.Close()
	client := dns.Client{Timeout: time.Second}
	for over := (&dns.Conn{Conn: conn}); ; {
		// What is lost on a busy machine is asked again.
		m, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(c.Name, c.Qtype), over)
		now := time.Now()
		if err == nil && c.Shown(m) {
			return now, true, nil
		}
		if now.Sub(c.Made) > unseen {
			return now, false, nil
		}
		if err := harness.Sleep(ctx, pollInterval); err != nil {
			return now, false, err
		}
	}
}
