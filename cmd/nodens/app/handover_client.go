package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/handover"
	"github.com/nodens-dns/nodens/server"
)

const (
	// connectTimeout is how long a start waits for the agent that runs: until it has handed
	// over to somebody else, or has ended, which takes it five seconds. With half of it
	// that would be a close thing; who waits for twice as long has no DNS meanwhile, if
	// the other one hangs.
	connectTimeout = 10 * time.Second
	// syncTimeout is how long a successor waits for its view of the cluster: the other one
	// serves meanwhile, so there is no hurry, and a view that is not whole would be a
	// step back. It ends before the other one's patience does, a minute.
	syncTimeout = 40 * time.Second
)

// The roles of sockets between agents of all versions (see [handover.Socket]).
const (
	roleUDP  = "udp"
	roleTCP  = "tcp"
	roleHTTP = "http"
)

// handoverState is an agent's part in hand-overs: what it has from the one before it, and
// how it gives all of it to the next. But for what is atomic run's goroutine has it to
// itself.
type handoverState struct {
	// predecessor is the agent that this one takes over from, nil for none, or when it has gone.
	predecessor *handover.Predecessor
	// ownsNode: link, rules, and the files are this agent's, to keep and to take down.
	ownsNode bool
	// handoverServer waits for the next agent, nil for nobody; stopHost ends that.
	handoverServer atomic.Pointer[handover.Server]
	stopServer     context.CancelFunc
	// yielded: the next one serves.
	yielded atomic.Bool
	// socketsShared is how many hand-overs had failed when the sockets were last given to
	// somebody, and one more; 0 for never.
	socketsShared uint64
	// reloadPending: a reload was put off. asked: by a signal.
	reloadPending, reloadRequested bool
	// mainCalls are what the next one asks for, for run's goroutine to do; after deaf is
	// closed nobody does.
	mainCalls  chan func(context.Context)
	mainClosed chan struct{}

	restored                   atomic.Uint64 // answers that were found at the start
	takeovers, takeoversFailed atomic.Uint64 // hand-overs from the one before
}

// connectPredecessor finds the agent that runs on this node. Without one the start is a cold one. An
// error leaves everything to the other one.
func (a *agent) connectPredecessor(ctx context.Context) error {
	a.ownsNode = true
	if a.opts.HandoverDir == "" {
		return nil
	}
	if err := os.MkdirAll(a.opts.HandoverDir, 0o700); err != nil && !isDiskError(err) {
		return fmt.Errorf("-handover-dir: %w; name a folder that can be made, or is there", err)
	}
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	from, err := handover.Connect(limited, a.opts.HandoverDir, a.handoverConfig())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, handover.ErrFolder):
		return err
	case errors.Is(err, handover.ErrBusy):
		return fmt.Errorf("-handover-dir %s: %w; try again when it is done", a.opts.HandoverDir, err)
	case err != nil:
		// One that hangs, or speaks another language, must not keep this one from serving.
		a.log.Warn("there is no hand-over: starting beside whoever runs", "dir", a.opts.HandoverDir, "err", err)
	case from != nil:
		a.predecessor, a.ownsNode = from, false
	}
	return nil
}

// receiveSockets takes over the sockets of the other agent, which goes on reading from them. It
// comes as late as can be: whoever has a socket and does not read yet keeps the node's
// queries waiting if the other one dies.
func (a *agent) receiveSockets(ctx context.Context) error {
	sockets, err := a.predecessor.Sockets(ctx)
	if err != nil {
		return a.predecessorLost("getting the sockets", err)
	}
	if !otherNetns(sockets) {
		a.setInherited(sockets)
		return nil
	}
	a.log.Warn("the agent that runs is in another network, such as another pod's: starting beside it", "dir", a.opts.HandoverDir)
	for _, s := range sockets {
		_ = s.File.Close()
	}
	_ = a.predecessor.Close()
	a.predecessor, a.ownsNode = nil, true
	return nil
}

// otherNetns reports whether sockets are those of another network namespace, where nobody
// asks this agent. Kernels before 5.14 don't tell.
func otherNetns(sockets []handover.Socket) bool {
	if len(sockets) == 0 {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	here, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	raw, bad := sockets[0].File.SyscallConn() // not Fd, which would make the socket wait
	if err != nil || bad != nil {
		return false
	}
	there := here
	_ = raw.Control(func(fd uintptr) {
		if cookie, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
			there = cookie
		}
	})
	return there != here
}

// predecessorLost says what becomes of a hand-over that has failed: nil, and a cold start with
// what has been got, if the other agent has gone, else an error.
func (a *agent) predecessorLost(doing string, err error) error {
	a.takeoversFailed.Add(1)
	if !errors.Is(err, handover.ErrGone) {
		return fmt.Errorf("taking over from the agent that runs, %s: %w; it goes on serving; without -handover-dir this one starts beside it", doing, err)
	}
	a.log.Warn("the agent that ran has ended in the middle of the hand-over: going on alone", "step", doing, "err", err)
	_ = a.predecessor.Close()
	a.predecessor, a.ownsNode = nil, true
	return nil
}

// setInherited gives the sockets to the parts that listen. What none of them knows is closed.
func (a *agent) setInherited(sockets []handover.Socket) {
	var dns []server.SocketFile
	web := make(map[string]*os.File)
	for _, s := range sockets {
		at, err := netip.ParseAddrPort(s.Addr)
		switch {
		case s.Role == roleHTTP && web[s.Addr] == nil:
			web[s.Addr] = s.File
		case err == nil && (s.Role == roleUDP || s.Role == roleTCP):
			dns = append(dns, server.SocketFile{Addr: at, UDP: s.Role == roleUDP, File: s.File})
		default:
			a.log.Debug("a socket that nobody wants was handed over", "role", s.Role, "address", s.Addr)
			_ = s.File.Close()
		}
	}
	a.server.SetInherited(dns)
	a.http.setInherited(web)
}

// restoreCache fills g's caches with what the other agent holds, or else with what was saved.
// What can't be read is left: it is worth a line in the log, not more. An error leaves
// everything to the other agent.
func (a *agent) restoreCache(ctx context.Context, g *generation) error {
	caches := g.caches()
	if a.predecessor != nil {
		n, err := a.receiveCache(ctx, caches)
		switch {
		case err == nil:
			a.log.Info("answers were handed over", "answers", n)
			a.restored.Store(uint64(n))
			return nil
		case errors.Is(err, cache.ErrStream):
			a.log.Warn("not all answers could be handed over", "answers", n, "err", err)
			a.restored.Store(uint64(n))
			return nil
		}
		if err := a.predecessorLost("getting the cache", err); err != nil {
			return err
		}
	}
	path := a.opts.CachePath()
	if path == "" {
		return nil
	}
	n, err := loadCache(ctx, path, caches)
	if err != nil {
		a.log.Warn("starting without the saved answers", "err", err)
	} else if n > 0 {
		a.log.Info("saved answers were found", "answers", n)
	}
	a.restored.Store(uint64(n))
	return nil
}

// receiveCache reads the stream of answers.
func (a *agent) receiveCache(ctx context.Context, caches map[string]*cache.Cache) (int, error) {
	stream, err := a.predecessor.Cache(ctx)
	if err != nil {
		return 0, err
	}
	n, err := cache.Read(ctx, stream, caches)
	return n, errors.Join(err, stream.Close())
}

// commitHandover ends a hand-over: from now on this agent is the one.
func (a *agent) commitHandover(ctx context.Context) error {
	if a.predecessor == nil {
		return nil
	}
	if err := a.predecessor.Commit(ctx, a.adoptConn); err != nil {
		return a.predecessorLost("taking its place", err)
	}
	a.ownsNode = true
	a.takeovers.Add(1)
	a.log.Info("took over")
	return nil
}

// adoptConn serves a connection that the other agent has passed on.
func (a *agent) adoptConn(c handover.Conn) {
	conn, err := net.FileConn(c.File) // a duplicate
	_ = c.File.Close()
	if err != nil {
		a.log.Debug("a connection could not be passed on", "err", err)
		return
	}
	tcp, ok := conn.(*net.TCPConn)
	at, err := netip.ParseAddrPort(c.Addr)
	if !ok || err != nil {
		_ = conn.Close()
		return
	}
	a.server.AdoptConn(at, tcp, c.Read)
}

func (a *agent) handoverConfig() handover.Config {
	return handover.Config{Version: a.opts.Build.Version, Logger: a.log.With("part", "handover"), Ready: a.ready}
}

// listenForSuccessor waits for the next agent from now on. Once this one has taken over, or
// where only the disk is at fault, it is better to serve without.
func (a *agent) listenForSuccessor(ctx context.Context) error {
	dir := a.opts.HandoverDir
	if dir == "" {
		return nil
	}
	host, err := handover.Listen(dir, handoverSource{a}, a.handoverConfig())
	switch {
	case err == nil:
	case a.predecessor != nil || isDiskError(err):
		a.log.Error("the next agent can't take over from this one", "dir", dir, "err", err)
		return nil
	default:
		return err
	}
	ctx, a.stopServer = context.WithCancel(context.WithoutCancel(ctx))
	a.handoverServer.Store(host)
	a.background.Go(func() { host.Serve(ctx) })
	if a.predecessor != nil {
		a.predecessor.Settled()
	}
	return nil
}

// isDiskError reports whether err is no fault of the settings.
func isDiskError(err error) bool {
	for _, fault := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}
