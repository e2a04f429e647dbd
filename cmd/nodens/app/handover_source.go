package app

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/handover"
)

const (
	// saveInterval is between two saves of the cache: what a node has asked for in that time
	// is all that a crash costs. Half of it writes twice as much to the node's disk for
	// nothing that would be noticed.
	saveInterval = 5 * time.Minute
	// finalSaveTimeout is how long the stop waits for the last save, which writes some
	// megabytes: a disk that takes longer is not worth the end of the whole stop in five
	// seconds.
	finalSaveTimeout = time.Second
	// handoverWait is how long the end waits for a hand-over under way: as long as a pod
	// has to stop, 30 seconds, less what the stop itself takes.
	handoverWait = 20 * time.Second
	// reloadRetry is when a reload that was put off is looked at again: soon after any
	// hand-over that comes to nothing.
	reloadRetry = time.Second
)

// handoverSource is what a running agent hands over (see [handover.Source]). Its methods are
// called on a goroutine of the host's.
type handoverSource struct{ *agent }

// callMain has run's goroutine do f, which gets the context that ends with the agent. False:
// it does nothing any more.
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

// Sockets gives duplicates of everything that the agent listens with, its own socket
// for hand-overs aside.
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
		web, err = a.http.listenerFiles()
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

// WriteCache writes what the caches hold now.
func (e handoverSource) WriteCache(ctx context.Context, w io.Writer) error {
	n, err := cache.Write(ctx, w, e.current.Load().caches())
	e.log.Info("handing over the cache", "answers", n, "complete", err == nil)
	return err
}

// Suspend leaves everything to the next agent, and returns when no query is under way.
func (e handoverSource) Suspend(ctx context.Context, pass func(handover.Conn) error) error {
	if !e.callMain(e.suspend) {
		return handover.ErrBusy
	}
	return e.server.Suspend(ctx, func(at netip.AddrPort, conn *net.TCPConn, read []byte) error {
		file, err := conn.File()
		if err != nil {
			return err
		}
		defer file.Close()
		return pass(handover.Conn{Addr: at.String(), Read: read, File: file})
	})
}

// Resume takes everything up again.
func (e handoverSource) Resume() { e.callMain(e.resume) }

// suspend ends what only one agent on a node does, and stops accepting over HTTP.
func (a *agent) suspend(context.Context) {
	a.yielded.Store(true)
	a.log.Info("another agent takes over")
	a.stopActive()
	a.http.suspend()
}

// resume is stepBack's reverse.
func (a *agent) resume(ctx context.Context) {
	if !a.yielded.Load() {
		return
	}
	a.log.Warn("the agent that took over has ended: going on in its place")
	a.socketsShared = 0
	a.server.Resume()
	a.http.resume()
	a.yielded.Store(false)
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

// handoverInProgress reports whether another agent is about to take over, or has.
func (a *agent) handoverInProgress() bool {
	return a.yielded.Load() || a.socketsShared != 0 && a.handoverServer.Load().Stats().Failed < a.socketsShared
}

// handedOver is closed when another agent has everything and this one may end by itself,
// which in a pod it never may.
func (a *agent) handedOver() <-chan struct{} {
	host := a.handoverServer.Load()
	if host == nil || inPod() {
		return nil
	}
	return host.Done()
}

// waitHandover waits, but not for ever, until a hand-over under way has ended one way or the
// other, and reports whether another agent serves now. If not, nobody can take over any
// more.
func (a *agent) waitHandover(ctx context.Context) bool {
	host := a.handoverServer.Load()
	if host == nil {
		return false
	}
	if a.handoverInProgress() && !a.yielded.Load() {
		a.log.Info("asked to stop in the middle of a hand-over: waiting for its end", "limit", handoverWait)
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
		case yielded := <-ended:
			return yielded
		}
	}
}

// inPod reports whether a kubelet starts this process anew when it ends.
func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// save writes the cache to its file.
func (a *agent) save(ctx context.Context) {
	path := a.opts.CachePath()
	g := a.current.Load()
	if path == "" || g == nil {
		return
	}
	n, err := saveCache(ctx, path, g.caches())
	if err != nil {
		a.log.Warn("the cache could not be saved", "err", err)
		return
	}
	a.log.Debug("the cache was saved", "answers", n)
}

// saveLoop saves the cache now and then until ctx ends.
func (a *agent) saveLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(saveInterval - rand.N(saveInterval/10)): // the agents of a cluster not all at once
		}
		a.save(ctx)
	}
}
