package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/scrape"
)

// sample is what an agent's process holds at the end of a round, when nothing is under way.
type sample struct {
	rss, heap float64 // MiB; heap is the memory in use after garbage collection
	// files is the number of open descriptors. goroutines leaves out idle workers, of which
	// the agent keeps up to 256 for a while.
	files, goroutines float64
	panics            float64
	// Of the node: the packet filter's rules, chains and tables, interfaces and addresses. 0
	// for an agent without a node.
	rules, interfaces, addrs float64
	// stacks counts goroutines by the innermost and the outermost function, descriptors by
	// what they are.
	stacks, descriptors map[string]int
}

// more returns what there is more of in s than in the sample before.
func (s sample) more(before sample) string {
	var list []string
	for _, kind := range []struct{ now, before map[string]int }{{s.stacks, before.stacks}, {s.descriptors, before.descriptors}} {
		for name, n := range kind.now {
			if n > kind.before[name] {
				list = append(list, fmt.Sprintf("%d more %s", n-kind.before[name], name))
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

const mebi = 1 << 20

// get fetches a path from the agent's HTTP endpoint. The connection is closed: it would be
// one of the agent's descriptors.
func (a *agent) get(ctx context.Context, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s%s", a.web(), path), nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return read(resp.Body)
}

// readMemory reads a sample's memory and panics.
func (a *agent) readMemory(ctx context.Context) (sample, error) {
	var s sample
	// What finalizers and pools hold goes with the second collection.
	for range 2 {
		if err := a.get(ctx, "/debug/pprof/heap?gc=1", discard); err != nil {
			return s, err
		}
	}
	if err := a.get(ctx, "/metrics", s.readMetrics); err != nil {
		return s, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			s.rss = kb / 1024
		}
	}
	if s.rss == 0 || s.heap == 0 {
		return s, errors.New("the agent's memory can't be read")
	}
	return s, nil
}

func discard(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (s *sample) readMetrics(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m, err := scrape.Parse(string(text))
	s.heap, s.panics = m["go_memstats_heap_inuse_bytes"]/mebi, m["coredns_panics_total"]
	return err
}

// count counts goroutines and descriptors.
func (a *agent) count(ctx context.Context, s *sample) error {
	if err := a.get(ctx, "/debug/pprof/goroutine?debug=1", s.readGoroutines); err != nil {
		return err
	}
	dir := fmt.Sprintf("/proc/%d/fd", a.PID())
	files, err := os.ReadDir(dir)
	s.files, s.descriptors = float64(len(files)), map[string]int{}
	for _, f := range files {
		target, _ := os.Readlink(filepath.Join(dir, f.Name()))
		kind, _, _ := strings.Cut(target, ":[")
		if strings.HasPrefix(kind, "/") {
			kind = "file"
		}
		s.descriptors[kind]++
	}
	return err
}

// idleWorker is the function in which workers wait for queries.
const idleWorker = "server.(*workerPool).waitForWork"

// readGoroutines reads a profile: for each stack, a line that begins with the number of
// goroutines, then a line for each function. The last line is the function of the go statement.
func (s *sample) readGoroutines(r io.Reader) error {
	s.stacks = map[string]int{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mebi)
	n, stack := 0, []string(nil)
	end := func() {
		if len(stack) > 0 && !slices.Contains(stack, idleWorker) {
			s.stacks[stack[0]+" of "+stack[len(stack)-1]] += n
		}
		n, stack = 0, nil
	}
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) > 1 && fields[1] == "@":
			end()
			n, _ = strconv.Atoi(fields[0])
		case len(fields) > 2 && fields[0] == "#":
			name, _, _ := strings.Cut(fields[2], "+")
			stack = append(stack, name[strings.LastIndex(name, "/")+1:])
		}
	}
	end()
	s.goroutines = 0
	for _, n := range s.stacks {
		s.goroutines += float64(n)
	}
	return lines.Err()
}

// settleLimit ends the wait for an agent that keeps what it should close. An agent keeps silent
// connections longest, for eleven seconds.
const settleLimit = 30 * time.Second

// looks is how many looks in a row must find no less before the first sample.
const looks = 15

// settle counts goroutines and descriptors until there are no more than in the agent's last
// sample or, before there is one, until they stop falling. s gets the lowest numbers that
// were found. The connection of the look before may still be among what is counted.
func (a *agent) settle(ctx context.Context, s *sample) error {
	limit := time.Now().Add(settleLimit)
	for n := 0; n == 0 || time.Now().Before(limit); n++ {
		var now sample
		if err := a.count(ctx, &now); err != nil {
			return err
		}
		if s.files == 0 || now.files+now.goroutines < s.files+s.goroutines {
			s.files, s.goroutines, s.descriptors, s.stacks = now.files, now.goroutines, now.descriptors, now.stacks
			n = 0
		}
		if a.settled(s, n) {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether s, the lowest numbers of the last n looks, is a sample.
func (a *agent) settled(s *sample, n int) bool {
	if len(a.samples) == 0 {
		return n >= looks
	}
	last := a.samples[len(a.samples)-1]
	return s.files <= last.files && s.goroutines <= last.goroutines
}

// takeSample records a sample, when the agent has settled.
func (a *agent) takeSample(ctx context.Context) error {
	s, err := a.readMemory(ctx)
	if err == nil {
		err = a.settle(ctx, &s)
	}
	if err == nil && a.node != nil {
		err = a.node.count(ctx, &s)
	}
	if err != nil {
		return fmt.Errorf("reading the state of %s: %w", a.name, err)
	}
	a.samples = append(a.samples, s)
	return nil
}
