package app

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/baseline"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// saveInterval is the time between two saves of the cache. A crash loses the answers of
	// that time.
	saveInterval = 5 * time.Minute
	// finalSaveTimeout bounds the save at a stop, which has five seconds in all.
	finalSaveTimeout = time.Second
	// handoverWait is how long a stop waits for a handover in progress: the 30 seconds that a
	// pod has, less the time for the stop itself.
	handoverWait = 20 * time.Second
	// reloadRetry is the interval at which a deferred reload is tried again.
	reloadRetry = time.Second
)

// handoverSource is the agent as a [handover.Source]. The [handover.Server] calls its methods
// on a goroutine of its own; they run on the agent's main goroutine.
type handoverSource struct{ *agent }

// callMain runs f on the goroutine of [agent.run] and waits for it. It returns false if the
// agent is shutting down; f does not run then.
func (s *handoverState) callMain(f func(context.Context)) bool {
	done := make(chan struct{})
	select {
	case s.mainCalls <- func(ctx context.Context) { f(ctx); close(done) }:
		<-done
		return true
	case <-s.mainClosed:
		return false
	}
}

// Save writes the views, from which the successor's go on.
func (e handoverSource) Save() {
	if g := e.current.Load(); g != nil {
		g.saveViews()
	}
}

// Sockets returns duplicates of all listening sockets but the one for handovers.
func (e handoverSource) Sockets() (list []handover.Socket, err error) {
	if e.stopping.Load() || !e.callMain(func(context.Context) { list, err = e.sockets() }) {
		return nil, handover.ErrBusy
	}
	return list, err
}

func (a *agent) sockets() (list []handover.Socket, err error) {
	if host := a.handoverServer.Load(); host != nil {
		a.socketsShared = host.Stats().Failed + 1
	}
	handles, err := a.server.SocketFiles()
	for _, h := range handles {
		role := roleTCP
		if h.UDP {
			role = roleUDP
		}
		list = append(list, handover.Socket{Role: role, Addr: h.Addr.String(), File: h.File})
	}
	var web map[string]*os.File
	if err == nil {
		web, err = a.http.ListenerFiles()
	}
	for addr, file := range web {
		list = append(list, handover.Socket{Role: roleHTTP, Addr: addr, File: file})
	}
	if err != nil {
		for _, s := range list {
			_ = s.File.Close()
		}
		return nil, err
	}
	return list, nil
}

// WriteCache writes the answers in the caches.
func (e handoverSource) WriteCache(ctx context.Context, w io.Writer) error {
	n, err := cache.Write(ctx, w, namedCaches(e.current.Load()))
	e.log.Info("cache handed over", "answers", n, "complete", err == nil)
	return err
}

// Suspend leaves everything to the successor, and returns when no query is in flight.
func (e handoverSource) Suspend(ctx context.Context, pass func(handover.Conn) error) error {
	e.builder.budgets.SetShare(upstream.HalfBudget)
	if !e.callMain(e.suspend) {
		e.builder.budgets.SetShare(upstream.WholeBudget)
		return handover.ErrBusy
	}
	defer e.builder.budgets.SetShare(upstream.NoBudget)
	return e.server.Suspend(ctx, func(at netip.AddrPort, conn *net.TCPConn, read []byte) error {
		file, err := conn.File()
		if err != nil {
			return err
		}
		defer file.Close()
		return pass(handover.Conn{Addr: at.String(), Read: read, File: file})
	})
}

// Resume serves again, after the successor has died or given back.
func (e handoverSource) Resume() { e.callMain(e.resume) }

// ResumeReading reads again, beside the successor.
func (e handoverSource) ResumeReading() { e.callMain(e.resumeReading) }

// Statistics returns the statistics of the last minutes.
func (e handoverSource) Statistics() []byte { return baseline.Encode(e.recentStatistics()) }

// ReadCache adds a successor's answers to the caches.
func (e handoverSource) ReadCache(ctx context.Context, r io.Reader) error {
	n, err := cache.ReadReturned(ctx, r, namedCaches(e.current.Load()))
	e.log.Info("answers were given back", "answers", n, "complete", err == nil)
	return err
}

// Adopt serves a client's connection that a successor gives back.
func (e handoverSource) Adopt(c handover.Conn) { e.adoptConn(c) }

// Release frees the memory of the caches. The views stay, because Resume may follow.
func (e handoverSource) Release() {
	n := e.builder.store.Flush([]byte{0}, true)
	debug.FreeOSMemory()
	e.log.Info("the successor keeps the node; memory released", "answers", n)
}

// suspend stops the tasks of the active agent, and stops accepting HTTP connections.
func (a *agent) suspend(ctx context.Context) {
	a.yielded.Store(true)
	a.inactive = true
	a.keep()
	a.log.Info("another agent takes over")
	a.stopActive()
	if a.net != nil {
		a.net.Yield(ctx)
	}
	a.http.Suspend()
	for _, t := range a.current.Load().taps {
		t.Suspend()
	}
}

// resume reverts suspend.
func (a *agent) resume(ctx context.Context) {
	if !a.inactive {
		return
	}
	a.resumeReading(ctx)
	a.builder.budgets.SetShare(upstream.WholeBudget)
	a.inactive = false
	err := a.setUpInterface(ctx)
	if err == nil {
		err = a.setUpRules(ctx)
	}
	if err == nil {
		err = a.startActive(ctx)
	}
	if err != nil && ctx.Err() == nil {
		a.fail(err)
	}
}

// resumeReading reverts the part of suspend that concerns clients.
func (a *agent) resumeReading(context.Context) {
	if !a.yielded.Load() {
		return
	}
	a.log.Warn("the other agent has ended or gives back; serving again")
	a.socketsShared = 0
	a.builder.budgets.SetShare(upstream.HalfBudget)
	a.server.Resume()
	a.http.Resume()
	for _, t := range a.current.Load().taps {
		t.Resume()
	}
	a.yielded.Store(false)
	a.times.startedServing()
	a.times.recordHandover(eventResumed)
	a.recent.add(time.Now())
	a.warnOfHandovers()
}

// handoverInProgress reports whether a successor has the sockets, or has taken over, or whether
// this agent compares itself with its predecessor.
func (a *agent) handoverInProgress() bool {
	return a.comparison != nil || a.yielded.Load() || a.socketsShared != 0 && a.handoverServer.Load().Stats().Failed < a.socketsShared
}

// handingOver reports whether a successor has connected and has not failed. It is safe for concurrent use.
func (a *agent) handingOver() bool {
	host := a.handoverServer.Load()
	return host != nil && host.HandingOver()
}

// handedOver returns a channel that is closed when a successor has everything and this agent
// may end. In a pod it is nil, because the kubelet would restart an agent that ends.
func (a *agent) handedOver() <-chan struct{} {
	host := a.handoverServer.Load()
	if host == nil || inPod() {
		return nil
	}
	return host.Done()
}

// waitHandover waits for the end of a handover in progress, at most for handoverWait. It
// reports whether the successor serves. If not, no successor can take over any more.
func (a *agent) waitHandover(ctx context.Context) bool {
	host := a.handoverServer.Load()
	if host == nil {
		return false
	}
	if a.handoverInProgress() && !a.yielded.Load() {
		a.log.Info("stop requested during a handover; waiting for its end", "limit", handoverWait)
	}
	ended := make(chan bool, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), handoverWait)
		defer cancel()
		ended <- host.Stop(ctx)
	}()
	for {
		select {
		case f := <-a.mainCalls:
			f(ctx)
		case handedOver := <-ended:
			return handedOver
		}
	}
}

// inPod reports whether this process runs in a pod, where the kubelet restarts it.
func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// save writes the cache to its file.
func (a *agent) save(ctx context.Context) {
	path := a.opts.CachePath()
	g := a.current.Load()
	if path == "" || g == nil {
		return
	}
	n, err := saveCache(ctx, path, namedCaches(g))
	if err != nil {
		a.log.Warn("saving the cache failed", "err", err)
		return
	}
	a.log.Debug("cache saved", "answers", n)
}

// saveLoop saves the cache every saveInterval until ctx ends.
func (a *agent) saveLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(saveInterval - rand.N(saveInterval/10)): // so that the agents of a cluster do not all write at once
		}
		a.save(ctx)
	}
}
