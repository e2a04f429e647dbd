package app

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/portholder"
)

const (
	// portCheck is the interval of checks for other processes at the agent's ports.
	portCheck = 30 * time.Second
	// portCheckAge is the age up to which a check counts as the present, for /status.
	portCheckAge = time.Second
	// portRemedy is what the operator can do.
	portRemedy = "end one of the two, such as a second DaemonSet or a process that was left behind; agents with the same --handover-dir take over from each other instead"
)

// sharedPorts knows which other processes listen at the agent's ports, of which each gets a part of the queries. It is
// safe for concurrent use.
type sharedPorts struct {
	finder portholder.Finder

	mu      sync.Mutex
	checked time.Time
	found   []portholder.Holder
}

// check returns the other processes at the ports. A check that is not older than age counts.
func (x *sharedPorts) check(ports []portholder.Port, age time.Duration) []portholder.Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.checked.IsZero() || time.Since(x.checked) > age {
		x.found, _ = x.finder.Find(ports) // without /proc nothing is found
		x.checked = time.Now()
	}
	return x.found
}

// otherHolders returns the other processes at the ports of the current configuration, none while two agents share
// them for a handover.
func (a *agent) otherHolders(age time.Duration) []portholder.Holder {
	g := a.current.Load()
	if g == nil || a.comparing.Load() || a.yielded.Load() || a.handingOver() {
		return nil
	}
	return a.ports.check(ports(g, a.handlers(g)), age)
}

// ports returns where the agent listens with g.
func ports(g *generation, handlers map[string]map[string]http.Handler) (list []portholder.Port) {
	for at, l := range g.listeners {
		if at.QUIC || l.Transport == config.PlainDNS {
			list = append(list, portholder.Port{UDP: true, AddrPort: at.AddrPort})
		}
		if !at.QUIC {
			list = append(list, portholder.Port{AddrPort: at.AddrPort})
		}
	}
	for addr := range handlers {
		if at, err := net.ResolveTCPAddr("tcp", addr); err == nil {
			ip, _ := netip.AddrFromSlice(at.IP)
			if !ip.IsValid() {
				ip = netip.IPv6Unspecified()
			}
			list = append(list, portholder.Port{AddrPort: netip.AddrPortFrom(ip.Unmap(), uint16(at.Port))})
		}
	}
	slices.SortFunc(list, func(a, b portholder.Port) int { return strings.Compare(a.String(), b.String()) })
	return list
}

// describeHolder returns the process and its ports for a message.
func describeHolder(h *portholder.Holder) string {
	list := make([]string, len(h.Ports))
	for i, p := range h.Ports {
		list[i] = p.String()
	}
	return h.String() + " at " + strings.Join(list, ", ")
}

// warnOfHolders logs the other processes at g's ports before the agent listens there. They don't keep it from serving: one
// that hangs has to be replaced, too.
func (a *agent) warnOfHolders(g *generation) {
	for _, h := range a.ports.check(ports(g, a.handlers(g)), 0) {
		a.logHolder(&h)
	}
}

func (a *agent) logHolder(h *portholder.Holder) {
	a.log.Error("another process listens at the agent's addresses; each of the two gets a part of the queries", "process", h.String(), "at", h.Ports, "fix", portRemedy)
}

// watchPorts logs the other processes at the agent's ports: when they come, once a minute, and when they have gone.
func (a *agent) watchPorts(ctx context.Context) {
	tick := time.NewTicker(portCheck)
	defer tick.Stop()
	var told time.Time
	for {
		// The first check comes after an interval: sockets of a predecessor that has died are visible for a moment.
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		a.server.ForgetOthers()
		list := a.otherHolders(0)
		switch {
		case len(list) > 0 && time.Since(told) >= time.Minute:
			told = time.Now()
			for _, h := range list {
				a.logHolder(&h)
			}
		case len(list) == 0 && !told.IsZero():
			told = time.Time{}
			a.log.Info("no other process listens at the agent's addresses any more")
		}
	}
}
