package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/node/testbed"
	"github.com/nodens-dns/nodens/test/peer"
)

// stand is a node in a testbed with a server at the addresses of the cluster's DNS: nodens
// as its manifest deploys it, or CoreDNS with what NodeLocal DNSCache makes around it.
type stand struct {
	*testbed.Network
	way     string
	p       *peer.Process // the one that answers
	absence time.Duration // how long it takes until a process that has ended is replaced
	// upgrades is how many there are in a row.
	upgrades int

	// coredns is its path; empty: the server is nodens, with args.
	coredns string
	args    []string
	estate  string // the hand-over folder
	around  bool   // NodeLocal's link and rules stand
}

// usualAbsence is the time between the end of a process and the start of the next: less
// than kubelet takes for a pod whose image is there, and than it waits after the second
// crash.
const usualAbsence = 2 * time.Second

// stand makes one for a row and starts the server. What it returns is closed even if
// there is an error, unless it is nil.
func (b *bench) stand(s server) (*stand, error) {
	dir, err := os.MkdirTemp(b.dir, "stand-")
	if err != nil {
		return nil, err
	}
	nodens, err := peer.Binary(context.Background(), "nodens", b.dir)
	if err != nil {
		return nil, err
	}
	lab, err := testbed.New(dir, nodens)
	st := &stand{Network: lab, way: ways[s.name], absence: min(usualAbsence, b.length), upgrades: cmp.Or(b.upgrades, upgradesInARow)}
	if err != nil {
		return st, err
	}
	if err := st.KubeProxy(st.way); err != nil {
		return st, err
	}
	if s.program == "coredns" {
		st.coredns = b.binaries["coredns"]
		return st, st.start()
	}
	// A file system of its own, small enough to be filled at once.
	if st.estate, err = st.Tmpfs("estate", 8<<20); err != nil {
		return st, err
	}
	st.args, err = st.AgentArgs(testbed.AgentAddrs(), append([]string{"-handover-dir", st.estate, "-skipteardown"}, s.flags...)...)
	if err != nil {
		return st, err
	}
	return st, st.start()
}

func (s *stand) close() { s.Close() }

// start starts a server when there is none.
func (s *stand) start() (err error) {
	if s.coredns == "" {
		s.p, err = s.StartAgent(s.args...)
		return err
	}
	locals := []string{testbed.Local4, testbed.Service4}
	if !s.around {
		if err := s.SetNodeLocalInterface(true, locals...); err != nil {
			return err
		}
	}
	if s.p, err = s.StartCoreDNS(s.coredns, locals...); err != nil || s.around {
		return err
	}
	s.around = true
	return s.SetNodeLocalRules(true, locals...)
}

// stop ends the server as kubelet does, and returns when it is gone. NodeLocal DNSCache
// takes its rules and its link down before it ends.
func (s *stand) stop() error {
	if s.around {
		s.around = false
		locals := []string{testbed.Local4, testbed.Service4}
		if err := errors.Join(s.SetNodeLocalRules(false, locals...), s.SetNodeLocalInterface(false)); err != nil {
			return err
		}
	}
	s.p.Stop()
	return nil
}

// replace starts a server after the time that it takes until somebody does.
func (s *stand) replace(ctx context.Context, h *harm) error {
	h.gone = time.Now()
	if err := wait(ctx, s.absence); err != nil {
		return err
	}
	h.spawned = time.Now()
	return s.start()
}

// restart is a stop and a start.
func (s *stand) restart(ctx context.Context, h *harm) error {
	if err := s.stop(); err != nil {
		return err
	}
	return s.replace(ctx, h)
}

// upgrade replaces the server by another one of the same kind. Nodens hands over to it.
func (s *stand) upgrade(ctx context.Context, h *harm) error {
	if s.coredns != "" {
		return s.restart(ctx, h)
	}
	old := s.p
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

// known waits until the server has looked all names up.
func (s *stand) known(ctx context.Context) error {
	_, err := s.over(ctx, testbed.CacheStats{})
	return err
}

// lookups is how many look-ups say what part of them are hits: the names of the load twice,
// and some. A scrape reads requests and hits one after the other, and on a busy machine
// hundreds of look-ups come in between.
const lookups = 12_000

// betweenScrapes is the time between two scrapes: each starts two programs, on the cores of those
// that are measured.
const betweenScrapes = 250 * time.Millisecond

// over waits until there have been enough look-ups since then, and gives them.
func (s *stand) over(ctx context.Context, then testbed.CacheStats) (now testbed.CacheStats, err error) {
	err = s.p.Await(ctx, "look-ups in the cache", func(ctx context.Context) error {
		t, err := s.CacheStats()
		if now = t.Since(then); err == nil && now.Requests < lookups {
			err = errors.Join(fmt.Errorf("%.0f so far", now.Requests), wait(ctx, betweenScrapes))
		}
		return err
	})
	return now, err
}

// observe looks at the connections that are tracked.
func (s *stand) observe(h *harm) error {
	lines, err := s.Tracked()
	for line := range strings.Lines(lines) {
		// What the agent itself asks is none of this.
		if strings.Contains(line, "dst="+testbed.Service4+" ") {
			h.tracked++
		}
	}
	return err
}

// saved is the file with the saved cache.
func (s *stand) saved() string { return filepath.Join(s.estate, "cache") }
