package migrate

import (
	"bufio"
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodens-dns/nodens/internal/file"
)

const (
	// maxBytes bounds the input. The relevant objects have some 20 KiB; all ConfigMaps of a
	// large cluster have some megabytes.
	maxBytes = 32 << 20
	// maxObjects bounds the number of objects.
	maxObjects = 10000
)

// defaultKinds are the kinds of objects that are kept; others are skipped.
var defaultKinds = []string{"DaemonSet", "Deployment", "ConfigMap", "Service", "KubeletConfiguration", "PodMonitor"}

// object is an object as it was written. Fields are looked up by name, so unknown ones are
// kept.
type object map[string]any

// Objects are the objects that have been read. The zero value is empty. It is not safe for
// concurrent use.
type Objects struct {
	list []object
	// index has positions in list by kind and name; size is the number of bytes read.
	index map[string]int
	size  int
	// OnRead is called with the bytes of each file, unless it is nil.
	OnRead func(name string, text []byte)
	// live says that the objects come from an API server.
	live bool
	// kinds are the kinds to keep; nil is defaultKinds.
	kinds []string
}

// Files reads files, and the .yaml, .yml and .json files of directories; "-" is stdin.
// Errors name the file and the document.
func (o *Objects) Files(paths []string, stdin io.Reader) error {
	for _, path := range paths {
		if path == "-" {
			if err := o.Read("standard input", stdin); err != nil {
				return err
			}
			continue
		}
		files, err := listFiles(path)
		if err != nil {
			return fmt.Errorf("-f %s: %w", path, err)
		}
		for _, name := range files {
			if err := o.readFile(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// listFiles returns path, or the manifests in it if it is a directory.
func listFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(e.Name()))) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, errors.New("the directory has no .yaml, .yml or .json file")
	}
	return files, nil
}

func (o *Objects) readFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return o.Read(name, f)
}

// Read reads YAML or JSON: one document or several, single objects or lists. Its errors
// begin with name.
func (o *Objects) Read(name string, r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, int64(maxBytes-o.size)+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if o.size += len(text); o.size > maxBytes {
		return fmt.Errorf("%s: more than %d MiB in all; pass only the objects of NodeLocal DNSCache", name, maxBytes>>20)
	}
	if o.OnRead != nil {
		o.OnRead(name, text)
	}
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var trees []any
		if err == nil {
			trees, err = parseDocument(doc)
		}
		for _, tree := range trees {
			if err == nil {
				err = o.add(tree, object{})
			}
		}
		if err != nil {
			return fmt.Errorf("%s, document %d: %w", name, n, err)
		}
	}
}

// parseDocument parses one document: an object in YAML, or one or more in JSON. Integers stay integers.
func parseDocument(doc []byte) (trees []any, err error) {
	doc = bytes.TrimPrefix(doc, []byte("\ufeff")) // a byte order mark, as Windows programs write
	values := file.JSONValues(doc)
	if values == nil {
		// The comment keeps ToJSON from taking YAML that begins with a brace for JSON.
		if doc, err = yaml.ToJSON(append([]byte("#\n"), doc...)); err != nil {
			return nil, err
		}
		values = []stdjson.RawMessage{doc}
	}
	trees = make([]any, len(values))
	for i, value := range values {
		if err := json.Unmarshal(value, &trees[i]); err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// add adds an object or the items of a list. Items of a typed list need not repeat their
// kind.
func (o *Objects) add(tree any, list object) error {
	if tree == nil {
		return nil
	}
	m, ok := tree.(map[string]any)
	if !ok {
		return errors.New("not a Kubernetes object")
	}
	obj := object(m)
	if obj.text("kind") == "" && list.text("kind") != "" {
		obj["kind"], obj["apiVersion"] = strings.TrimSuffix(list.text("kind"), "List"), list["apiVersion"]
	}
	if !strings.HasSuffix(obj.text("kind"), "List") {
		return o.store(obj)
	}
	for i, item := range obj.list("items") {
		if err := o.add(item, obj); err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
	}
	return nil
}

// With returns o's objects and those of a manifest, which replace o's.
func (o *Objects) With(manifest []byte) *Objects {
	all := &Objects{live: o.live, kinds: o.kinds}
	for _, obj := range o.list {
		_ = all.store(obj) // o has no more than all may have
	}
	_ = all.Read("the manifest", bytes.NewReader(manifest)) // it was printed from objects
	return all
}

// store keeps an object if its kind is wanted.
func (o *Objects) store(obj object) error {
	wanted := o.kinds
	if wanted == nil {
		wanted = defaultKinds
	}
	switch kind := obj.text("kind"); {
	case kind == "":
		return errors.New("not a Kubernetes object: it has no kind")
	case !slices.Contains(wanted, kind) || o.replace(obj):
		return nil
	case len(o.list) == maxObjects:
		return fmt.Errorf("more than %d objects; pass only the objects of NodeLocal DNSCache", maxObjects)
	}
	if o.index == nil {
		o.index = make(map[string]int)
	}
	o.index[obj.describe()] = len(o.list)
	o.list = append(o.list, obj)
	return nil
}

// replace replaces the object of the same kind and name, as applying both would. It reports
// whether there is one.
func (o *Objects) replace(obj object) bool {
	i, ok := o.index[obj.describe()]
	if ok {
		o.list[i] = obj
	}
	return ok
}

// get returns the object of that kind and name, nil if there is none. namespace "" is any.
func (o *Objects) get(kind, namespace, name string) object {
	for _, obj := range o.list {
		if obj.text("kind") == kind && obj.name() == name && obj.inNamespace(namespace) {
			return obj
		}
	}
	return nil
}

// value returns the value at path, nil if there is none.
func (o object) value(path ...string) any {
	var v any = map[string]any(o)
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func (o object) text(path ...string) string {
	s, _ := o.value(path...).(string)
	return s
}

func (o object) list(path ...string) []any {
	l, _ := o.value(path...).([]any)
	return l
}

// child returns the object at path, nil if there is none. Changes to it change o.
func (o object) child(path ...string) object {
	m, _ := o.value(path...).(map[string]any)
	return m
}

// ensure is child, but creates what is missing.
func (o object) ensure(path ...string) object {
	for _, key := range path {
		m, ok := o[key].(map[string]any)
		if !ok {
			m = make(map[string]any)
			o[key] = m
		}
		o = m
	}
	return o
}

// children returns the objects in the list at path.
func (o object) children(path ...string) []object {
	var list []object
	for _, item := range o.list(path...) {
		if m, ok := item.(map[string]any); ok {
			list = append(list, m)
		}
	}
	return list
}

func (o object) texts(path ...string) []string {
	var list []string
	for _, item := range o.list(path...) {
		list = append(list, fmt.Sprint(item))
	}
	return list
}

func (o object) name() string      { return o.text("metadata", "name") }
func (o object) namespace() string { return o.text("metadata", "namespace") }

// inNamespace reports whether o is in the namespace; an object without a namespace is in
// any.
func (o object) inNamespace(namespace string) bool {
	return namespace == "" || o.namespace() == "" || o.namespace() == namespace
}

// describe returns the kind and name of o for notes and errors.
func (o object) describe() string {
	return o.text("kind") + " " + strings.TrimPrefix(o.namespace()+"/"+o.name(), "/")
}

// clone returns a deep copy.
func (o object) clone() object {
	c, _ := deepCopy(map[string]any(o)).(map[string]any)
	return c
}

func deepCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for key, item := range v {
			c[key] = deepCopy(item)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, item := range v {
			c[i] = deepCopy(item)
		}
		return c
	}
	return v
}
