package counting

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/peer"
)

// The rows of the section about watching.
const (
	watchedRow   = "watched"
	unwatchedRow = "not watched"
)

// watchingRows are the agents, the watched one first.
func watchingRows() []harness.Server {
	s := harness.Server{Program: "nodens", Conf: "attribution", Flags: []string{"-node-name", nodeName}}
	watched, unwatched := s, s
	watched.Name, unwatched.Name = watchedRow, unwatchedRow
	return []harness.Server{watched, unwatched}
}

// onePodShape is a load of the pod alone that nodens tail follows.
var onePodShape = harness.LoadShape{Name: "10,000 qps of the pod", Tool: harness.FixedRate, Rate: 10000}

// watchingWorkloads are what is asked. In the last one the pod asks that nodens tail follows.
func watchingWorkloads() []harness.Workload {
	list := workloads()
	one := list[0]
	one.LoadShape, one.Name = onePodShape, "cached A, 10,000 qps of the pod that is followed"
	return append(list, one)
}

// watchingRun measures pairs of agents, of which the first one is watched.
type watchingRun struct {
	*run
	out *WatchingReport
	// pages and sockets are of the present pair.
	pages   [2]harness.Port
	sockets [2]string
	started int // number of agents
	watcher *watcher
}

// lines are what a tail has shown in one measurement.
type lines struct {
	shown, lost, queries uint64
	length               time.Duration
}

func (l lines) shownPerSecond() float64 { return float64(l.shown) / l.length.Seconds() }
func (l lines) lostPerSecond() float64  { return float64(l.lost) / l.length.Seconds() }

// WatchingReport is the result of the section about watching.
type WatchingReport struct {
	*harness.Report
	lines  harness.Results[lines]            // of the watched agent, by workload
	memory harness.Results[machine.ProcStat] // by when it was read
}

// When memory is read.
const (
	afterStart   = "after the start"
	watchedAtEnd = "at the end of a round, watched"
	otherAtEnd   = "at the end of a round, not watched"
)

// MeasureWatching measures what it costs an agent that its page is open, and that nodens tail follows a
// pod. Nothing that it started runs when it returns.
func MeasureWatching(ctx context.Context, p harness.Plan) (*WatchingReport, error) {
	b, err := harness.New(p, watchingRows())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster, b.OwnClient = true, true
	w := &watchingRun{run: &run{Run: b}, out: &WatchingReport{b.Report, harness.Results[lines]{}, harness.Results[machine.ProcStat]{}}}
	w.settle = w.settleLines
	b.Choose(watchingWorkloads())
	err = b.Steps(ctx, b.Build, b.SettleBesideServers, w.startCluster, w.rounds)
	b.Report.Workloads = nil // they have a table of their own
	return w.out, err
}

// rounds measures everything again and again.
func (b *watchingRun) rounds(ctx context.Context) error {
	for n := range b.Plan.Rounds {
		if err := b.withPair(ctx, n, b.start, b.measurePair); err != nil {
			return err
		}
	}
	return nil
}

// start starts an agent that serves the page, and has an admin socket.
func (b *watchingRun) start(ctx context.Context, at int) (*harness.RunningServer, error) {
	port, err := peer.Port()
	if err != nil {
		return nil, err
	}
	b.pages[at], b.sockets[at] = harness.Port(port), filepath.Join(b.Dir, fmt.Sprintf("admin-%d.sock", at))
	s := b.Rows[at]
	s.Flags = append(s.Flags[:len(s.Flags):len(s.Flags)], "-page", harness.LoopbackAddr(b.pages[at]).String(), "-admin-socket", b.sockets[at],
		"-handover-dir", filepath.Join(b.Dir, fmt.Sprintf("handover-%d-%d", b.started, at)))
	b.started++
	return b.Start(ctx, s, true)
}

// measurePair measures all workloads while the first agent is watched.
func (b *watchingRun) measurePair(ctx context.Context, p *pair) (err error) {
	// What a start leaves behind is given back in this time, or it is not.
	if err := harness.Sleep(ctx, b.Length); err != nil {
		return err
	}
	if err := b.readMemory(p, 0, afterStart); err != nil {
		return err
	}
	if b.watcher, err = watch(ctx, b.pages[0], b.sockets[0]); err != nil {
		return fmt.Errorf("watching an agent: %w", err)
	}
	defer b.watcher.close()
	for _, w := range b.Workloads {
		samples, err := b.sample(ctx, p, w)
		if err == nil {
			err = b.awaitLines(ctx)
		}
		if err != nil {
			return fmt.Errorf("measuring %s: %w", w.Name, err)
		}
		for i, s := range samples {
			b.add(p.agents[i].Name, w, p.round, s)
		}
		l, at := lines{b.watcher.shown.Load(), b.watcher.lost.Load(), samples[0].Completed, samples[0].Elapsed}, harness.Cell{Server: watchedRow, Workload: w.Name}
		b.out.lines[at] = append(b.out.lines[at], l)
		fmt.Fprintf(b.Progress, "round %d of %d, %s: %d queries are shown, %d lost\n", p.round+1, b.Plan.Rounds, w.Name, l.shown, l.lost)
	}
	if n := b.watcher.events.Load(); n == 0 {
		return errors.New("the page has sent no event")
	}
	return errors.Join(b.readMemory(p, 0, watchedAtEnd), b.readMemory(p, 1, otherAtEnd))
}

// readMemory reads the memory of an agent of a pair.
func (b *watchingRun) readMemory(p *pair, at int, when string) error {
	stat, err := machine.ReadProcStat(p.agents[at].Any().PID())
	if err != nil {
		return err
	}
	row := harness.Cell{Server: when}
	b.out.memory[row] = append(b.out.memory[row], stat)
	fmt.Fprintf(b.Progress, "round %d of %d, memory %s: %.1f MiB, of which %.1f MiB anonymous\n",
		p.round+1, b.Plan.Rounds, when, figures.Mebi(stat.RSS), figures.Mebi(stat.Anonymous))
	return nil
}

// lineDelay is within how long a query is shown by an agent that gets the processor: `nodens tail` gets lines every half second.
const lineDelay = 600 * time.Millisecond

// maxLineWaits is for how many times lineDelay lines are awaited.
const maxLineWaits = 50

// awaitLines waits until lines of the last workload have come, and no more of them come.
func (b *watchingRun) awaitLines(ctx context.Context) error {
	last := uint64(0)
	for range maxLineWaits {
		if err := harness.Sleep(ctx, lineDelay); err != nil {
			return err
		}
		if err := b.watcher.failure(); err != nil {
			return err
		}
		n := b.watcher.shown.Load() + b.watcher.lost.Load()
		if n > 0 && n == last {
			break
		}
		last = n
	}
	return nil
}

// settleLines waits for the lines of earlier queries, which are not counted.
func (b *watchingRun) settleLines(ctx context.Context) error {
	if err := harness.Sleep(ctx, b.Wait(lineDelay)); err != nil {
		return err
	}
	b.watcher.shown.Store(0)
	b.watcher.lost.Store(0)
	return nil
}

// watcher has a page open, and follows a pod.
type watcher struct {
	events, shown, lost atomic.Uint64
	cancel              context.CancelFunc
	ended               sync.WaitGroup
	first               chan struct{} // one for the first event, one for the first line with the pod's address
	following           bool          // there was such a line
	errs                chan error
}

// watch opens a page, follows a pod, and returns when both have begun.
func watch(ctx context.Context, page harness.Port, socket string) (*watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, first: make(chan struct{}, 2), errs: make(chan error, 2)}
	begin := func(follow func(context.Context) error) {
		w.ended.Go(func() {
			if err := follow(ctx); err != nil && ctx.Err() == nil {
				w.errs <- err
			}
		})
	}
	begin(func(ctx context.Context) error { return w.readEvents(ctx, page) })
	begin(func(ctx context.Context) error {
		return report.Follow(ctx, socket, "/tail", url.Values{"pod": {harness.Namespace + "/" + podName(0)}}, w.readLine)
	})
	for range 2 {
		select {
		case <-w.first:
		case err := <-w.errs:
			w.close()
			return nil, err
		case <-ctx.Done():
			w.close()
			return nil, ctx.Err()
		}
	}
	return w, nil
}

// failure returns why the agent is not watched any more; nil if it is.
func (w *watcher) failure() error {
	select {
	case err := <-w.errs:
		return err
	default:
		return nil
	}
}

func (w *watcher) close() {
	w.cancel()
	w.ended.Wait()
}

// eventBytes is longer than an event of the page.
const eventBytes = 1 << 20

// readEvents counts the events of the page.
func (w *watcher) readEvents(ctx context.Context, page harness.Port) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+harness.LoopbackAddr(page).String()+"/events", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /events: %s", resp.Status)
	}
	text := bufio.NewScanner(resp.Body)
	text.Buffer(nil, eventBytes)
	for text.Scan() {
		if strings.HasPrefix(text.Text(), "event: update") && w.events.Add(1) == 1 {
			w.first <- struct{}{}
		}
	}
	return errors.Join(text.Err(), errors.New("the page has ended"))
}

// readLine counts a line of /tail.
func (w *watcher) readLine(text []byte) error {
	if bytes.Contains(text, []byte(`"query":{`)) {
		w.shown.Add(1)
		return nil
	}
	var l report.TailLine
	if err := json.Unmarshal(text, &l); err != nil {
		return err
	}
	switch {
	case l.Lost != nil:
		w.lost.Add(l.Lost.Limit + l.Lost.SlowReader)
	case l.Selected != nil && len(l.Selected.Addresses) > 0 && !w.following:
		w.following = true
		w.first <- struct{}{}
	}
	return nil
}
