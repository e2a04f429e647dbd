package counting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/bench/figures"
	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/bench/machine"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// memorySample is an agent's memory in bytes after a garbage collection.
type memorySample struct{ heap, rss uint64 }

func (m memorySample) heapMebi() float64 { return figures.Mebi(m.heap) }
func (m memorySample) rssMebi() float64  { return figures.Mebi(m.rss) }

// maxUnanswered is the part of the names that may get no answer, because a busy machine loses some.
const maxUnanswered = 0.01

// measureMemory measures the memory of two new agents, each of which has been asked once for all names.
func (b *run) measureMemory(ctx context.Context, p *pair) error {
	for i := range p.agents {
		at := i ^ p.round%2
		m, err := b.memoryOf(ctx, p, at)
		if err != nil {
			return fmt.Errorf("measuring memory: %w", err)
		}
		row := harness.Cell{Server: p.agents[at].Name}
		b.out.memory[row] = append(b.out.memory[row], m)
		fmt.Fprintf(b.Progress, "round %d of %d, memory, %s: heap %.2f MiB, RSS %.2f MiB\n", p.round+1, b.Plan.Rounds, row.Server, figures.Mebi(m.heap), figures.Mebi(m.rss))
	}
	return p.checkCounts(ctx)
}

func (b *run) memoryOf(ctx context.Context, p *pair, at int) (m memorySample, err error) {
	from := b.sources()
	names := b.NewNamesStream(load.Stream{Server: harness.LoopbackAddr(p.agents[at].Any().Port), Window: len(from), Count: b.Names}, "00000000.full.example.")
	names.Sources, names.Sockets = from, len(from)
	s, err := b.ask(ctx, p, at, names, 0)
	if err != nil {
		return m, err
	}
	if s.Failed() > maxUnanswered {
		return m, fmt.Errorf("of %d names %d got an answer, with the rcodes %v", s.Sent, s.Completed, s.Rcodes)
	}
	return readMemory(ctx, p.agents[at].Any())
}

// readMemory reads the memory of an agent after garbage collections.
func readMemory(ctx context.Context, proc harness.Process) (m memorySample, err error) {
	var text string
	for range 2 { // the first collection keeps what sync.Pools have
		if text, err = get(ctx, proc.Pprof, "/debug/pprof/heap?gc=1&debug=1"); err != nil {
			return m, err
		}
	}
	if m.heap, err = heapInUse(text); err != nil {
		return m, err
	}
	stat, err := machine.ReadProcStat(proc.PID())
	m.rss = stat.RSS
	return m, err
}

// heapInUse returns the bytes of the spans in use, of a heap profile in text form.
func heapInUse(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "# HeapInuse = "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("the heap profile does not say how much is in use")
}

// get reads a page of an agent.
func get(ctx context.Context, at harness.Port, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+harness.LoopbackAddr(at).String()+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", path, resp.Status)
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
