package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodens-dns/nodens/test/ca"
)

// Setup is what an agent is started with.
type Setup struct {
	// Corefile is its text. Blocks without bind and without a port are to listen on
	// Listen.
	Corefile string
	Listen   netip.AddrPort
	// Flags are for the agent's command line.
	Flags []string
	// Dir is a folder for the Corefile; what the scenario wrote is there too.
	Dir string
}

// Agent is what a scenario plays against. Play calls its methods from one goroutine.
type Agent interface {
	// Advance moves the clock, which stands still otherwise.
	Advance(by time.Duration)
	// Reload gives the agent another Corefile and waits until it has taken it on,
	// nil, or refused it: the error is what it says.
	Reload(ctx context.Context, corefile string) error
	// Flush takes a name, or all at and below it, out of the caches, and gives how
	// many entries that were.
	Flush(name string, subtree bool) (int, error)
	// Metrics is what a scrape gives.
	Metrics() (string, error)
	// Log is what the agent has logged so far.
	Log() string
	// Close ends the agent and gives what went wrong with it.
	Close() error
}

// Start makes an agent and waits until it serves. Its error is why it refuses to.
type Start func(ctx context.Context, s Setup) (Agent, error)

// run is one play of a scenario.
type run struct {
	scenario   *Scenario
	dir        string
	listen     netip.AddrPort
	ca         *ca.CA
	mu         sync.RWMutex // guards servers while upstreams start
	servers    map[string]*server
	agent      Agent
	queries    map[string]*sentQuery // by label
	last       *sentQuery
	unanswered map[*query]bool // those to which no reply must come
}

// The ports at which an agent takes queries, on an address that is its own: any would do.
const (
	plainPort = 5353
	tlsPort   = 8853
	httpsPort = 8443
)

func (st *run) tlsAddr() netip.AddrPort   { return netip.AddrPortFrom(st.listen.Addr(), tlsPort) }
func (st *run) httpsAddr() netip.AddrPort { return netip.AddrPortFrom(st.listen.Addr(), httpsPort) }

// plays counts the plays of this process: each has loopback addresses of its own.
var plays atomic.Uint32

// addresses gives the agent's address and those of the upstreams, out of 127.64.0.0/10,
// which nobody else in the tree uses. The process's ID keeps the addresses of two
// processes apart, most often.
func addresses(n int) []netip.Addr {
	id := uint32(os.Getpid())<<10 + plays.Add(1)%(1<<10)
	id %= 1 << 17
	list := make([]netip.Addr, n)
	for i := range list {
		a := 127<<24 | 1<<22 | id<<5 | uint32(i+1)
		list[i] = netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
	}
	return list
}

// Run plays sc in dir, an empty folder, against an agent that start makes. It blocks
// until the scenario ends; nothing it started runs on. The error says FILE:LINE of the
// first step that did not go as the file says, and what else was found.
func Run(ctx context.Context, sc *Scenario, dir string, start Start) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addrs := addresses(1 + len(sc.Upstreams))
	st := &run{
		scenario: sc, dir: dir, listen: netip.AddrPortFrom(addrs[0], plainPort),
		servers: make(map[string]*server), queries: make(map[string]*sentQuery), unanswered: sc.unansweredQueries(),
	}
	defer func() { err = errors.Join(err, st.close()) }()
	if err := st.startUpstreams(ctx, addrs); err != nil {
		return fmt.Errorf("%s: %w", sc.File, err)
	}
	corefile, err := st.fill(sc.Corefile)
	if err != nil {
		return err
	}
	flags := make([]string, len(sc.Flags))
	for i, f := range sc.Flags {
		if flags[i], err = st.replace(f); err != nil {
			return fmt.Errorf("%s: ARGS: %w", sc.File, err)
		}
	}
	agent, err := start(ctx, Setup{Corefile: corefile, Listen: st.listen, Flags: flags, Dir: dir})
	if err == nil {
		st.agent = agent
	}
	if err := checkRefusal(err, sc.Refused); err != nil || sc.Refused != "" {
		return withLine(sc, sc.Corefile.line, err)
	}
	for _, s := range sc.Steps {
		if err := s.run(ctx, st); err != nil {
			return withLine(sc, s.line, err)
		}
	}
	return nil
}

func withLine(sc *Scenario, line int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s:%d: %w", sc.File, line, err)
}

// unansweredQueries are the queries to which no reply is expected.
func (sc *Scenario) unansweredQueries() map[*query]bool {
	labels := make(map[string]*query)
	found := make(map[*query]bool)
	var last *query
	for _, s := range sc.Steps {
		switch s := s.step.(type) {
		case *query:
			last = s
			labels[s.label] = s
		case *expect:
			q := last
			if s.label != "" {
				q = labels[s.label]
			}
			if s.nothing {
				found[q] = true
			}
		}
	}
	return found
}

// startUpstreams starts the upstreams and writes the files.
func (st *run) startUpstreams(ctx context.Context, addrs []netip.Addr) (err error) {
	if st.ca, err = ca.New(); err != nil {
		return err
	}
	if err := writeCertificates(st.ca, st.dir, st.listen.Addr()); err != nil {
		return err
	}
	for i, u := range st.scenario.Upstreams {
		s, err := st.newServer(ctx, u, addrs[i+1])
		if s != nil {
			st.addServer(u.Name, s)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range st.scenario.Files {
		if err := st.write(d); err != nil {
			return err
		}
	}
	return nil
}

// close ends all that runs. What an upstream got that it should not have is an error.
func (st *run) close() error {
	var errs []error
	if st.agent != nil {
		errs = append(errs, st.agent.Close())
	}
	for _, s := range st.servers {
		s.stop()
		errs = append(errs, s.fault)
	}
	for _, a := range st.queries {
		a.done.Wait()
	}
	return errors.Join(errs...)
}

func (st *run) write(d scenarioFile) error {
	body, err := st.fill(d.text)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(st.dir, d.name), []byte(body), 0o600); err != nil {
		return fmt.Errorf("writing a file of the scenario: %w", err)
	}
	return nil
}

// placeholder is $NAME, $NAME.ip or $NAME.port.
var placeholder = regexp.MustCompile(`\$[a-z][a-z0-9]*(\.ip\b|\.port\b)?`)

// reserved are the placeholders that are no upstream.
var reserved = []string{"dir", "ca", "cert", "key", "listen", "tls", "https", "n"}

// fill puts in what the placeholders in a block of lines stand for.
func (st *run) fill(t text) (string, error) {
	lines := strings.Split(t.body, "\n")
	for i, line := range lines {
		var err error
		if lines[i], err = st.replace(line); err != nil {
			return "", withLine(st.scenario, t.line+i, err)
		}
	}
	return strings.Join(lines, "\n"), nil
}

func (st *run) replace(line string) (string, error) {
	var unknown error
	line = placeholder.ReplaceAllStringFunc(line, func(word string) string {
		name, part, _ := strings.Cut(word[1:], ".")
		addr, ok := st.address(name)
		switch {
		case ok && part == "ip":
			return addr.Addr().String()
		case ok && part == "port":
			return fmt.Sprint(addr.Port())
		case ok:
			return addr.String()
		}
		if file, ok := st.file(name); ok && part == "" {
			return file
		}
		unknown = fmt.Errorf("%s stands for nothing; write the $NAME of an upstream, or one of $%s", word, strings.Join(reserved, ", $"))
		return word
	})
	return line, unknown
}

func (st *run) address(name string) (netip.AddrPort, bool) {
	switch name {
	case "listen":
		return st.listen, true
	case "tls":
		return st.tlsAddr(), true
	case "https":
		return st.httpsAddr(), true
	}
	st.mu.RLock()
	defer st.mu.RUnlock()
	if s := st.servers[name]; s != nil {
		return s.addr, true
	}
	return netip.AddrPort{}, false
}

// addServer makes a server known. Those that run already may look for it, because a query
// may come to an address that an earlier scenario has used.
func (st *run) addServer(name string, s *server) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.servers[name] = s
}

func (st *run) file(name string) (string, bool) {
	switch name {
	case "dir":
		return st.dir, true
	case "ca":
		return filepath.Join(st.dir, caFile), true
	case "cert":
		return filepath.Join(st.dir, certFile), true
	case "key":
		return filepath.Join(st.dir, keyFile), true
	}
	return "", false
}

// waitFor looks until holds gives nil. The error is the last look's.
func (st *run) waitFor(ctx context.Context, holds func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		err := holds()
		if err == nil {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return err
		}
	}
}
