package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// rootModule is the line that tells the tree's own go.mod from the nested
// ones below it.
const rootModule = "module github.com/nodens-dns/nodens"

// tool says where a program comes from.
type tool struct {
	// module is the nested module's folder, relative to the tree's root.
	module string
	// pkg is the main package.
	pkg string
	// versioned programs compare their versions with each other's and get
	// them at link time.
	versioned bool
}

// tools are the programs that are built once and kept.
var tools = map[string]tool{
	"coredns":                 {module: "test/coredns", pkg: "github.com/coredns/coredns"},
	"etcd":                    {module: "test/cluster", pkg: "go.etcd.io/etcd/server/v3"},
	"helm":                    {module: "test/helm", pkg: "helm.sh/helm/v3/cmd/helm"},
	"kube-apiserver":          {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", versioned: true},
	"kube-controller-manager": {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", versioned: true},
	"kube-proxy":              {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kube-proxy", versioned: true},
	"kube-scheduler":          {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", versioned: true},
	"kubectl":                 {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kubectl", versioned: true},
	"kubelet":                 {module: "test/cluster", pkg: "k8s.io/kubernetes/cmd/kubelet", versioned: true},
}

// errUnknown says that a program has no entry in tools.
var errUnknown = errors.New("no such program; package peer lists them in tools")

// Build returns the path of the named program, after building it if no kept
// binary fits. It blocks for as long as the build takes, minutes for a first
// kube-apiserver. The test fails if the program cannot be built, and is
// skipped under -short unless the program is the agent, which is always
// quick to build.
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

// Binary is Build for callers without a test, such as TestMain. The agent's
// binary is written to dir, which the caller owns; the other programs are
// kept outside of it.
func Binary(ctx context.Context, name, dir string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	if name == "nodens" {
		out := filepath.Join(dir, name)
		if err := agent(ctx, root, out); err != nil {
			return "", fmt.Errorf("building %s: %w", name, err)
		}
		return out, nil
	}
	t, ok := tools[name]
	if !ok {
		return "", fmt.Errorf("building %s: %w", name, errUnknown)
	}
	path, err := t.kept(ctx, root, name)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return path, nil
}

// Root returns the folder of the tree's own go.mod, looked for from the
// working directory upwards; a test's working directory is its package.
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

// agent builds the agent and writes it to out. Linking takes longer than all else that
// there is to do after a small change, and the go command leaves a file as it is that
// needs none: so one is kept, which is the last that any tree has built, and copied.
func agent(ctx context.Context, root, out string) error {
	store, err := store()
	if err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(store, "nodens.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(store, "nodens")
	// A build that is stopped half way must not leave its file under this name.
	part := path + ".part"
	if err := errors.Join(os.RemoveAll(part), ifThere(os.Rename(path, part))); err != nil {
		return err
	}
	// With the tree's folder in it the binary would be another one for each tree.
	if err := compile(ctx, root, part, []string{"-trimpath", "./cmd/nodens"}); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o755)
}

// ifThere is the error, unless it says that there is no file.
func ifThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// kept returns the kept binary, building it first if there is none.
func (t tool) kept(ctx context.Context, root, name string) (string, error) {
	module := filepath.Join(root, t.module)
	args, err := t.args(module)
	if err != nil {
		return "", err
	}
	key, err := key(module, args)
	if err != nil {
		return "", err
	}
	return keep(name, key, func(part string) error { return compile(ctx, module, part, args) })
}

// keep returns the binary that is kept under the name and key, after building it if
// there is none. Other processes that want the same name wait meanwhile.
func keep(name, key string, build func(part string) error) (string, error) {
	store, err := store()
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(store, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(store, name+"-"+key)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	// A build that is stopped half way must not leave a file under the
	// name that says it is whole.
	part := path + ".part"
	defer os.Remove(part)
	if err := build(part); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

// args are the build's arguments after the ones that every build has.
func (t tool) args(module string) ([]string, error) {
	flags := []string{"-s", "-w"}
	if t.versioned {
		version, err := required(module, "k8s.io/kubernetes")
		if err != nil {
			return nil, err
		}
		flags = append(flags, stamp(version)...)
	}
	return []string{"-trimpath", "-ldflags", strings.Join(flags, " "), t.pkg}, nil
}

// stamp gives the linker's settings of a Kubernetes version such as v1.36.3.
// A binary without them takes itself for v0.0.0, and other components refuse
// to work with it.
func stamp(version string) []string {
	part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(part) < 2 {
		part = []string{"", ""}
	}
	values := []string{
		"gitVersion=" + version,
		"gitMajor=" + part[0],
		"gitMinor=" + part[1],
		"gitTreeState=clean",
		"gitCommit=" + version,
		// Any moment will do; a fixed one keeps the binary the same.
		"buildDate=1970-01-01T00:00:00Z",
	}
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range values {
			flags = append(flags, "-X "+pkg+"."+v)
		}
	}
	return flags
}

// required returns the version of dep that the module's go.mod asks for.
func required(module, dep string) (string, error) {
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(strings.TrimPrefix(line, "require"))
		if len(f) >= 2 && f[0] == dep && strings.HasPrefix(f[1], "v") {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", filepath.Join(module, "go.mod"), dep)
}

// key is a hash of all that the binary depends on.
func key(module string, args []string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(text))
		h.Write(text)
	}
	fmt.Fprintf(h, "%s %s %s %q", runtime.Version(), runtime.GOOS, runtime.GOARCH, args)
	// 64 bits: the store holds a handful of files, a clash needs billions.
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// store returns the folder of the kept binaries, and makes it: $NODENS_CACHE,
// or nodens in the user's cache folder.
func store() (string, error) {
	dir := os.Getenv("NODENS_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder to keep binaries in, set NODENS_CACHE: %w", err)
		}
		dir = filepath.Join(base, "nodens")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// lock holds the file's lock until the returned function is called or the
// process ends. It blocks while another process holds it.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// compile runs go build in dir.
func compile(ctx context.Context, dir, out string, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", out}, args...)...)
	cmd.Dir = dir
	// GOFLAGS could name another -mod, GOWORK another set of modules.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build in %s: %w\n%s", dir, err, text)
	}
	return nil
}
