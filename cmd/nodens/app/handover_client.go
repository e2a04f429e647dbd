package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/nodens-dns/nodens/upstream"
)

const (
	// connectTimeout is how long a start waits for a running agent that is busy or stopping.
	// A stop takes five seconds. A node without DNS does not wait longer for an agent that
	// hangs.
	connectTimeout = 10 * time.Second
	// syncTimeout is how long a successor waits for its view of the cluster. The predecessor
	// serves meanwhile, and waits for a minute ([handover.Config.Patience]).
	syncTimeout = 40 * time.Second
)

// The roles of sockets in a handover (see [handover.Socket]). All versions of the agent use
// these names.
const (
	roleUDP  = "udp"
	roleTCP  = "tcp"
	roleHTTP = "http"
)

// handoverState is the agent's part in handovers, from its predecessor and to its successor.
// Fields that are not atomic belong to the goroutine of [agent.run].
type handoverState struct {
	// predecessor is the agent that this one takes over from; nil: none, or it has ended.
	predecessor *handover.Predecessor
	// ownsNode: this agent maintains the interface, the rules and the files, and removes them.
	ownsNode bool
	// handoverServer waits for the next agent, nil for nobody; stopServer ends that.
	handoverServer atomic.Pointer[handover.Server]
	stopServer     context.CancelFunc
	// yielded: the successor reads. inactive: it also maintains the node.
	yielded  atomic.Bool
	inactive bool
	// comparison is nil if there is none.
	comparison *comparison
	comparing  atomic.Bool // there is one
	agentID    string      // see [agent.identity]
	// socketsShared is one more than the number of failed handovers when a successor last
	// received the sockets; 0: none has.
	socketsShared uint64
	// reloadPending: a reload is deferred; reloadRequested: by a signal.
	reloadPending, reloadRequested bool
	// mainCalls are what the next one asks for, for run's goroutine to do; after deaf is
	// closed nobody does.
	mainCalls  chan func(context.Context)
	mainClosed chan struct{}

	recent                     recentHandovers
	restored                   atomic.Uint64          // answers that were found at the start
	takeovers, takeoversFailed atomic.Uint64          // hand-overs from the one before
	returned                   atomic.Uint64          // to it
	worse                      atomic.Pointer[string] // why this agent gives back; nil: it does not
}

// connectPredecessor connects to the agent that runs on this node. Without one this agent
// starts cold. An error leaves everything to the running agent.
func (a *agent) connectPredecessor(ctx context.Context) error {
	if a.opts.HandoverDir == "" {
		a.ownsNode = true
		return nil
	}
	if err := os.MkdirAll(a.opts.HandoverDir, 0o700); err != nil && !isDiskError(err) {
		return fmt.Errorf("--handover-dir: %w; name a directory that exists or can be created", err)
	}
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	from, err := handover.Connect(limited, a.opts.HandoverDir, a.handoverConfig())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, handover.ErrFolder):
		return err
	case errors.Is(err, handover.ErrRefused):
		return fmt.Errorf("--handover-dir %s: %w; %s", a.opts.HandoverDir, err, tryAgain)
	case errors.Is(err, handover.ErrBusy):
		return fmt.Errorf("--handover-dir %s: %w; try again when it is done", a.opts.HandoverDir, err)
	case err != nil:
		// An agent that hangs, or has another protocol, must not keep this one from serving.
		a.log.Warn("no handover; starting beside the running agent", "dir", a.opts.HandoverDir, "err", err)
	}
	a.predecessor, a.ownsNode = from, from == nil
	if from != nil {
		a.builder.budgets.SetShare(upstream.NoBudget)
	}
	return nil
}

// awaitSavedViews waits until the predecessor has saved its views, from which those of this agent go on.
func (a *agent) awaitSavedViews(ctx context.Context) error {
	if a.predecessor == nil {
		return nil
	}
	if err := a.predecessor.Save(ctx); err != nil {
		return a.predecessorLost("waiting for the saved views", err)
	}
	return nil
}

// receiveSockets fetches duplicates of the predecessor's sockets, which it keeps reading. It
// runs as late as possible: if the predecessor dies, queries wait until this agent reads.
func (a *agent) receiveSockets(ctx context.Context) error {
	sockets, err := a.predecessor.Sockets(ctx)
	if err != nil {
		return a.predecessorLost("receiving the sockets", err)
	}
	if !otherNetns(sockets) {
		a.setInherited(sockets)
		return nil
	}
	a.log.Warn("the running agent is in another network namespace; starting beside it", "dir", a.opts.HandoverDir)
	for _, s := range sockets {
		_ = s.File.Close()
	}
	_ = a.predecessor.Close()
	a.predecessor, a.ownsNode = nil, true
	return nil
}

// otherNetns reports whether sockets belong to another network namespace than this process.
// Kernels before 5.14 cannot tell; then it returns false.
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
	raw, bad := sockets[0].File.SyscallConn() // not Fd, which makes the socket blocking
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

// predecessorLost handles the failure of a handover's step. If the predecessor has ended, it
// returns nil, and the start continues with what has been received. Otherwise the predecessor
// keeps serving, and the error ends this agent.
func (a *agent) predecessorLost(doing string, err error) error {
	a.takeoversFailed.Add(1)
	if !errors.Is(err, handover.ErrGone) {
		return fmt.Errorf("taking over from the running agent, %s: %w; it keeps serving; without --handover-dir this agent starts beside it", doing, err)
	}
	a.log.Warn("the predecessor has ended during the handover; continuing without it", "step", doing, "err", err)
	_ = a.predecessor.Close()
	a.predecessor, a.ownsNode = nil, true
	a.stopComparison()
	return nil
}

// setInherited passes the sockets to the DNS and HTTP servers, and closes the sockets of unknown
// roles.
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
			a.log.Debug("received a socket of an unknown role", "role", s.Role, "address", s.Addr)
			_ = s.File.Close()
		}
	}
	a.server.SetInherited(dns)
	a.http.SetInherited(web)
}

// restoreCache fills g's caches with the predecessor's answers, else with the saved ones.
// What can't be read is left: it is worth a line in the log, not more. An error leaves
// everything to the other agent.
func (a *agent) restoreCache(ctx context.Context, g *generation) error {
	caches := namedCaches(g)
	if a.predecessor != nil {
		n, err := a.receiveCache(ctx, caches)
		switch {
		case err == nil:
			a.log.Info("answers were handed over", "answers", n)
			a.restored.Store(uint64(n))
			return nil
		case errors.Is(err, cache.ErrStream):
			a.log.Warn("the cache was handed over in part", "answers", n, "err", err)
			a.restored.Store(uint64(n))
			return nil
		}
		if err := a.predecessorLost("receiving the cache", err); err != nil {
			return err
		}
	}
	path := a.opts.CachePath()
	if path == "" {
		return nil
	}
	n, err := loadCache(ctx, path, caches)
	if err != nil {
		a.log.Warn("reading the saved cache failed; starting with an empty one", "err", err)
	} else if n > 0 {
		a.log.Info("saved answers were found", "answers", n)
	}
	a.restored.Store(uint64(n))
	return nil
}

// receiveCache reads the predecessor's answers into caches, and returns their number.
func (a *agent) receiveCache(ctx context.Context, caches map[string]*cache.Cache) (int, error) {
	stream, err := a.predecessor.Cache(ctx)
	if err != nil {
		return 0, err
	}
	n, err := cache.Read(ctx, stream, caches)
	return n, errors.Join(err, stream.Close())
}

// commitHandover completes the handover: from now on this agent serves the node. The predecessor has half of the budgets of
// upstreams until its last query is answered.
func (a *agent) commitHandover(ctx context.Context) (err error) {
	defer func() {
		if err == nil { // else the predecessor keeps serving
			a.builder.budgets.SetShare(upstream.WholeBudget)
		}
	}()
	if a.predecessor == nil {
		return nil
	}
	if err := a.receiveStatistics(ctx); err != nil || a.predecessor == nil {
		return err
	}
	a.builder.budgets.SetShare(upstream.HalfBudget)
	if err := a.predecessor.Commit(ctx, a.adoptConn); err != nil {
		return a.predecessorLost("committing", err)
	}
	a.ownsNode = true
	a.takeovers.Add(1)
	a.times.recordHandover(eventTookOver)
	a.log.Info("took over")
	a.recent.add(append(a.predecessor.Recent(), time.Now())...)
	a.warnOfHandovers()
	if a.net == nil {
		return nil
	}
	if err := a.net.RemoveOldAddresses(ctx); err != nil {
		a.log.Warn("addresses of the predecessor are left on the node", "err", err)
	}
	return nil
}

// adoptConn serves a client's connection that the predecessor has passed on.
func (a *agent) adoptConn(c handover.Conn) {
	conn, err := net.FileConn(c.File) // a duplicate
	_ = c.File.Close()
	if err != nil {
		a.log.Debug("dropped a connection of the predecessor", "err", err)
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
	return handover.Config{
		Version: a.opts.Build.Version, Logger: a.log.With("part", "handover"), Ready: a.started, Recent: a.recent.list,
		Compare: a.opts.HandoverCompare > 0, Identity: a.agentID,
	}
}

// listenForSuccessor starts to wait for a successor. After a handover, or if the directory can't be
// written to, a failure is only logged: the agent serves without, and the startup probe finds it.
func (a *agent) listenForSuccessor(ctx context.Context) error {
	dir := a.opts.HandoverDir
	if dir == "" {
		return nil
	}
	host, alone, err := a.openHandoverServer(dir)
	if host == nil {
		return err
	}
	ctx, a.stopServer = context.WithCancel(context.WithoutCancel(ctx))
	a.handoverServer.Store(host)
	a.background.Go(func() { host.Serve(ctx) })
	if a.predecessor != nil && !alone {
		a.predecessor.Settled()
	}
	return nil
}

// openHandoverServer listens in dir. It listens alone, where only the startup probe finds it, if a failure is
// only logged; host is nil if that fails, too.
func (a *agent) openHandoverServer(dir string) (host *handover.Server, alone bool, err error) {
	host, err = handover.Listen(dir, handoverSource{a}, a.handoverConfig())
	if err == nil || a.predecessor == nil && !isDiskError(err) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrExist) {
		return host, false, err
	}
	host, readyErr := handover.ListenForReady(dir, handoverSource{a}, a.handoverConfig())
	a.log.Error("no successor can take over from this agent", "dir", dir, "err", errors.Join(err, readyErr))
	return host, true, nil
}

// isDiskError reports whether err is a fault of the disk, not of the settings.
func isDiskError(err error) bool {
	for _, diskErr := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, diskErr) {
			return true
		}
	}
	return false
}
