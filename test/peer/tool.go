package peer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/toolcache"
)

// tool is a program of a nested module.
type tool struct {
	// module is the nested module's folder, relative to the repository's root.
	module string
	// pkg is the main package.
	pkg string
	// versioned programs have their version set at link time. Kubernetes' components
	// compare their versions with each other's.
	versioned bool
	// versionOf is the module whose version is the program's, for ToolVersion; "" if no test
	// asks for it.
	versionOf string
	// test programs are the package's test binary.
	test bool
}

// clusterModule has the components of the cluster in which most tests run, which is of the newest
// release.
const clusterModule = "test/cluster"

// ciliumModule has Cilium's programs.
const ciliumModule = "test/networks/cilium"

// releases are the minor releases of Kubernetes for test/conformance and make e2e-matrix, by their modules. For a new
// one, copy clusterModule to the folder of its present release. Then set the versions of Kubernetes,
// of its staging modules and of etcd in clusterModule, remove its indirect requirements, and run
// go mod tidy.
var releases = map[string]string{
	"v1.34": "test/cluster/v1.34",
	"v1.35": "test/cluster/v1.35",
	"v1.36": "test/cluster/v1.36",
	"v1.37": clusterModule,
}

// Releases returns the minor releases of Kubernetes whose components and tests can be built, such
// as v1.36, the oldest first.
func Releases() []string { return slices.Sorted(maps.Keys(releases)) }

// InRelease returns the name of the program as built from a release in [Releases]. For a program
// that is no part of Kubernetes' cluster, and for the release of clusterModule, it returns the
// name itself.
func InRelease(name, release string) string {
	if tools[name].module != clusterModule || releases[release] == clusterModule {
		return name
	}
	return name + "-" + release
}

// tools are the programs that are built once and kept.
var tools = map[string]tool{
	"actionlint":              {module: "test/actionlint", pkg: "github.com/rhysd/actionlint/cmd/actionlint"},
	"agnhost":                 {module: clusterModule, pkg: "k8s.io/kubernetes/test/images/agnhost"},
	"apparmor-profile":        {module: "test/kernels/apparmor", pkg: "."},
	"cilium-agent":            {module: ciliumModule, pkg: "github.com/cilium/cilium/daemon", versionOf: "github.com/cilium/cilium"},
	"cilium-cni":              {module: ciliumModule, pkg: "github.com/cilium/cilium/plugins/cilium-cni"},
	"cilium-operator":         {module: ciliumModule, pkg: "github.com/cilium/cilium/operator"},
	"coredns":                 {module: "test/coredns", pkg: "."},
	"e2e.test":                {module: clusterModule, pkg: "k8s.io/kubernetes/test/e2e", versioned: true, versionOf: "k8s.io/kubernetes", test: true},
	"etcd":                    {module: clusterModule, pkg: "go.etcd.io/etcd/server/v3"},
	"flannel":                 {module: "test/networks/flannel", pkg: ".", versionOf: "github.com/flannel-io/flannel"},
	"golangci-lint":           {module: "test/lint", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
	"gotestsum":               {module: "test/gotestsum", pkg: "gotest.tools/gotestsum"},
	"gremlins":                {module: "test/mutation/gremlins", pkg: "github.com/go-gremlins/gremlins/cmd/gremlins"},
	"helm":                    {module: "test/helm", pkg: "helm.sh/helm/v3/cmd/helm"},
	"kube-apiserver":          {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kube-apiserver", versioned: true},
	"kube-controller-manager": {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", versioned: true},
	"kube-router":             {module: "test/networks/kube-router", pkg: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router", versionOf: "github.com/cloudnativelabs/kube-router/v2"},
	"kube-proxy":              {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kube-proxy", versioned: true},
	"kube-scheduler":          {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kube-scheduler", versioned: true},
	"kubectl":                 {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kubectl", versioned: true},
	"kubelet":                 {module: clusterModule, pkg: "k8s.io/kubernetes/cmd/kubelet", versioned: true},
}

// maxTools is the number of binaries of one program that are kept: this clone's and one for
// another commit.
const maxTools = 2

// ErrUnknown means that a program has no entry in tools.
var ErrUnknown = errors.New("unknown program: package peer lists those it can build in tools")

// Tool returns the path of a program of another project, after building it if no binary is
// kept. built reports whether it was built. Tool blocks while another process builds a
// program of the same module, until ctx ends. The binary stays in place for as long as this
// process lives.
func Tool(ctx context.Context, name string) (path string, built bool, err error) {
	t, ok := findTool(name)
	if !ok {
		return "", false, fmt.Errorf("building %s: %w", name, ErrUnknown)
	}
	root, err := Root()
	if err == nil {
		path, built, err = t.build(ctx, root, name)
	}
	if err != nil {
		return "", false, fmt.Errorf("building %s: %w", name, err)
	}
	return path, built, nil
}

// findTool returns the tool of that name, which [InRelease] may have changed.
func findTool(name string) (t tool, ok bool) {
	for release, module := range releases {
		if module == clusterModule {
			continue
		}
		base, cut := strings.CutSuffix(name, "-"+release)
		if t, ok := tools[base]; cut && ok && t.module == clusterModule {
			t.module = module
			return t, true
		}
	}
	t, ok = tools[name]
	return t, ok
}

// build is Tool for the repository at root.
func (t tool) build(ctx context.Context, root, name string) (path string, built bool, err error) {
	module := filepath.Join(root, t.module)
	args, err := t.args(module)
	if err != nil {
		return "", false, err
	}
	key, err := cacheKey(module, args)
	if err != nil {
		return "", false, err
	}
	cache, err := toolcache.Open()
	if err != nil {
		return "", false, err
	}
	// The lock is not released before the process ends: see Tool.
	dir, _, err := cache.Use(ctx, toolcache.Entry{Name: name, Key: key, Limit: maxTools}, func(dir string) error {
		out := filepath.Join(dir, name)
		if cache.LinkFirstLayout(name, key, out) {
			return nil
		}
		built = true
		// The programs of a module share packages. Built at the same time, each would
		// compile them.
		unlock, err := cache.Lock(ctx, filepath.Base(t.module)+".lock")
		if err != nil {
			return err
		}
		defer unlock()
		return compile(ctx, module, out, t.command(), args)
	})
	return filepath.Join(dir, name), built, err
}

// command returns the go command that builds the tool.
func (t tool) command() string {
	if t.test {
		return "test"
	}
	return "build"
}

// args returns the arguments of the go command, except its first and -o.
func (t tool) args(module string) ([]string, error) {
	flags := []string{"-s", "-w"}
	if t.versioned {
		version, err := requiredVersion(module, "k8s.io/kubernetes")
		if err != nil {
			return nil, err
		}
		flags = append(flags, versionFlags(version)...)
	}
	// The linker removes the debugging information (-w). Without it from the start, compiling takes a fifth less CPU time.
	args := []string{"-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", strings.Join(flags, " "), t.pkg}
	if t.test {
		// Without -vet=off, go test -c also vets all dependencies.
		args = append([]string{"-c", "-vet=off"}, args...)
	}
	return args, nil
}

// ToolVersion returns the version of the module that the program name is built from.
func ToolVersion(name string) (string, error) {
	t, ok := findTool(name)
	if !ok || t.versionOf == "" {
		return "", fmt.Errorf("the version of %s: %w", name, ErrUnknown)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return requiredVersion(filepath.Join(root, t.module), t.versionOf)
}

// versionFlags returns the linker flags that set a Kubernetes version such as v1.36.3. A
// binary without them reports v0.0.0, and other components refuse to work with it.
func versionFlags(version string) []string {
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
		"buildDate=1970-01-01T00:00:00Z", // the present time would change the binary
	}
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range values {
			flags = append(flags, "-X "+pkg+"."+v)
		}
	}
	return flags
}

// requiredVersion returns the version of dep in the module's go.mod.
func requiredVersion(module, dep string) (string, error) {
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

// cacheKey returns a hash of everything that the binary depends on: the module's files, the
// Go version, the platform and the arguments.
func cacheKey(module string, args []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	h := sha256.New()
	for _, path := range append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(path), len(text))
		h.Write(text)
	}
	fmt.Fprintf(h, "%s %s %s %q", runtime.Version(), runtime.GOOS, runtime.GOARCH, args)
	return shortHash(h.Sum(nil)), nil
}

// shortHash returns 64 bits of a hash: enough for a cache of a few dozen entries.
func shortHash(sum []byte) string { return hex.EncodeToString(sum[:8]) }
