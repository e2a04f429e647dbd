package apiobjects

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/apiserver"
)

// Change is a change that has been made and how DNS shows it.
type Change struct {
	// Of is the Service whose object has changed.
	Of Service
	// Name and Qtype are what to ask, Want what the answer has to have: an address,
	// or the port of an SRV record.
	Name  string
	Qtype uint16
	Want  string
	// Version is the resourceVersion that the change has given the object.
	Version uint64
	// Sent is when the API server was asked for it, Made when it had made it.
	Sent, Made time.Time
}

// Shown says whether the answer shows the change.
func (c Change) Shown(m *dns.Msg) bool {
	for _, rr := range m.Answer {
		switch r := rr.(type) {
		case *dns.A:
			if r.A.String() == c.Want {
				return true
			}
		case *dns.SRV:
			if strconv.Itoa(int(r.Port)) == c.Want {
				return true
			}
		}
	}
	return false
}

var byController = metav1.UpdateOptions{FieldManager: "kube-controller-manager"}

// ChangeSlices changes n random slices of the cluster, the same ones in every call so that calls
// can be compared. In each it replaces the address of one endpoint, as when a pod is replaced. rate
// is in changes per second; 0 means no limit. It blocks until all changes are made.
func (w *World) ChangeSlices(ctx context.Context, n, rate int) error {
	return w.FollowSlices(ctx, n, rate, func(Change) error { return nil })
}

// ChangeSlicesOf is ChangeSlices for the slices of these Services.
func (w *World) ChangeSlicesOf(ctx context.Context, n, rate int, services []Service) error {
	entries := make([]*entry, len(services))
	for i, s := range services {
		entries[i] = w.entries[s.Number]
	}
	return w.followSlices(ctx, n, rate, entries, func(Change) error { return nil })
}

// FollowSlices is ChangeSlices, and calls shown after each change. The slice does not change again until that returns; as many
// calls may run at once as there are changes in a second.
func (w *World) FollowSlices(ctx context.Context, n, rate int, shown func(Change) error) error {
	return w.followSlices(ctx, n, rate, w.entries, shown)
}

func (w *World) followSlices(ctx context.Context, n, rate int, entries []*entry, shown func(Change) error) error {
	start := time.Now()
	picked := rand.New(rand.NewPCG(3, 4)) // any seed will do, if it is always the same
	picks := make([]*entry, n)
	for i := range picks {
		picks[i] = entries[picked.IntN(len(entries))]
	}
	return apiserver.Parallel(ctx, n, max(writers, rate), func(ctx context.Context, i int) error {
		if rate > 0 {
			if err := until(ctx, start.Add(time.Duration(i)*time.Second/time.Duration(rate))); err != nil {
				return err
			}
		}
		e := picks[i]
		e.mu.Lock()
		defer e.mu.Unlock()
		c, err := w.move(ctx, e)
		if err != nil {
			return err
		}
		return shown(c)
	})
}

// SliceState returns the resourceVersion of the Service's slice, and how often it was changed.
func (w *World) SliceState(s Service) (version string, changes int) {
	e := w.entries[s.Number]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slice.ResourceVersion, e.changes
}

// until returns at the time, or earlier if the context ends.
func until(ctx context.Context, at time.Time) error {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// ChangeServices makes n changes that DNS answers show, rate per second, each to a random Service of
// wanted: a headless Service gets a new address for one endpoint, any other a new port. After each
// change it calls shown; the Service does not change again until shown returns. At most underWay
// calls run at once; further changes wait. It blocks until all calls have returned, and stops at the
// first error.
func (w *World) ChangeServices(ctx context.Context, n, rate, underWay int, wanted []Service, shown func(Change) error) error {
	start := time.Now()
	return apiserver.Parallel(ctx, n, underWay, func(ctx context.Context, i int) error {
		if err := until(ctx, start.Add(time.Duration(i)*time.Second/time.Duration(rate))); err != nil {
			return err
		}
		e := w.lockOne(wanted)
		defer e.mu.Unlock()
		c, err := w.visible(ctx, e)
		if err != nil {
			return err
		}
		return shown(c)
	})
}

// lockOne locks one of the wanted, which is not being changed if there is such a one.
func (w *World) lockOne(wanted []Service) *entry {
	for range wanted {
		if e := w.entries[wanted[rand.IntN(len(wanted))].Number]; e.mu.TryLock() {
			return e
		}
	}
	e := w.entries[wanted[0].Number]
	e.mu.Lock()
	return e
}

func (w *World) visible(ctx context.Context, e *entry) (Change, error) {
	if e.Headless {
		return w.move(ctx, e)
	}
	return w.renumber(ctx, e)
}

// move gives one of the slice's endpoints a new address.
func (w *World) move(ctx context.Context, e *entry) (Change, error) {
	i := rand.IntN(len(e.slice.Endpoints))
	c := Change{Of: e.Service, Name: e.Member(i), Qtype: dns.TypeA, Want: Address(int(w.fresh.Add(1)))}
	client := w.client.DiscoveryV1().EndpointSlices(e.Namespace)
	next := e.slice.DeepCopy()
	next.Endpoints[i].Addresses = []string{c.Want}
	c.Sent = time.Now()
	made, err := client.Update(ctx, next, byController)
	c.Made = time.Now()
	if err != nil {
		return c, fmt.Errorf("changing the slice %s/%s: %w", next.Namespace, next.Name, err)
	}
	made.ManagedFields = nil
	e.slice = made
	e.changes++
	c.Version, err = strconv.ParseUint(made.ResourceVersion, 10, 64)
	return c, err
}

// renumber gives the Service another port.
func (w *World) renumber(ctx context.Context, e *entry) (Change, error) {
	port := e.svc.Spec.Ports[0].Port%30000 + 1
	c := Change{Of: e.Service, Name: "_http._tcp." + e.Host(), Qtype: dns.TypeSRV, Want: strconv.Itoa(int(port))}
	client := w.client.CoreV1().Services(e.Namespace)
	next := e.svc.DeepCopy()
	next.Spec.Ports[0].Port = port
	c.Sent = time.Now()
	made, err := client.Update(ctx, next, byController)
	c.Made = time.Now()
	if err != nil {
		return c, fmt.Errorf("changing the Service %s/%s: %w", e.Namespace, e.Name, err)
	}
	made.ManagedFields = nil
	e.svc = made
	c.Version, err = strconv.ParseUint(made.ResourceVersion, 10, 64)
	return c, err
}
