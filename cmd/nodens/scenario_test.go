//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app"
	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/scenario"
	"github.com/nodens-dns/nodens/test/scrape"
	"github.com/nodens-dns/nodens/test/testlog"
)

// parallelScenarios is how many scenarios run at once. They wait more than they compute.
const parallelScenarios = "4"

// playInParallel runs parallelScenarios tests at once, unless -parallel is given.
func playInParallel() {
	flag.Parse()
	parallel := flag.Lookup("test.parallel")
	if parallel.Value.String() != parallel.DefValue {
		return
	}
	if err := parallel.Value.Set(parallelScenarios); err != nil {
		panic(err)
	}
}

// absent are the features that scenarios may need and that are not there yet.
var absent = []string{}

// TestScenarios plays the files of test/scenario/testdata, each against an agent of
// its own. When all have ended nothing of them is left: no goroutine, no open file.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("../../test/scenario/testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	peer.Ports(t, 1) // opens the file with the locks of ports, which stays open
	goroutines, open := runtime.NumGoroutine(), openFiles(t)
	t.Run("files", func(t *testing.T) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				t.Parallel()
				play(t, file)
			})
		}
	})
	for range int(agenttest.Timeout / leakPause) {
		if runtime.NumGoroutine() <= goroutines && openFiles(t) <= open {
			return
		}
		time.Sleep(leakPause)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	t.Errorf("of %d goroutines there are %d, of %d open files %d:\n%s", goroutines, runtime.NumGoroutine(), open, openFiles(t), stacks)
}

// leakPause is between two looks at what is left.
const leakPause = 20 * time.Millisecond

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	check.NoError(t, err)
	return len(list)
}

// play plays one file.
func play(t *testing.T, file string) {
	t.Helper()
	sc, err := scenario.Load(file)
	check.NoError(t, err)
	if i := slices.IndexFunc(sc.Needs, func(f string) bool { return slices.Contains(absent, f) }); i >= 0 {
		t.Skipf("needs %s", sc.Needs[i])
	}
	var a *actor
	start := func(ctx context.Context, s scenario.Setup) (scenario.Agent, error) {
		var err error
		if a, err = newActor(ctx, s); err != nil {
			return nil, err
		}
		return a, nil
	}
	if err := scenario.Run(t.Context(), sc, t.TempDir(), start); err != nil {
		t.Errorf("%s: %v", sc.Title, err)
		if a != nil {
			t.Logf("the agent's log:\n%s", a.Log())
		}
	}
}

// actor is an agent in this process whose cache has a clock that the test sets.
type actor struct {
	opts   options.Agent
	log    *testlog.Buffer
	now    atomic.Int64
	reload chan os.Signal
	stop   context.CancelFunc
	ended  chan error
}

func newActor(ctx context.Context, s scenario.Setup) (*actor, error) {
	return newActorWith(ctx, s, false)
}

// newActorWith is newActor for an agent whose queries all begin on a worker, if startWaiting
// is set.
func newActorWith(ctx context.Context, s scenario.Setup, startWaiting bool) (*actor, error) {
	a := &actor{log: new(testlog.Buffer), reload: make(chan os.Signal, 1), ended: make(chan error, 1)}
	a.now.Store(int64(time.Hour)) // later than the zero of an entry that was never stored
	conf := filepath.Join(s.Dir, "Corefile")
	if err := os.WriteFile(conf, []byte(s.Corefile), 0o600); err != nil {
		return nil, err
	}
	port, err := peer.Port()
	if err != nil {
		return nil, err
	}
	f, err := parseFlags(append([]string{
		"-conf", conf, fmt.Sprintf("-metrics-listen-address=127.0.0.1:%d", port),
		"-localip", s.Listen.Addr().String(), "-dns.port", fmt.Sprint(s.Listen.Port()),
		"-setupinterface=false", "-setupiptables=false", "-kubednscm=",
		"-admin-socket", filepath.Join(s.Dir, "admin.sock"),
	}, s.Flags...))
	if err != nil {
		return nil, err
	}
	a.opts = f.Agent
	a.opts.Reload, a.opts.StartWaiting = a.reload, startWaiting
	a.opts.CacheClock = func() time.Duration { return time.Duration(a.now.Load()) }
	ctx, a.stop = context.WithCancel(ctx)
	go func() { a.ended <- app.Serve(ctx, a.opts, a.log) }()
	return a, a.serves(ctx)
}

// serves waits until the agent serves; if it ends instead, that is the error.
func (a *actor) serves(ctx context.Context) error {
	serving := func() bool { return strings.Contains(a.Log(), "msg=serving") }
	err := a.until(ctx, "the agent to serve", func() bool { return serving() || len(a.ended) > 0 })
	if err == nil && serving() {
		return nil
	}
	a.stop()
	return errors.Join(err, <-a.ended)
}

func (a *actor) until(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, agenttest.Timeout)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting for %s", what)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (a *actor) Advance(by time.Duration) { a.now.Add(int64(by)) }

func (a *actor) Reload(ctx context.Context, corefile string) error {
	before := len(a.Log())
	if err := os.WriteFile(a.opts.Conf, []byte(corefile), 0o600); err != nil {
		return err
	}
	select {
	case a.reload <- syscall.SIGUSR1:
	default: // one is on its way
	}
	var outcome string
	err := a.until(ctx, "the reload", func() bool {
		for line := range strings.Lines(a.Log()[before:]) {
			if strings.Contains(line, `msg="reload: the`) && strings.HasSuffix(line, "\n") {
				outcome = line
			}
		}
		return outcome != ""
	})
	if err == nil && strings.Contains(outcome, "the old configuration stays") {
		err = errors.New(outcome)
	}
	return err
}

// Flush runs `nodens flush`.
func (a *actor) Flush(name string, subtree bool) (n int, err error) {
	var stdout, stderr bytes.Buffer
	args := []string{"flush", "--admin-socket", a.opts.AdminSocket, fmt.Sprintf("-subtree=%v", subtree), name}
	if code := run(context.Background(), args, &stdout, &stderr); code != exitOK {
		return 0, fmt.Errorf("exit code %d: %s", code, &stderr)
	}
	_, err = fmt.Sscanf(stdout.String(), "%d entries removed", &n)
	return n, err
}

func (a *actor) Metrics() (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: agenttest.Timeout}
	return scrape.Text(context.Background(), &client, "http://"+a.opts.MetricsAddr+"/metrics")
}

func (a *actor) Log() string { return a.log.String() }

func (a *actor) Close() error {
	a.stop()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(agenttest.Timeout):
		return errors.New("the agent does not end")
	}
}
