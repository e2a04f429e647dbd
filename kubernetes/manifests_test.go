// Internal: fuzzes the reader of manifests.

package kubernetes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/testlog"
)

// An object in each of the forms that files hold it in.
const (
	asYAML = `# a comment
apiVersion: v1
kind: Service
metadata: {name: x}
spec: {clusterIP: 10.0.0.1}
---
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
`
	asJSON = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "default"}, "spec": {"clusterIP": "10.0.0.1"}}`
	asDump = `apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
- apiVersion: v1
  kind: Service
  metadata: {name: x, namespace: default, uid: abc, managedFields: [{manager: kubectl}]}
  spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], internalTrafficPolicy: Cluster, unknownField: 1}
  status: {loadBalancer: {}}
`
	asTypedList = `{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "x", "namespace": "default"}, "spec": {"clusterIP": "10.0.0.1"}}]}`
	asFlow      = `{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIP: 10.0.0.1}}`
)

func TestManifestForms(t *testing.T) {
	for name, text := range map[string]string{
		"YAML": asYAML, "JSON": asJSON, "dump": asDump, "typed list": asTypedList, "flow": asFlow,
		"CRLF": strings.ReplaceAll(asYAML, "\n", "\r\n"), "JSON after JSON": `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}` + "\n" + asJSON,
	} {
		t.Run(name, func(t *testing.T) {
			v := openText(t, testConfig(t), text)
			if !v.Synced() {
				t.Error("not synced")
			}
			if z := NewZone(v, testConfig(t)); !resolves(t, z, x, "10.0.0.1") {
				t.Errorf("the service does not resolve: %+v", v.Stats())
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	// A rename, as editors and ConfigMap mounts do it: no reader sees half of it.
	noError(t, os.WriteFile(file+".tmp", []byte(text), 0o600))
	noError(t, os.Rename(file+".tmp", file))
}

func TestManifestsAreFollowed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "x.yaml"), asYAML)
	write(t, filepath.Join(dir, "README.md"), "no manifest")
	write(t, filepath.Join(dir, ".hidden.yaml"), "no manifest")
	cfg := testConfig(t)
	cfg.Manifests = []string{dir}
	log := new(testlog.Buffer)
	v, err := Open(cfg, Options{PollInterval: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))})
	noError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	defer func() {
		cancel()
		<-done
	}()
	z := NewZone(v, cfg)
	write(t, filepath.Join(dir, "y.json"), strings.NewReplacer(`"x"`, `"y"`, "10.0.0.1", "10.0.0.2").Replace(asJSON))
	poll.Until(t, "a new file", func() bool { return resolves(t, z, y, "10.0.0.2") })

	write(t, filepath.Join(dir, "x.yaml"), strings.Replace(asYAML, "10.0.0.1", "10.0.0.3", 1)+"---\nkind: Service\nmetadata: [\n")
	poll.Until(t, "the complaint", func() bool { return strings.Contains(log.String(), "manifests unreadable") })
	if got := log.String(); !strings.Contains(got, "x.yaml, document 4: ") {
		t.Errorf("the log does not say where:\n%s", got)
	}
	if !resolves(t, z, x, "10.0.0.1") || !resolves(t, z, y, "10.0.0.2") {
		t.Error("a bad file changed what was known")
	}

	write(t, filepath.Join(dir, "x.yaml"), strings.Replace(asYAML, "10.0.0.1", "10.0.0.3", 1))
	poll.Until(t, "the mended file", func() bool { return resolves(t, z, x, "10.0.0.3") })
	if n := strings.Count(log.String(), "manifests unreadable"); n != 1 {
		t.Errorf("one bad file is logged %d times", n)
	}
	noError(t, os.Remove(filepath.Join(dir, "y.json")))
	poll.Until(t, "a file to go", func() bool { return resolves(t, z, y) })
}

func TestManifestGlob(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), asYAML)
	write(t, filepath.Join(dir, "b.txt"), strings.Replace(asYAML, "{name: x}", "{name: other}", 1))
	cfg := testConfig(t)
	cfg.Manifests = []string{filepath.Join(dir, "[ab].*")}
	v, err := Open(cfg, Options{})
	noError(t, err)
	if st := v.Stats(); st.Services != 2 {
		t.Errorf("%d services, want 2", st.Services)
	}
}

// TestNoManifests: a folder without manifests is a warning, and its files count when they come.
func TestNoManifests(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "x.txt"), asYAML)
	cfg := testConfig(t)
	cfg.Manifests = []string{dir}
	log := new(testlog.Buffer)
	v, err := Open(cfg, Options{PollInterval: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))})
	noError(t, err)
	if got := log.String(); v.Synced() || !strings.Contains(got, "no manifests yet") || !strings.Contains(got, dir) {
		t.Errorf("synced: %v; the log:\n%s", v.Synced(), got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { v.Run(ctx); close(done) }()
	write(t, filepath.Join(dir, "x.yaml"), asYAML)
	z := NewZone(v, cfg)
	poll.Until(t, "the first file", func() bool { return resolves(t, z, x, "10.0.0.1") })
	cancel()
	<-done
}

func TestManifestErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no object":   {"just a string", "document 1: not a Kubernetes object"},
		"no kind":     {asJSON + "\n---\nmetadata: {name: x}\n", "document 2: no kind"},
		"no name":     {"kind: Service\nspec: {clusterIP: 10.0.0.1}\n", "document 1: no name"},
		"wrong type":  {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 7}\n", "document 1: reading a Service"},
		"bad item":    {"kind: List\nitems:\n- {apiVersion: v1, kind: Secret}\n- 5\n", "document 1: item 2: not a Kubernetes object"},
		"bad YAML":    {"kind: [\n", "document 1: "},
		"no document": {"a\x00b", "document 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "m.yaml")
			write(t, file, c.text)
			cfg := testConfig(t)
			cfg.Manifests = []string{file}
			if _, err := Open(cfg, Options{}); err == nil || !strings.Contains(err.Error(), "m.yaml, "+c.want) {
				t.Errorf("error %v, want it to say %s", err, c.want)
			}
		})
	}
}

// Any bytes are an error or objects, and queries keep working.
func FuzzManifest(f *testing.F) {
	for _, s := range []string{asYAML, asJSON, asDump, asTypedList, asFlow, cluster, "kind: List\nitems: [null]", "---\n---"} {
		f.Add(s)
	}
	cfg := testConfig(f)
	m := openManifestFile(f, cfg, asYAML)
	f.Fuzz(func(t *testing.T, text string) {
		var all objectLists
		if len(text) > 1<<16 || m.readFile([]byte(text), &all) != nil {
			return
		}
		v := emptyView()
		for r := range numResources {
			for _, o := range all[r] {
				handlerFixture{v, r}.put(o.(metav1.Object))
			}
		}
		if _, outcome, _ := ask(t, NewZone(v, cfg), x, dns.TypeA); outcome == NotSynced {
			t.Error("a view of manifests is not synced")
		}
	})
}

// openManifestFile returns the source of one file.
func openManifestFile(t testing.TB, cfg *config.Kubernetes, text string) *manifestSource {
	t.Helper()
	m, ok := openText(t, cfg, text).source.(*manifestSource)
	if !ok {
		t.Fatal("the view has another source")
	}
	return m
}
