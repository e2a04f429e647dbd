package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/outage"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// manifestSource fills a view from files instead of an API server: YAML or JSON, one
// document or several, single objects or lists as printed by `kubectl get -o yaml`. It
// polls the files. When they change and all of them are valid, their objects replace the
// previous ones like a new list of each resource.
type manifestSource struct {
	view       *View
	paths      []string
	selector   labels.Selector
	withSlices bool
	decoder    runtime.Decoder
	interval   time.Duration

	stamp string // names, sizes and times of the files last read
	hash  [sha256.Size]byte
}

// manifestOutage are the messages of an outage of the files.
var manifestOutage = outage.Messages{
	Start:   "manifests unreadable, serving last known data",
	Ongoing: "manifests still unreadable",
	End:     "manifests readable again",
}

// defaultPollInterval is the default of [Options.PollInterval].
const defaultPollInterval = 2 * time.Second

func openManifestSource(v *View, cfg *config.Kubernetes, selector labels.Selector, poll time.Duration) (*manifestSource, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("kubernetes: registering API types: %w", err)
		}
	}
	m := &manifestSource{
		view: v, paths: cfg.Manifests, selector: selector, withSlices: !cfg.NoEndpoints,
		decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer(), interval: poll,
	}
	if m.interval <= 0 {
		m.interval = defaultPollInterval
	}
	if err := m.refresh(); err != nil {
		return nil, fmt.Errorf("kubernetes: manifests: %w", err)
	}
	if m.stamp == "" {
		v.log.Warn("no manifests yet: queries for the cluster's names fail", "paths", m.paths, "fix", "name a file, or a folder of .yaml, .yml or .json files")
	}
	return m, nil
}

func (m *manifestSource) run(ctx context.Context) {
	t := time.NewTicker(m.interval)
	defer t.Stop()
	failing := reflector.OutageParticipant{Resource: "manifests"}
	defer m.view.outages.Remove(&failing)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := m.refresh(); err != nil {
			m.view.outages.Fail(&failing, "manifests", manifestOutage, err)
		} else {
			m.view.outages.Recovered(&failing)
		}
	}
}

const (
	// maxManifest bounds a manifest in bytes, maxManifests all of a directive together. 10,000 Services with
	// their EndpointSlices have 20 MiB.
	maxManifest  = 32 << 20
	maxManifests = 64 << 20
)

// refresh reads the files if their names, sizes or times have changed, and updates the view
// if their content has changed.
func (m *manifestSource) refresh() error {
	files, stamp, err := m.files()
	if err != nil {
		return err
	}
	if stamp == m.stamp {
		return nil
	}
	texts := make([][]byte, len(files))
	sum := sha256.New()
	left := maxManifests
	for i, f := range files {
		if texts[i], err = filewatch.Read(f, maxManifest); err != nil {
			return fmt.Errorf("reading a manifest: %w", err)
		}
		if left -= len(texts[i]); left < 0 {
			return fmt.Errorf("reading a manifest: with %s, the %d manifests have more than %d MiB together", f, len(files), maxManifests>>20)
		}
		fmt.Fprintf(sum, "%q %d\n", f, len(texts[i]))
		sum.Write(texts[i])
	}
	if hash := [sha256.Size]byte(sum.Sum(nil)); hash != m.hash {
		if err := m.load(files, texts); err != nil {
			return err
		}
		m.hash = hash
	}
	m.stamp = stamp
	return nil
}

// files returns the manifests, directories expanded, with a stamp that changes when one is
// written, added or removed.
func (m *manifestSource) files() (files []string, stamp string, err error) {
	for _, path := range m.paths {
		names, err := expandPath(path)
		if err != nil {
			return nil, "", err
		}
		files = append(files, names...)
	}
	var b strings.Builder
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			return nil, "", fmt.Errorf("finding a manifest: %w", err)
		}
		fmt.Fprintf(&b, "%q %d %d\n", name, info.Size(), info.ModTime().UnixNano())
	}
	return files, b.String(), nil
}

// expandPath returns the files of one path of the option: a file, a directory, or a glob
// pattern.
func expandPath(path string) ([]string, error) {
	paths := []string{path}
	if _, err := os.Stat(path); err != nil && strings.ContainsAny(path, "*?[") {
		if paths, err = filepath.Glob(path); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", path, err)
		}
	}
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("finding a manifest: %w", err)
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		names, err := listManifests(p)
		if err != nil {
			return nil, err
		}
		files = append(files, names...)
	}
	return files, nil
}

// listManifests returns the manifests in dir by name. Subdirectories are skipped: the ones in
// a mounted ConfigMap hold the same files again.
func listManifests(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing a directory of manifests: %w", err)
	}
	var names []string
	for _, e := range entries {
		ext := strings.ToLower(filepath.Ext(e.Name()))
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue
		}
		names = append(names, filepath.Join(dir, e.Name()))
	}
	return names, nil
}

// objectLists are the objects of manifests by resource.
type objectLists [numResources][]runtime.Object

// load replaces the view's objects with the objects in the texts, unless one of these is invalid.
func (m *manifestSource) load(files []string, texts [][]byte) error {
	var all objectLists
	for i, text := range texts {
		if err := m.readFile(text, &all); err != nil {
			return fmt.Errorf("%s, %w", files[i], err)
		}
	}
	for _, r := range []resource{dnsPolicies, namespaces, pods, endpointSlices, services} {
		if r == endpointSlices && !m.withSlices || r == dnsPolicies && m.view.policies == nil {
			continue
		}
		s := handler{view: m.view, resource: r}
		s.BeginList()
		for _, obj := range all[r] {
			s.Upsert(obj, false)
		}
		s.EndList(0)
	}
	m.view.log.Info("manifests loaded", "files", len(files), "services", len(all[services]),
		"endpointslices", len(all[endpointSlices]), "namespaces", len(all[namespaces]))
	return nil
}

// readFile adds the objects of one file to all.
func (m *manifestSource) readFile(text []byte, all *objectLists) error {
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		values := file.JSONValues(doc)
		if err == nil && values == nil {
			// The comment keeps ToJSON from taking YAML that begins with a brace for JSON.
			doc, err = yaml.ToJSON(append([]byte("#\n"), doc...))
			values = []json.RawMessage{doc}
		}
		for _, value := range values {
			if err == nil {
				err = m.addDocument(value, all)
			}
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// addDocument adds one document: an object, a list of objects, or nothing.
func (m *manifestSource) addDocument(doc []byte, all *objectLists) error {
	var head struct {
		Kind  string
		Items []json.RawMessage
	}
	if doc = bytes.TrimSpace(doc); len(doc) == 0 || string(doc) == "null" {
		return nil
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if kind, ok := strings.CutSuffix(head.Kind, "List"); ok {
		for i, item := range head.Items {
			if err := m.addItem(item, kind, all); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	return m.addObject(doc, head.Kind, all)
}

// addItem adds an object of a list. Items of a typed list, such as a ServiceList, need not
// repeat their kind.
func (m *manifestSource) addItem(item []byte, listOf string, all *objectLists) error {
	var head struct{ Kind string }
	if err := json.Unmarshal(item, &head); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w", err)
	}
	if head.Kind == "" {
		head.Kind = listOf
	}
	return m.addObject(item, head.Kind, all)
}

// addObject adds one object, unless DNS doesn't use its kind.
func (m *manifestSource) addObject(text []byte, name string, all *objectLists) error {
	if name == "" {
		return errors.New("no kind")
	}
	r := slices.IndexFunc(kinds[:], func(k kind) bool { return k.inManifest == name })
	if r < 0 {
		return nil
	}
	obj, gvk := kinds[r].object(), kinds[r].version.WithKind(name)
	if _, _, err := m.decoder.Decode(text, &gvk, obj); err != nil {
		return fmt.Errorf("reading a %s: %w", name, err)
	}
	return m.addSelected(obj, resource(r), all)
}

// addSelected adds obj unless the selector excludes it. Like the API server, it sets the
// default namespace.
func (m *manifestSource) addSelected(obj runtime.Object, r resource, all *objectLists) error {
	o, ok := obj.(interface {
		GetName() string
		GetNamespace() string
		SetNamespace(string)
		GetLabels() map[string]string
	})
	if !ok {
		return errors.New("no metadata")
	}
	if o.GetName() == "" {
		return errors.New("no name")
	}
	if r != namespaces {
		if r != pods && r != dnsPolicies && !m.selector.Matches(labels.Set(o.GetLabels())) {
			return nil
		}
		if o.GetNamespace() == "" {
			o.SetNamespace(corev1.NamespaceDefault)
		}
	}
	all[r] = append(all[r], obj)
	return nil
}
