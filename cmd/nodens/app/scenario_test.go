package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/test/scenario"
)

// absent are the features that scenarios may need and that are not there yet.
var absent = []string{}

// TestScenarios plays the files of test/scenario/testdata, each against an agent of
// its own. When all have ended nothing of them is left: no goroutine, no open file.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("../../../test/scenario/testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1) // package signal keeps a goroutine from its first use on
	signal.Stop(usr1)
	goroutines, open := runtime.NumGoroutine(), openFiles(t)
	t.Run("files", func(t *testing.T) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				t.Parallel()
				play(t, file)
			})
		}
	})
	for range int(patience / leakPause) {
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
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// play plays one file.
func play(t *testing.T, file string) {
	t.Helper()
	sc, err := scenario.Load(file)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := scenario.Play(t.Context(), sc, t.TempDir(), start); err != nil {
		t.Errorf("%s: %v", sc.Title, err)
		if a != nil {
			t.Logf("the agent's log:\n%s", a.Log())
		}
	}
}

// actor is an agent in this process whose clock stands still.
type actor struct {
	agent *agent
	conf  string
	log   *log
	now   atomic.Int64
	stop  context.CancelFunc
	ended chan error
}

func newActor(ctx context.Context, s scenario.Setup) (*actor, error) {
	a := &actor{conf: filepath.Join(s.Dir, "Corefile"), log: new(log), ended: make(chan error, 1)}
	a.now.Store(int64(time.Hour)) // any moment but that at which nothing was kept yet
	if err := os.WriteFile(a.conf, []byte(s.Corefile), 0o600); err != nil {
		return nil, err
	}
	opts, err := parseFlags(append([]string{
		"-conf", a.conf, "-metrics-listen-address=", "-localip", s.Listen.Addr().String(), "-dns.port", fmt.Sprint(s.Listen.Port()),
		"-setupinterface=false", "-setupiptables=false", "-kubednscm=",
		"-admin-socket", filepath.Join(s.Dir, "admin.sock"),
	}, s.Flags...), io.Discard)
	if err != nil {
		return nil, err
	}
	cfg, err := opts.loadConfig()
	if err != nil {
		return nil, err
	}
	if a.agent, err = newAgent(opts, slog.New(slog.NewTextHandler(a.log, nil))); err != nil {
		return nil, err
	}
	a.agent.assembly.store = cache.NewStore(opts.cacheSize, cache.Options{
		Go:    a.agent.server.Go,
		Clock: func() time.Duration { return time.Duration(a.now.Load()) },
	})
	ctx, a.stop = context.WithCancel(ctx)
	go func() { a.ended <- a.agent.run(ctx, cfg) }()
	return a, a.serves(ctx)
}

// serves waits until the agent serves; if it ends instead, that is the error.
func (a *actor) serves(ctx context.Context) error {
	err := a.until(ctx, "the agent to serve", func() bool { return a.agent.serving.Load() || len(a.ended) > 0 })
	if err == nil && a.agent.serving.Load() {
		return nil
	}
	a.stop()
	return errors.Join(err, <-a.ended)
}

func (a *actor) until(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (a *actor) Advance(by time.Duration) { a.now.Add(int64(by)) }

func (a *actor) Reload(ctx context.Context, corefile string) error {
	before := len(a.Log())
	if err := os.WriteFile(a.conf, []byte(corefile), 0o600); err != nil {
		return err
	}
	select {
	case a.agent.usr1 <- syscall.SIGUSR1:
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

// Flush goes the way of `nodens flush`.
func (a *actor) Flush(name string, subtree bool) (n int, err error) {
	var stdout, stderr bytes.Buffer
	args := []string{"flush", "-socket", a.agent.opts.adminSocket, fmt.Sprintf("-subtree=%v", subtree), name}
	if code := Run(args, &stdout, &stderr); code != 0 {
		return 0, fmt.Errorf("exit code %d: %s", code, &stderr)
	}
	_, err = fmt.Sscanf(stdout.String(), "%d entries removed", &n)
	return n, err
}

func (a *actor) Metrics() (string, error) {
	w := httptest.NewRecorder()
	a.agent.metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String(), nil
}

func (a *actor) Log() string { return a.log.String() }

func (a *actor) Close() error {
	a.stop()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(patience):
		return errors.New("the agent does not end")
	}
}
