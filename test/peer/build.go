package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// rootModule is the first line of the main module's go.mod. Nested modules have another.
const rootModule = "module github.com/nodens-dns/nodens"

// Build returns the path of the named program, after building it if needed: the agent as it
// is now, or a tool (see [Tool]). It blocks during the build, which takes minutes for a first
// kube-apiserver. If the program can't be built, the test fails. Under -short, tests of
// programs other than the agent are skipped.
func Build(tb testing.TB, name string) string {
	tb.Helper()
	if testing.Short() && name != "nodens" {
		tb.Skipf("building %s takes minutes: skipped under -short", name)
	}
	path, err := Binary(tb.Context(), name, tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Binary is [Build] for callers without a test, such as TestMain. The agent's binary is in dir, which
// the caller owns; a process builds the agent once. The other programs stay in the cache.
func Binary(ctx context.Context, name, dir string) (string, error) {
	if name != "nodens" {
		path, _, err := Tool(ctx, name)
		return path, err
	}
	root, err := Root()
	out := filepath.Join(dir, name)
	if err == nil {
		err = ownAgents.place(root, out, func() error { return buildAgent(ctx, root, out) })
	}
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return out, nil
}

// ownAgents are the agents that this process has built. The repository does not change while tests run, and a build
// that finds nothing to do takes half a second of CPU time, as it reads all packages and the agent.
var ownAgents agents

// agents are built agents by the root of their repository. The zero value has none. It is safe for concurrent use.
type agents struct {
	mu     sync.Mutex
	byRoot map[string]builtAgent
}

// builtAgent is an agent that stays readable after its path was removed.
type builtAgent struct {
	file *os.File
	path string // of a copy that may exist no more
}

// place calls build, which writes the agent of the repository at root to out, or makes out another name of the agent
// that an earlier call has built. Nobody may write to out.
func (a *agents) place(root, out string, build func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	built, ok := a.byRoot[root]
	if ok && os.Link(built.path, out) == nil {
		return nil
	}
	write := build
	if ok {
		write = func() error { return copyExecutable(out, built.file) }
	}
	if err := write(); err != nil {
		return err
	}
	if !ok {
		var err error
		if built.file, err = os.Open(out); err != nil {
			return err
		}
	}
	if a.byRoot == nil {
		a.byRoot = make(map[string]builtAgent)
	}
	a.byRoot[root] = builtAgent{built.file, out}
	return nil
}

// copyExecutable writes the contents of file to out, a new program.
func copyExecutable(out string, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(file, 0, info.Size()))
	return errors.Join(err, to.Close())
}

// Root returns the folder of the main module's go.mod. It searches the working directory and
// the folders above it; the working directory of a test is its package's folder.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && firstLine(text) == rootModule {
			return dir, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod with %q above the working directory", rootModule)
		}
		dir = parent
	}
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return strings.TrimSpace(string(line))
}

// maxClones is the number of clones whose last agent is kept.
const maxClones = 6

// runVariable is set by test/clean.sh to a name of the run.
const runVariable = "NODENS_TEST_RUN"

// buildAgent builds the agent of the repository at root and writes it to out. The binary is
// kept for the next call: go build does not link a binary again that is up to date, and
// linking takes most of the time after a small change. In a run of all tests only the first process
// calls go build, which takes a second of CPU time even if there is nothing to do.
func buildAgent(ctx context.Context, root, out string) error {
	cache, err := toolcache.Open()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(root))
	key := shortHash(sum[:])
	dir, release, err := cache.Use(ctx, toolcache.Entry{Name: "nodens", Key: key, Limit: maxClones}, func(string) error { return nil })
	if err != nil {
		return err
	}
	defer release()
	unlock, err := cache.Lock(ctx, filepath.Join("nodens", key, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(dir, "nodens")
	if err := buildOnce(ctx, root, path); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o755)
}

// buildOnce builds the agent at path, unless another process of the same run has. Only one process at a
// time may call it. A build that is stopped halfway leaves no file under the name of a complete one.
func buildOnce(ctx context.Context, root, path string) error {
	run, part, builtBy := os.Getenv(runVariable), path+".part", filepath.Join(filepath.Dir(path), "run")
	if by, err := os.ReadFile(builtBy); err == nil && run != "" && string(by) == run {
		return nil
	}
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(builtBy)); err != nil {
		return err
	}
	if err := os.Rename(path, part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := compile(ctx, root, part, "build", []string{"-trimpath", "./cmd/nodens"}); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return os.WriteFile(builtBy, []byte(run), 0o644)
}

// BuildPackage builds the program in pkg, a directory of the main module such as ./cmd/x, and writes it to out,
// without the tables for debuggers. It uses the folder tmp beside out.
func BuildPackage(ctx context.Context, pkg, out string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return compile(ctx, root, out, "build", []string{"-trimpath", "-ldflags=-s -w", pkg})
}

// compile runs the go command in dir: build, or test with -c in args. Other files of the build go
// to the folder tmp beside out. When ctx ends, the go command and its compilers are killed; when
// this process ends, the go command is, and its compilers finish the packages that they have
// begun.
func compile(ctx context.Context, dir, out, command string, args []string) (err error) {
	tmp := filepath.Join(filepath.Dir(out), "tmp")
	if err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o755)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	cmd := exec.CommandContext(ctx, "go", append([]string{command, "-o", out}, args...)...)
	cmd.Dir = dir
	// GOFLAGS could contain another -mod, GOWORK another set of modules. With GOGC at 400, the compiler takes a sixth less
	// CPU time, and up to 2 GiB of memory.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOTMPDIR="+tmp, "GOGC=400")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The kernel sends Pdeathsig when the thread ends that started the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", command, dir, err, text)
	}
	return nil
}
