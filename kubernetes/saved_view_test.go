// Internal: compares indexes.

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/file"
)

// savedConfig is a view that is saved to path and can't reach its API server.
func savedConfig(t testing.TB, path string) *config.Kubernetes {
	cfg := testConfig(t)
	cfg.Manifests, cfg.Endpoint, cfg.Save = nil, "http://127.0.0.1:1", path
	return cfg
}

func openSaved(t *testing.T, cfg *config.Kubernetes) (*View, string) {
	t.Helper()
	var log bytes.Buffer
	v, err := Open(cfg, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Now: testClock, Node: "n1"})
	noError(t, err)
	return v, log.String()
}

// A restored view equals the saved one, and outdated events don't replace newer objects.
func TestSavedViewComesBack(t *testing.T) {
	for seed := range uint64(40) {
		path := filepath.Join(t.TempDir(), "view")
		cfg := savedConfig(t, path)
		cfg.Zonal = seed%2 == 0
		v, _ := openSaved(t, cfg)
		w := newWorld(seed)
		for range 80 {
			w.step(v)
		}
		noError(t, file.Replace(path, savedView{v}.writeSaved))
		back, _ := openSaved(t, cfg)
		if d := cmp.Diff(strings.Split(v.index.dump(), "\n"), strings.Split(back.index.dump(), "\n")); d != "" {
			t.Fatalf("seed %d: -before +after:\n%s", seed, d)
		}
		if !back.Synced() || back.serial.Load() != v.serial.Load() {
			t.Fatalf("seed %d: synced %v, serial %d, want %d", seed, back.Synced(), back.serial.Load(), v.serial.Load())
		}
	}
}

// A view without an API server answers from its file, and is saved when it stops.
func TestSavedViewServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	v, _ := openSaved(t, savedConfig(t, path))
	for i := range v.listed {
		v.listed[i].Store(true)
	}
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	handlerFixture{v, services}.put(makeService("a", "db", "None"))
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", "10.1.0.1"))
	v.mu.Lock()
	v.index.namespaces["\x01a"].complete = true
	v.index.recompute()
	v.mu.Unlock()
	run := func(v *View, until func() bool) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { v.Run(ctx); close(done) }()
		for !until() {
			time.Sleep(time.Millisecond)
		}
		cancel()
		<-done
	}
	run(v, func() bool { return true })
	for range 2 { // the second time it is saved by one that has never seen the server
		cfg := savedConfig(t, path)
		back, log := openSaved(t, cfg)
		if !strings.Contains(log, "saved view restored") {
			t.Fatalf("log: %s", log)
		}
		z := NewZone(back, cfg)
		for name, want := range map[string]string{
			"web.a.svc.cluster.local": "10.0.0.1", "db.a.svc.cluster.local": "10.1.0.1",
		} {
			if !resolves(t, z, name, want) {
				t.Errorf("%s is not %s", name, want)
			}
		}
		if msg, outcome, _ := ask(t, z, "none.a.svc.cluster.local", dns.TypeA); outcome != Answered || msg.Rcode != dns.RcodeNameError {
			t.Errorf("outcome %d", outcome)
		}
		handlerFixture{back, services}.put(makeService("a", "new", "10.0.0.2"))
		run(back, func() bool { return true })
	}
	cfg := savedConfig(t, path)
	last, _ := openSaved(t, cfg)
	if !resolves(t, NewZone(last, cfg), "new.a.svc.cluster.local", "10.0.0.2") {
		t.Error("the last change was not saved")
	}
}

// The topology zone from the API server is saved.
func TestSavedZone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	v, _ := openSaved(t, savedConfig(t, path))
	v.converter.zone = "z1"
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	back, log := openSaved(t, savedConfig(t, path))
	if back.converter.zone != "z1" || !back.Synced() {
		t.Errorf("zone %q, log %s", back.converter.zone, log)
	}
}

// An unusable file leaves the view empty and not synced, and the log says why.
func TestSavedViewRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "view")
	cfg := savedConfig(t, path)
	v, log := openSaved(t, cfg)
	if log != "" || v.Synced() {
		t.Errorf("without a file: synced %v, log %s", v.Synced(), log)
	}
	handlerFixture{v, services}.put(makeService("a", "web", "10.0.0.1"))
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	good, err := os.ReadFile(path)
	noError(t, err)
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct {
		text   []byte
		change func(*config.Kubernetes)
		want   string
	}{
		"empty":         {nil, nil, "truncated"},
		"cut off":       {good[:len(good)/2], nil, "checksum"},
		"flipped":       {flipped, nil, "checksum"},
		"other options": {good, func(c *config.Kubernetes) { c.EndpointPodNames = true }, "other options"},
		"other labels":  {good, func(c *config.Kubernetes) { c.Labels = "a=b" }, "other options"},
	} {
		t.Run(name, func(t *testing.T) {
			noError(t, os.WriteFile(path, c.text, 0o600))
			cfg := savedConfig(t, path)
			if c.change != nil {
				c.change(cfg)
			}
			v, log := openSaved(t, cfg)
			if v.Synced() || len(v.index.services) > 0 || !strings.Contains(log, c.want) {
				t.Errorf("synced %v, %d services, log %s", v.Synced(), len(v.index.services), log)
			}
		})
	}
}

// A missing directory is logged, and no temporary file remains.
func TestSaveFails(t *testing.T) {
	dir := t.TempDir()
	cfg := savedConfig(t, filepath.Join(dir, "gone", "view"))
	v, _ := openSaved(t, cfg)
	if err := file.Replace(v.saver.path, savedView{v}.writeSaved); err == nil {
		t.Error("saved into a folder that does not exist")
	}
	var objects []metav1.Object
	handlerFixture{v, services}.list(objects...)
	noError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	if err := file.Replace(filepath.Join(dir, "folder"), savedView{v}.writeSaved); err == nil {
		t.Error("saved over a folder")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
}

// Restored data that no source covers is dropped when the sources are complete.
func TestSavedViewIsReplaced(t *testing.T) {
	l := newLab(t, func(*config.Kubernetes) {})
	l.service("a", "db", true)
	l.service("b", "db", true)
	l.slice("a", "db", true, "10.1.0.1")
	v := l.view
	handlerFixture{v, endpointSlices}.put(makeSlice("a", "db", "db-1", "10.1.0.9"))
	handlerFixture{v, endpointSlices}.put(makeSlice("b", "db", "db-1", "10.1.0.8"))
	v.mu.Lock()
	v.index.namespaces["\x01a"].complete = true
	v.index.namespaces["\x01a"].reverseUsed.Store(1)
	v.index.level, v.scope.restored = levelAll, levelAll
	v.index.recompute()
	v.mu.Unlock()
	v.scope.level.Store(uint32(levelAll))
	l.keep.reconcile(l.ctx)
	l.want("db.a.svc.cluster.local", "10.1.0.9")
	l.reconcile()
	l.want("db.a.svc.cluster.local", "10.1.0.1")
	l.want("db.b.svc.cluster.local", "?")
}

// The fingerprint of a configuration is part of the file format: a file that an earlier
// agent has saved is still used.
func TestSavedViewFingerprint(t *testing.T) {
	cfg := savedConfig(t, "/nowhere")
	cfg.Endpoint, cfg.Labels, cfg.EndpointPodNames = "http://192.0.2.1", "a=b", true
	v, err := Open(cfg, Options{Node: "n1", Zone: "z1"})
	noError(t, err)
	const want = `{podNames:true zonal:false near:true hints:true node:n1 zone:z1} ["http://192.0.2.1" "" "" "a=b" "" %!q(bool=false) []]`
	if v.fingerprint != want {
		t.Errorf("fingerprint %s, want %s", v.fingerprint, want)
	}
}

// A view that was saved at the wide level by a version without the slices of others is not
// taken for complete; one of this version is.
func TestSavedViewWithoutForeignSlices(t *testing.T) {
	for foreign, want := range map[bool]level{true: levelWide, false: levelNode} {
		head := savedHead{Level: levelWide, Foreign: foreign}
		if got := head.level(); got != want {
			t.Errorf("with the slices of others %v: level %v, want %v", foreign, got, want)
		}
	}
	path := filepath.Join(t.TempDir(), "view")
	v, _ := openSaved(t, savedConfig(t, path))
	for class, labels := range map[sliceClass]map[string]string{
		headlessSlice: {corev1.IsHeadlessService: ""}, anySlice: {discoveryv1.LabelManagedBy: sliceController}, foreignSlice: nil,
	} {
		es := makeSlice("a", "db", fmt.Sprint("db-", class), "10.1.0.1")
		maps.Copy(es.Labels, labels)
		handlerFixture{v, endpointSlices}.put(es)
	}
	noError(t, file.Replace(path, savedView{v}.writeSaved))
	back, _ := openSaved(t, savedConfig(t, path))
	for name, sl := range v.index.slices {
		if have := back.index.slices[name]; have == nil || have.class != sl.class {
			t.Errorf("%s: %+v, want the class %d", name, have, sl.class)
		}
	}
}
