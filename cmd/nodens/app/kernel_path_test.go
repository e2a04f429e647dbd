// These tests use active, platform and follow, which are not exported.

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/epoch"
	"github.com/nodens-dns/nodens/netsetup"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/testlog"
)

// stage is the pods' links of a node, and what paths in its kernel do with them.
type stage struct {
	mu    sync.Mutex
	links []netsetup.PodInterface
	on    map[int][]string // the paths that each has
	told  []string         // "NAME attaches 1", ...
}

// player is a path inside of a kernel that a test watches.
type player struct {
	*stage
	name   string
	cached *epoch.Table  // of the caches; may be nil
	fail   map[int]error // of links that do not take the program

	beats, sweeps, watched int
	filtered               []int // what Update was told, whenever it was true
	clients                map[int][]netip.Addr
	report                 func(netip.Addr) // nil: nothing is reported
	// What Copies and Client return.
	copies []kernelpath.CopyInfo
	known  map[netip.Addr]kernelpath.ClientInfo
}

func (p *player) Update(index int, filtered bool) (answers bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fail[index]; err != nil {
		return false, err
	}
	if filtered {
		p.filtered = append(p.filtered, index)
	}
	if !slices.Contains(p.on[index], p.name) {
		p.on[index] = append(p.on[index], p.name)
		p.told = append(p.told, fmt.Sprintf("%s attaches %d", p.name, index))
	}
	return !filtered, nil
}

func (p *player) Detach(index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.on[index], p.name); i >= 0 {
		p.on[index] = slices.Delete(p.on[index], i, i+1)
		p.told = append(p.told, fmt.Sprintf("%s detaches %d", p.name, index))
	}
}

func (p *player) Links() (n, _ int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, names := range p.on {
		if slices.Contains(names, p.name) {
			n++
		}
	}
	return n, 0
}

func (p *player) Put(*kernelpath.Answer) bool                  { return false }
func (p *player) SetGroup(netip.Addr, *kernelpath.Group)       {}
func (p *player) Clear()                                       {}
func (p *player) SetListeners(map[netip.AddrPort]uint32) error { return nil }
func (p *player) Epochs() (cluster, cached *epoch.Table)       { return nil, p.cached }

func (p *player) Heartbeat()      { p.count(&p.beats) }
func (p *player) Sweep()          { p.count(&p.sweeps) }
func (p *player) ConfirmWatched() { p.count(&p.watched) }

func (p *player) KeepOut(func(netip.Addr) bool, time.Duration) {}

func (p *player) Copies(_ []byte, qtype uint16, at netip.AddrPort) (list []kernelpath.CopyInfo) {
	for _, c := range p.copies {
		if (qtype == 0 || qtype == c.Type) && (!at.IsValid() || at == c.Listener) {
			list = append(list, c)
		}
	}
	return list
}

func (p *player) Client(addr netip.Addr, _ netip.AddrPort) (c kernelpath.ClientInfo, ok bool) {
	c, ok = p.known[addr]
	return c, ok
}

// answering is the number of links that have the program.
func (p *player) answering() int {
	n, _ := p.Links()
	return n
}

func (p *player) count(n *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n++
}

// counted gives beats and sweeps, and begins anew.
func (p *player) counted() (beats, sweeps int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	beats, sweeps, p.beats, p.sweeps = p.beats, p.sweeps, 0, 0
	return beats, sweeps
}

func (p *player) Counters() kernelpath.Counters {
	return kernelpath.Counters{Results: map[string]uint64{"answered": 7}}
}

func (p *player) Usage() (answers, limit int) { return 3, 4 }

func (p *player) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, p.name+" is still")
}

func newStage(indices ...int) *stage {
	s := &stage{on: make(map[int][]string)}
	for _, i := range indices {
		s.links = append(s.links, netsetup.PodInterface{Index: i, Name: fmt.Sprintf("veth%d", i)})
	}
	return s
}

// player is a path on s, with nothing attached.
func (s *stage) player(name string) *player {
	return &player{stage: s, name: name, fail: make(map[int]error)}
}

// follow is that of a node whose links stay.
func (s *stage) follow(ctx context.Context, o netsetup.PodInterfaceObserver) error {
	for _, l := range s.links {
		o.Added(l)
	}
	o.Checked(netsetup.PodInterfaceCheck{})
	<-ctx.Done()
	return nil
}

// of is what was told of one player.
func (s *stage) of(name string) (list []string) {
	for _, told := range s.story() {
		if rest, ok := strings.CutPrefix(told, name+" "); ok {
			list = append(list, rest)
		}
	}
	return list
}

// story is what was told until now.
func (s *stage) story() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

func (p *player) newKernelPath(w io.Writer) *kernelPath {
	return &kernelPath{log: slog.New(slog.NewTextHandler(w, nil)), program: p, platform: platform{follow: p.follow}}
}

func always() bool { return true }

// TestOpenKernelPath: off opens nothing, auto goes on without what it can't have and says
// why, and on does not. Beside Cilium auto does not even try.
func TestOpenKernelPath(t *testing.T) {
	old, lost := fmt.Errorf("%w: the kernel is too old", kernelpath.ErrUnsupported), errors.New("no links")
	none := func() (bool, error) { return false, nil }
	beside := func() (bool, error) { return true, nil }
	for _, tt := range []struct {
		name, flag string
		cilium     func() (bool, error)
		fails      error
		works      bool
		log, err   string
	}{
		{name: "off", flag: "off"},
		{name: "auto", flag: "auto", cilium: none, works: true},
		{name: "on", flag: "on", works: true},
		{name: "auto on an old kernel", flag: "auto", cilium: none, fails: old, log: "level=INFO;kernel is too old"},
		{name: "auto without memory", flag: "auto", cilium: none, fails: errors.New("no memory"), log: "level=WARN;no memory"},
		{name: "on an old kernel", flag: "on", fails: old, err: "--kernel-path=on: answers in the kernel are not supported: the kernel is too old; --kernel-path=auto serves without it"},
		{name: "auto beside Cilium", flag: "auto", cilium: beside, log: "level=INFO;beside Cilium;--kernel-path=on"},
		{name: "on beside Cilium", flag: "on", cilium: beside, works: true},
		{name: "auto without links", flag: "auto", cilium: func() (bool, error) { return false, lost }, log: "level=WARN;no links"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mode := options.KernelPathMode(slices.Index(options.KernelPathModes, tt.flag))
			opts := &options.Agent{KernelPath: mode, KernelPathOrder: options.KernelPathOrder{After: "policy"}}
			w, stage := new(testlog.Buffer), newStage()
			s, err := openKernelPath(opts, slog.New(slog.NewTextHandler(w, nil)), platform{cilium: tt.cilium, follow: stage.follow, open: func(o kernelpath.Options) (program, error) {
				if o.Order.After != "policy" {
					t.Errorf("opened with the order %+v", o.Order)
				}
				return stage.player("a"), tt.fails
			}}, nil, nil)
			if got := fmt.Sprint(err); err != nil && got != tt.err || err == nil && tt.err != "" {
				t.Errorf("error %q, want %q", got, tt.err)
			}
			if s.available() != tt.works {
				t.Errorf("works: %v, want %v", s.available(), tt.works)
			}
			text := w.String()
			for word := range strings.SplitSeq(tt.log, ";") {
				if !strings.Contains(text, word) || tt.log == "" && text != "" {
					t.Errorf("the log says %q, want %q", text, word)
				}
			}
			over, end := context.WithCancel(t.Context())
			end()
			s.run(over, always)
			s.updateCounters()
			if tt.works == (len(stage.story()) == 0) {
				t.Errorf("at the end: %q", stage.story())
			}
		})
	}
}

// TestKernelPathLinks: the program is on each link as long as it is there, one that does not
// take it is told of once, and at the end no link has it.
func TestKernelPathLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := new(testlog.Buffer), newStage().player("a")
		p.fail[2] = errors.New("no such device")
		s := p.newKernelPath(w)
		news := make(chan func(seen, gone func(netsetup.PodInterface)))
		s.platform.follow = func(ctx context.Context, o netsetup.PodInterfaceObserver) error {
			seen := func(l netsetup.PodInterface) {
				o.Added(l)
				o.Checked(netsetup.PodInterfaceCheck{})
			}
			for {
				select {
				case f := <-news:
					f(seen, o.Removed)
				case <-ctx.Done():
					return nil
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.run(ctx, always); close(done) }()
		one, two, three := netsetup.PodInterface{Index: 1, Name: "veth1"}, netsetup.PodInterface{Index: 2, Name: "veth2"}, netsetup.PodInterface{Index: 3, Name: "veth3"}
		news <- func(seen, gone func(netsetup.PodInterface)) {
			seen(one)
			seen(two)
			seen(three)
			gone(one)
			seen(one)
			gone(one)
		}
		synctest.Wait()
		if !s.active.Load() || p.answering() != 1 {
			t.Errorf("active: %v, %d links, want 1", s.active.Load(), p.answering())
		}
		for text, want := range map[string]int{"interface=veth2": 1, "every pod's interface": 1, "\n": 2} {
			if n := strings.Count(w.String(), text); s.failed.Load() != 1 || n != want {
				t.Errorf("%d failures, want 1; %d times %q, want %d; log:\n%s", s.failed.Load(), n, text, want, w)
			}
		}
		news <- func(seen, gone func(netsetup.PodInterface)) {
			gone(two)
			p.mu.Lock()
			delete(p.fail, 2)
			p.mu.Unlock()
			seen(two) // another link of the same number
			gone(two)
		}
		cancel()
		<-done
		s.detaching.Wait()
		if s.active.Load() || p.answering() != 0 {
			t.Errorf("at the end: active: %v, %d links", s.active.Load(), p.answering())
		}
		want := []string{"a attaches 1", "a attaches 3", "a detaches 1", "a attaches 1", "a detaches 1", "a attaches 2", "a detaches 2", "a detaches 3", "a is still"}
		story := p.story()
		slices.Sort(story[7:]) // the last two in any order
		check.Equal(t, want, story, "it differs")
	})
}

// TestKernelPathChecks: an interface with filters is only watched, and so are all when nobody knows
// which have some. Clients are admitted as long as all interfaces of pods are watched. What is
// wrong is told once.
func TestKernelPathChecks(t *testing.T) {
	lost := errors.New("no buffer space")
	gone := fmt.Errorf("interface 2: %w", kernelpath.ErrGone)
	for _, tt := range []struct {
		name     string
		look     netsetup.PodInterfaceCheck
		fail     error // of the second interface
		filtered []int // as the program is told
		watched  bool
		log      string
	}{
		{name: "nothing there", watched: true},
		{name: "a filter", look: netsetup.PodInterfaceCheck{Filtered: map[int]bool{2: true}}, filtered: []int{2}, watched: true, log: "interface=veth2"},
		{name: "nobody knows", look: netsetup.PodInterfaceCheck{Err: lost}, filtered: []int{1, 2}, log: "interface=veth1;interface=veth2;no buffer space"},
		{name: "an interface that is not followed", look: netsetup.PodInterfaceCheck{Incomplete: true}, log: "not veth"},
		{name: "one that does not take the program", fail: lost, log: "interface=veth2;interface veth2: no buffer space"},
		{name: "one that is gone", fail: gone, watched: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, p := new(testlog.Buffer), newStage(1, 2).player("a")
			if tt.fail != nil {
				p.fail[2] = tt.fail
			}
			s := p.newKernelPath(w)
			s.platform.follow = func(_ context.Context, o netsetup.PodInterfaceObserver) error {
				for _, l := range p.stage.links {
					o.Added(l)
				}
				for range 3 {
					o.Checked(tt.look)
				}
				return nil
			}
			check.NoError(t, s.attach(t.Context()))
			s.detaching.Wait()
			if want := map[bool]int{true: 3}[tt.watched]; p.watched != want {
				t.Errorf("%d of 3 looks say that all is watched, want %d", p.watched, want)
			}
			slices.Sort(p.filtered)
			if got := slices.Compact(p.filtered); !slices.Equal(got, tt.filtered) {
				t.Errorf("interfaces with filters: %v, want %v", got, tt.filtered)
			}
			lines := 0
			for word := range strings.SplitSeq(tt.log, ";") {
				if n := strings.Count(w.String(), word); word != "" && n != 1 {
					t.Errorf("the log says %d times %q:\n%s", n, word, w)
				} else if word != "" {
					lines++
				}
			}
			if n := strings.Count(w.String(), "\n"); n != lines {
				t.Errorf("%d lines in the log, want %d:\n%s", n, lines, w)
			}
		})
	}
}

// TestKernelPathRetry: where links can't be followed the program is on none, until they
// can again.
func TestKernelPathRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := new(testlog.Buffer), newStage(1).player("a")
		s := p.newKernelPath(w)
		cut := make(chan error)
		s.platform.follow = func(ctx context.Context, o netsetup.PodInterfaceObserver) error {
			o.Added(netsetup.PodInterface{Index: 1})
			o.Checked(netsetup.PodInterfaceCheck{})
			select {
			case err := <-cut:
				return err
			case <-ctx.Done():
				return nil
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.run(ctx, always); close(done) }()
		for range 2 {
			cut <- errors.New("no buffer space")
			synctest.Wait()
			if s.active.Load() || p.answering() != 0 {
				t.Errorf("active: %v, %d links", s.active.Load(), p.answering())
			}
			time.Sleep(retryInterval)
			synctest.Wait()
			if !s.active.Load() || p.answering() != 1 {
				t.Errorf("later: active: %v, %d links", s.active.Load(), p.answering())
			}
		}
		cut <- errors.New("no buffer space")
		cancel() // in the pause
		<-done
		if n := strings.Count(w.String(), "no buffer space"); n < 2 || n > 3 {
			t.Errorf("the log tells %d times:\n%s", n, w)
		}
	})
}

// TestKernelPathHeartbeats: while the agent is well, four beats and two sweeps come within the
// time that answers are given without; when it is not, or does not say, none do.
func TestKernelPathHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newStage(1).player("a")
		s := p.newKernelPath(io.Discard)
		well, asked := make(chan bool), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			s.run(ctx, func() bool {
				select {
				case asked <- struct{}{}:
				default:
				}
				return <-well
			})
			close(done)
		}()
		during := func(is bool, wantBeats, wantSweeps int) {
			t.Helper()
			for range 4 {
				well <- is
				time.Sleep(heartbeatInterval)
			}
			synctest.Wait()
			if beats, sweeps := p.counted(); beats != wantBeats || sweeps != wantSweeps {
				t.Errorf("well: %v: %d beats, %d sweeps, want %d, %d", is, beats, sweeps, wantBeats, wantSweeps)
			}
		}
		during(true, 4, 2)
		during(false, 0, 2)
		time.Sleep(10 * kernelpath.HeartbeatTimeout) // nobody lets the lock go
		synctest.Wait()
		if beats, _ := p.counted(); beats != 0 {
			t.Errorf("%d beats while the agent does not say that it is well", beats)
		}
		cancel()
		<-done // does not wait for the agent to be well
		s.detaching.Wait()
		if p.answering() != 0 {
			t.Error("the program is still there")
		}
		close(well)
	})
}

// TestKernelPathSweepsInFloods: while two thousand entries of the caches are new in each heartbeat, about ten sweeps come in one.
func TestKernelPathSweepsInFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newStage(1).player("a")
		p.cached = epoch.New(make([]atomic.Uint64, epoch.Words(epochBits)), 0, epochBits)
		s := p.newKernelPath(io.Discard)
		ctx, cancel := context.WithCancel(t.Context())
		go s.sweepInFloods(ctx)
		during := func(changes, wantAtLeast, wantAtMost int) {
			t.Helper()
			const parts = 10
			for range parts {
				for range changes / parts {
					p.cached.BumpAny()
				}
				time.Sleep(heartbeatInterval / parts)
			}
			synctest.Wait()
			if _, sweeps := p.counted(); sweeps < wantAtLeast || sweeps > wantAtMost {
				t.Errorf("%d changes: %d sweeps, want %d to %d", changes, sweeps, wantAtLeast, wantAtMost)
			}
		}
		during(floodChanges/2, 0, 0)
		during(2*floodChanges, 0, 1)
		during(2*floodChanges, 8, 11)
		during(floodChanges/2, 0, 11) // the last one's sweeps
		during(floodChanges/2, 0, 0)
		cancel()
		synctest.Wait()
	})
}

// TestKernelPathAfterEnd: a look that comes back when all is over brings no beat. The last answers are
// reported at the end.
func TestKernelPathAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newStage(1).player("a")
		well := make(chan bool)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			p.newKernelPath(io.Discard).run(ctx, func() bool { return <-well })
			close(done)
		}()
		synctest.Wait()
		cancel()
		<-done
		synctest.Wait()
		if _, sweeps := p.counted(); sweeps != 1 {
			t.Errorf("%d sweeps at the end", sweeps)
		}
		well <- true
		synctest.Wait()
		if beats, _ := p.counted(); beats != 0 {
			t.Errorf("%d beats after the end", beats)
		}
	})
}

// TestKernelPathHandover: of two agents only that one is on the pods' links which serves:
// the next one when it has taken over, and the one before when it goes on.
func TestKernelPathHandover(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1") // who has handed over waits
	p := peer.Ports(t, 3)
	dir := filepath.Join(t.TempDir(), "handover")
	stage := newStage(1, 2)
	start := func(name string) *agenttest.Agent {
		return startChanged(t, withCache(p[0], p[1], p[2]), func(a *agent) { a.kernelPath = stage.player(name).newKernelPath(io.Discard) },
			func(o *options.Agent) { o.HandoverDir = dir })
	}
	await := func(r *agenttest.Agent, name string, n int) {
		t.Helper()
		r.Await(fmt.Sprint(name, n), func() bool { return len(stage.of(name)) >= n })
	}
	first := start("a")
	await(first, "a", 2)
	second := start("b")
	await(second, "b", 2)
	agenttest.ExpectMetrics(t, p[1], "nodens_kernel_path_active 1\n", "nodens_kernel_path_interfaces 2\n",
		`nodens_kernel_path_queries_total{result="answered"} 7`+"\n", "nodens_kernel_path_attach_errors_total 0\n")
	second.Stop()
	await(first, "a", 7)
	first.Stop()
	first.Await("all links to be left", func() bool { return len(stage.of("a")) == 10 && len(stage.of("b")) == 5 })
	in, out := []string{"attaches 1", "attaches 2"}, []string{"detaches 1", "detaches 2", "is still"}
	for name, want := range map[string][]string{"a": slices.Concat(in, out, in, out), "b": slices.Concat(in, out)} {
		got := stage.of(name)
		for i := 2; i < len(got); i += 5 {
			slices.Sort(got[i : i+3]) // in any order
		}
		check.Equal(t, want, got, "%s", name)
	}
	// Whoever comes finds the other one still.
	story := stage.story()
	a, b := slices.Index(story, "a is still"), slices.Index(story, "b attaches 1")
	if back := slices.Index(story, "b is still"); a > b || back > b+slices.Index(story[b:], "a attaches 1") {
		t.Errorf("two at once: %q", story)
	}
}
