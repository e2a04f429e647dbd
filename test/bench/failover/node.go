package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// node is a node in a testbed with a server at the addresses of the cluster's DNS: nodens
// as its manifest deploys it, or CoreDNS with what NodeLocal DNSCache makes around it.
type node struct {
	*testbed.Network
	proxyMode    string
	server       *peer.Process // the one that answers
	restartDelay time.Duration // how long it takes until a process that has ended is replaced
	// upgrades is how many there are in a row.
	upgrades int
	plan     harness.Plan

	// coredns is its path; empty: the server is nodens, with args.
	coredns     string
	args        []string
	handoverDir string // the hand-over folder
	nodeLocalUp bool   // NodeLocal's link and rules stand
}

// defaultRestartDelay is the time between the end of a process and the start of the next: less
// than kubelet takes for a pod whose image is there, and than it waits after the second
// crash.
const defaultRestartDelay = 2 * time.Second

// startNode makes one for a row and starts the server. What it returns is closed even if
// there is an error, unless it is nil.
func (b *Run) startNode(s harness.Server) (*node, error) {
	dir, err := os.MkdirTemp(b.Dir, "stand-")
	if err != nil {
		return nil, err
	}
	lab, err := testbed.New(dir, b.nodens)
	st := &node{Network: lab, proxyMode: proxyModeOf(s), restartDelay: min(defaultRestartDelay, b.Length), upgrades: b.upgrades, plan: b.Plan}
	if err != nil {
		return st, err
	}
	if err := st.KubeProxy(st.proxyMode); err != nil {
		return st, err
	}
	if s.Program == "coredns" {
		st.coredns = b.BinaryOf(s)
		return st, st.start()
	}
	// A file system of its own, small enough to be filled at once.
	if st.handoverDir, err = st.Tmpfs("handover", 8<<20); err != nil {
		return st, err
	}
	st.args, err = st.AgentArgs(testbed.AgentAddrs(), append([]string{"-handover-dir", st.handoverDir, "-skipteardown"}, s.Flags...)...)
	if err != nil {
		return st, err
	}
	return st, st.start()
}

func (s *node) close() { s.Close() }

// start starts a server when there is none.
func (s *node) start() (err error) {
	if s.coredns == "" {
		s.server, err = s.StartAgent(s.args...)
		return err
	}
	locals := []string{testbed.Local4, testbed.Service4}
	if !s.nodeLocalUp {
		if err := s.SetNodeLocalInterface(true, locals...); err != nil {
			return err
		}
	}
	if s.server, err = s.StartCoreDNS(s.coredns, locals...); err != nil || s.nodeLocalUp {
		return err
	}
	s.nodeLocalUp = true
	return s.SetNodeLocalRules(true, locals...)
}

// stop ends the server as kubelet does, and returns when it is gone. NodeLocal DNSCache
// takes its rules and its link down before it ends.
func (s *node) stop() error {
	if s.nodeLocalUp {
		s.nodeLocalUp = false
		locals := []string{testbed.Local4, testbed.Service4}
		if err := errors.Join(s.SetNodeLocalRules(false, locals...), s.SetNodeLocalInterface(false)); err != nil {
			return err
		}
	}
	s.server.Stop()
	return nil
}

// replace starts a server after the time that it takes until somebody does.
func (s *node) replace(ctx context.Context, h *Result) error {
	h.Gone = time.Now()
	if err := harness.Sleep(ctx, s.restartDelay); err != nil {
		return err
	}
	h.spawned = time.Now()
	return s.start()
}

// restart is a stop and a start.
func (s *node) restart(ctx context.Context, h *Result) error {
	if err := s.stop(); err != nil {
		return err
	}
	return s.replace(ctx, h)
}

// upgrade replaces the server by another one of the same kind. Nodens hands over to it.
func (s *node) upgrade(ctx context.Context, h *Result) error {
	if s.coredns != "" {
		return s.restart(ctx, h)
	}
	old := s.server
	if err := s.start(); err != nil {
		return err
	}
	if err := old.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := old.Err(); err != nil {
		return fmt.Errorf("the agent ended with %w and wrote:\n%s", err, old.Tail())
	}
	return nil
}

// awaitCached waits until the server has looked all names up since then.
func (s *node) awaitCached(ctx context.Context, then testbed.CacheStats) error {
	_, err := s.awaitLookups(ctx, then)
	return err
}

// lookups is how many look-ups say what part of them are hits: the names of the load twice,
// and some. A scrape reads requests and hits one after the other, and on a busy machine
// hundreds of look-ups come in between.
const lookups, shortLookups = 12_000, 200

// betweenScrapes is the time between two scrapes: each starts two programs, on the cores of those
// that are measured.
const betweenScrapes = 250 * time.Millisecond

// awaitLookups waits until there have been enough look-ups since then, and gives them.
func (s *node) awaitLookups(ctx context.Context, then testbed.CacheStats) (now testbed.CacheStats, err error) {
	enough := float64(lookups)
	if s.plan.Short {
		enough = shortLookups
	}
	err = s.server.Await(ctx, "look-ups in the cache", func(ctx context.Context) error {
		t, err := s.CacheStats()
		if now = t.Since(then); err == nil && now.Requests < enough {
			err = errors.Join(fmt.Errorf("%.0f so far", now.Requests), harness.Sleep(ctx, s.plan.Wait(betweenScrapes)))
		}
		return err
	})
	return now, err
}

// countTracked looks at the connections that are tracked.
func (s *node) countTracked(h *Result) error {
	lines, err := s.Tracked()
	for line := range strings.Lines(lines) {
		// What the agent itself asks is none of this.
		if strings.Contains(line, "dst="+testbed.Service4+" ") {
			h.tracked++
		}
	}
	return err
}

// cacheFile is the file with the saved cache.
func (s *node) cacheFile() string { return filepath.Join(s.handoverDir, "cache") }
