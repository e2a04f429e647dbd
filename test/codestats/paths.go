package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

const module = "github.com/nodens-dns/nodens/"

// queries is how often a query is sent to find the functions that each one runs.
const queries = 200

// profileSeconds is how long the agent is profiled.
const profileSeconds = 10

// paths says what the agent runs for a query.
type paths struct {
	frames, hit, miss int
}

func (p paths) rows() []row {
	return []row{
		{"stack frames from reading a packet to finding its answer in the cache", fmt.Sprint(p.frames)},
		{"functions that run for a hit", fmt.Sprint(p.hit)},
		{"functions that run for a miss", fmt.Sprint(p.miss)},
	}
}

// measurePaths builds the agent of a tree with coverage counters, and counts the functions
// that run at least once for each hit and for each miss. A profile of that many seconds of an
// agent without the counters says how deep the stack is.
func measurePaths(ctx context.Context, tree string, s *source, seconds int) (p paths, err error) {
	dir, err := os.MkdirTemp("", "nodens-paths-")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(dir)
	forward, err := fakedns.Open(fakedns.Answers(func(q *dns.Msg) *dns.Msg { return fakedns.Address(q, 3600, "192.0.2.1") }), fakedns.Options{})
	if err != nil {
		return p, err
	}
	defer forward.Close()
	covered, plain := filepath.Join(dir, "covered"), filepath.Join(dir, "plain")
	for _, args := range [][]string{
		{"-cover", "-covermode=atomic", "-coverpkg=./...", "-o", covered},
		{"-o", plain},
	} {
		cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-buildvcs=false"}, args...), "./cmd/nodens")...)
		cmd.Dir = tree
		if text, err := cmd.CombinedOutput(); err != nil {
			return p, fmt.Errorf("building: %w\n%s", err, text)
		}
	}
	a := agent{dir: dir, forward: forward.Addr()}
	hit := func(int) string { return "cached.example." }
	idle, err := a.coverage(ctx, covered, 0, hit)
	if err != nil {
		return p, err
	}
	hits, err := a.coverage(ctx, covered, queries, hit)
	if err != nil {
		return p, err
	}
	misses, err := a.coverage(ctx, covered, queries, func(i int) string { return fmt.Sprintf("n%d.example.", i) })
	if err != nil {
		return p, err
	}
	names := s.functionAt()
	p.hit, p.miss = perQuery(idle, hits, names), perQuery(idle, misses, names)
	p.frames, err = a.frames(ctx, plain, seconds)
	return p, err
}

// perQuery counts the functions that ran at least once more for each query than without.
func perQuery(idle, with map[string]int, names map[string]string) (n int) {
	for at, count := range with {
		if names[at] != "" && count-idle[at] >= queries {
			n++
		}
	}
	return n
}

// agent starts agents.
type agent struct {
	dir     string
	forward netip.AddrPort
}

// start runs the agent until stop, which waits for its end.
func (a agent) start(ctx context.Context, binary string, env ...string) (address netip.AddrPort, pprof string, stop func() error, err error) {
	var ports [2]uint16
	for i := range ports {
		if ports[i], err = peer.Port(); err != nil {
			return address, "", nil, err
		}
	}
	pprof = fmt.Sprintf("127.0.0.1:%d", ports[1])
	address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ports[0])
	conf := filepath.Join(a.dir, "Corefile")
	text := fmt.Sprintf(".:%d {\n\tbind 127.0.0.1\n\tpprof %s\n\tcache\n\tforward . %s\n}\n", ports[0], pprof, a.forward)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return address, "", nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "-conf", conf, "-localip=", "-setupinterface=false", "-setupiptables=false", "-metrics-listen-address=", "-health-port=0", "-handover-dir=")
	cmd.Env = append(os.Environ(), env...)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return address, "", nil, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w\n%s", err, said.String())
		}
		return nil
	}
	if err := peer.Await(ctx, "the agent to answer", peer.Answers(address)); err != nil {
		return address, "", nil, errors.Join(err, stop())
	}
	return address, pprof, stop, nil
}

// coverage sends n queries, and returns how often the block of code at the start of each
// function ran, by file and line.
func (a agent) coverage(ctx context.Context, binary string, n int, name func(int) string) (map[string]int, error) {
	data, err := os.MkdirTemp(a.dir, "cover")
	if err != nil {
		return nil, err
	}
	address, _, stop, err := a.start(ctx, binary, "GOCOVERDIR="+data)
	if err != nil {
		return nil, err
	}
	_, err = ask(ctx, address, "cached.example.") // so that the cache has it
	for i := range n {
		if err == nil {
			_, err = ask(ctx, address, name(i))
		}
	}
	if err := errors.Join(err, stop()); err != nil {
		return nil, err
	}
	text := filepath.Join(data, "text")
	if out, err := exec.CommandContext(ctx, "go", "tool", "covdata", "textfmt", "-i="+data, "-o="+text).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go tool covdata: %w\n%s", err, out)
	}
	return readCoverage(text)
}

// readCoverage reads a coverage profile: lines of "file:line.column,line.column statements count".
func readCoverage(name string) (map[string]int, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := make(map[string]int)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(strings.TrimPrefix(lines.Text(), module))
		at, _, ok := strings.Cut(fields[0], ".go:")
		if len(fields) != 3 || !ok {
			continue
		}
		line, _, _ := strings.Cut(strings.TrimPrefix(fields[0], at+".go:"), ".")
		count, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, err
		}
		key := at + ".go:" + line
		counts[key] = max(counts[key], count)
	}
	return counts, lines.Err()
}

func ask(ctx context.Context, address netip.AddrPort, name string) (*dns.Msg, error) {
	client := dns.Client{Timeout: 5 * time.Second}
	reply, _, err := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(name, dns.TypeA), address.String())
	return reply, err
}

// frames profiles the agent under a load of hits, and returns how many frames of its own
// functions are on the stack, counted from the function that reads packets up to the first
// function of package cache, most often. A busy machine may leave the agent too little of the
// processor for a sample in that package, so there are several profiles.
func (a agent) frames(ctx context.Context, binary string, seconds int) (int, error) {
	address, pprof, stop, err := a.start(ctx, binary)
	if err != nil {
		return 0, err
	}
	file := filepath.Join(a.dir, "profile")
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", pprof, seconds)
	var depths map[int]int
	for n := 0; n < maxProfiles && len(depths) == 0 && err == nil; n++ {
		if err = profile(ctx, address, url, file); err == nil {
			depths, err = readDepths(ctx, binary, file)
		}
	}
	if err := errors.Join(err, stop()); err != nil {
		return 0, err
	}
	if len(depths) == 0 {
		return 0, errors.New("no sample of the profile is in package cache")
	}
	return mostFrequent(depths), nil
}

// maxProfiles is how often an agent is profiled at most.
const maxProfiles = 20

// readDepths counts the depths of the samples of a profile that are in package cache.
func readDepths(ctx context.Context, binary, file string) (map[int]int, error) {
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", binary, file).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	depths := make(map[int]int)
	for trace := range strings.SplitSeq(string(out), "-----------+") {
		if d := depth(trace); d > 0 {
			depths[d]++
		}
	}
	return depths, nil
}

// mostFrequent returns the key with the largest count, the smallest of several.
func mostFrequent(counts map[int]int) (best int) {
	for k, n := range counts {
		if n > counts[best] || n == counts[best] && k < best {
			best = k
		}
	}
	return best
}

// profile writes a CPU profile of an agent that is asked for a cached name all the time.
func profile(ctx context.Context, address netip.AddrPort, url, file string) error {
	loaded, end := context.WithCancel(ctx)
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() { repeat(loaded, address, "cached.example.") })
	}
	err := fetch(ctx, url, file)
	end()
	clients.Wait()
	return err
}

// depth counts the frames of the module in a stack trace of pprof, which lists the innermost
// function first, from the outermost one to the first of package cache; 0 if there is none.
func depth(trace string) (n int) {
	var frames []string
	for line := range strings.Lines(trace) {
		fields := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), "(inline)"))
		if len(fields) > 0 && strings.HasPrefix(fields[len(fields)-1], module) {
			frames = append(frames, strings.TrimPrefix(fields[len(fields)-1], module))
		}
	}
	for i := len(frames) - 1; i >= 0; i-- {
		n++
		if strings.HasPrefix(frames[i], "cache.") {
			return n
		}
	}
	return 0
}

// repeat asks one question again and again until ctx ends.
func repeat(ctx context.Context, address netip.AddrPort, name string) {
	text, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return
	}
	conn, err := net.Dial("udp", address.String())
	if err != nil {
		return
	}
	defer conn.Close()
	buf := make([]byte, dns.MaxMsgSize)
	for ctx.Err() == nil {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write(text); err == nil {
			_, _ = conn.Read(buf)
		}
	}
}

func fetch(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}
