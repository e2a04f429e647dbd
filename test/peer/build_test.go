package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// writeGreeter writes a nested module with a program that prints a word.
func writeGreeter(t *testing.T) (root string, greeter tool) {
	t.Helper()
	root = t.TempDir()
	dir := filepath.Join(root, "nested")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module example.test/greeter\n\ngo 1.26\n",
		"go.sum":  "",
		"main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, tool{module: "nested", pkg: "example.test/greeter"}
}

// TestTool: of several callers one builds a program, which is kept until something changes
// that the build depends on.
func TestTool(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	root, greeter := writeGreeter(t)
	source := filepath.Join(root, "nested", "main.go")
	paths := make([]string, 3)
	var builds atomic.Int32
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			path, built, err := greeter.build(t.Context(), root, "greeter")
			if err != nil {
				t.Error(err)
			}
			if built {
				builds.Add(1)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if paths[0] != paths[1] || paths[0] != paths[2] || builds.Load() != 1 {
		t.Fatalf("%d builds of one program, kept as %q", builds.Load(), paths)
	}
	out, err := exec.Command(paths[0]).CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("the program printed %q, %v", out, err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(paths[0])), "*.part*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if path, built, err := greeter.build(t.Context(), root, "greeter"); path != paths[0] || built || err != nil {
		t.Errorf("a kept program: %s, built: %t, %v", path, built, err)
	}

	// A changed source is another program, and the caller gets the compiler's message.
	if err := os.WriteFile(source, []byte("broken"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := greeter.build(t.Context(), root, "greeter"); err == nil || !strings.Contains(err.Error(), "main.go") {
		t.Errorf("building a broken program: %v, want the compiler's message", err)
	}
}

// TestToolTest: a tool can be the test binary of a package.
func TestToolTest(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	root, greeter := writeGreeter(t)
	const text = "package main\n\nimport \"testing\"\n\nfunc TestGreeting(t *testing.T) {}\n"
	if err := os.WriteFile(filepath.Join(root, "nested", "main_test.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	greeter.test = true
	path, _, err := greeter.build(t.Context(), root, "greeter.test")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "-test.list=.").CombinedOutput()
	if err != nil || string(out) != "TestGreeting\n" {
		t.Errorf("the tests are %q, %v", out, err)
	}
}

// TestReleases: the programs of Kubernetes are built from each release's module, whose version is
// of that release. The newest release has the programs of the cluster. Other programs have no release.
func TestReleases(t *testing.T) {
	if got := InRelease("coredns", "v1.36"); got != "coredns" {
		t.Errorf("CoreDNS is %s in a release of Kubernetes", got)
	}
	newest := Releases()[len(Releases())-1]
	if got := InRelease("kubectl", newest); got != "kubectl" {
		t.Errorf("kubectl of %s is %s, and would be built twice", newest, got)
	}
	for _, release := range Releases() {
		for name, own := range tools {
			if own.module != clusterModule {
				continue
			}
			if got, ok := findTool(InRelease(name, release)); !ok || got.module != releases[release] || got.pkg != own.pkg {
				t.Errorf("%s in %s is %+v, %t", name, release, got, ok)
			}
		}
		version, err := ToolVersion(InRelease("e2e.test", release))
		if err != nil || !strings.HasPrefix(version, release+".") {
			t.Errorf("the tests of %s are of %q, %v", release, version, err)
		}
	}
	if _, ok := findTool("coredns-v1.36"); ok {
		t.Error("CoreDNS has a release of Kubernetes")
	}
}

// TestCacheKey: every file of the module and every argument changes the key.
func TestCacheKey(t *testing.T) {
	root, _ := writeGreeter(t)
	module := filepath.Join(root, "nested")
	seen := map[string]string{}
	add := func(change string, args ...string) {
		t.Helper()
		key, err := cacheKey(module, args)
		if err != nil {
			t.Fatal(err)
		}
		if same, ok := seen[key]; ok {
			t.Errorf("%s: the key is that of %s", change, same)
		}
		seen[key] = change
	}
	add("nothing")
	add("an argument", "-trimpath")
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		f, err := os.OpenFile(filepath.Join(module, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		add(name)
	}
}

// TestStopped: the end of the context stops a build, and the error says so.
func TestStopped(t *testing.T) {
	t.Setenv("NODENS_CACHE", t.TempDir())
	root, greeter := writeGreeter(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := greeter.build(ctx, root, "greeter"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// TestAgent: an agent that has not changed is not linked again, and each process gets a file
// of its own. What is left of a stopped build is not used. In one run of all tests the go command is
// called once.
func TestAgent(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("NODENS_CACHE", cache)
	t.Setenv(runVariable, "")
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	build := func() string {
		out := filepath.Join(t.TempDir(), "nodens")
		if err := buildAgent(t.Context(), root, out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := build()
	text, err := exec.Command(first, "-version").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := os.WriteFile(first, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(cache, "*", "nodens", "*", "nodens"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept agents: %q, %v, want one", kept, err)
	}
	if err := os.WriteFile(kept[0]+".part", []byte("half"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Linking would remove this from the end of the kept file.
	const mark = "still the same"
	f, err := os.OpenFile(kept[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(mark); err != nil {
		t.Fatal(err)
	}
	f.Close()
	second, err := os.ReadFile(build())
	if err != nil || !strings.HasSuffix(string(second), mark) {
		t.Errorf("the agent was linked again: %d bytes, %v", len(second), err)
	}
	t.Setenv(runVariable, "first run")
	build()
	t.Setenv("PATH", t.TempDir()) // without the go command
	if again, err := os.ReadFile(build()); err != nil || !bytes.Equal(again, second) {
		t.Errorf("the run's second agent has %d bytes, %v, want %d", len(again), err, len(second))
	}
	t.Setenv(runVariable, "second run")
	if err := buildAgent(t.Context(), root, filepath.Join(t.TempDir(), "nodens")); err == nil {
		t.Error("another run did not call the go command")
	}
}

// TestAgentOnce: a process builds the agent of a repository once. Each caller gets it, also after the
// first caller has removed its own; after a failed build, the next caller tries again.
func TestAgentOnce(t *testing.T) {
	var a agents
	dir := t.TempDir()
	builds := 0
	place := func(root, name string, failure error) string {
		t.Helper()
		out := filepath.Join(dir, name)
		err := a.place(root, out, func() error {
			builds++
			return errors.Join(failure, os.WriteFile(out, []byte("the agent of "+root), 0o755))
		})
		if !errors.Is(err, failure) {
			t.Fatalf("%s: error %v, want %v", name, err, failure)
		}
		text, err := os.ReadFile(out)
		if info, statErr := os.Stat(out); err != nil || statErr != nil || info.Mode().Perm()&0o100 == 0 {
			t.Fatalf("%s: %v, %v, %v", name, info, err, statErr)
		}
		return string(text)
	}
	place("a", "failed", errors.ErrUnsupported)
	for _, name := range []string{"first", "second", "after a removal", "last"} {
		if got := place("a", name, nil); got != "the agent of a" {
			t.Errorf("%s: %q", name, got)
		}
		if name == "second" {
			for _, gone := range []string{"first", "second"} {
				if err := os.Remove(filepath.Join(dir, gone)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got := place("b", "of another repository", nil); got != "the agent of b" {
		t.Errorf("of another repository: %q", got)
	}
	if builds != 3 {
		t.Errorf("%d builds, want 3: one failed, one for each of two repositories", builds)
	}
}

func TestBinaryUnknown(t *testing.T) {
	if _, err := Binary(t.Context(), "no-such-program", t.TempDir()); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v, want %v", err, ErrUnknown)
	}
}

// TestModules checks the table of tools: a program is a tool of its module, or the module's
// own main package, and a versioned one gets its version.
func TestModules(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for name := range tools {
		tl, ok := findTool(name)
		if !ok {
			t.Errorf("%s: not found", name)
		}
		module := filepath.Join(root, tl.module)
		text, err := os.ReadFile(filepath.Join(module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if tl.pkg == "." {
			_, err = os.Stat(filepath.Join(module, "main.go"))
		} else if !strings.Contains(string(text), tl.pkg+"\n") {
			err = fmt.Errorf("%s/go.mod has no tool %s", tl.module, tl.pkg)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		args, err := tl.args(module)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		hasVersion := strings.Contains(strings.Join(args, " "), "/version.gitVersion=v1.")
		if hasVersion != tl.versioned {
			t.Errorf("%s: arguments %q set a version: %t, want %t", name, args, hasVersion, tl.versioned)
		}
	}
}

// omittedPlugins are directives of nodens for which CoreDNS is built without a plugin: trace needs the libraries of
// Zipkin and Datadog, and changes no reply; the others are nodens' own.
var omittedPlugins = []string{"trace", "aaaa", "client_limit", "keep", "private_address", "rpz", "tunnel"}

// TestPlugins: CoreDNS has a plugin for each other directive of nodens, so that it reads the same
// Corefiles.
func TestPlugins(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, tools["coredns"].module, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range config.Directives() {
		if name == "prometheus" {
			name = "metrics" // the plugin's package
		}
		if has := strings.Contains(string(text), `/plugin/`+name+`"`); has == slices.Contains(omittedPlugins, name) {
			t.Errorf("CoreDNS is built with the plugin %s: %t, want %t", name, has, !has)
		}
	}
}
