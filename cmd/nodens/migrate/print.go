package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

// lastApplied is where kubectl apply keeps what it was given.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// bookkeeping are the fields of metadata, and the annotations, that an API server or its
// clients write for themselves.
var bookkeeping = struct{ fields, annotations []string }{
	fields:      []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"},
	annotations: []string{lastApplied, "deprecated.daemonset.template.generation"},
}

// print gives all objects as YAML: rights before the Corefile that makes use of them, the
// DaemonSet last.
func (m *migration) print() ([]byte, error) {
	strict, err := decoder()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	late := func(o object) int {
		if o.text("kind") == "ConfigMap" {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(m.out, func(a, b object) int { return late(a) - late(b) })
	for _, obj := range append(m.out, m.pod.set) {
		tidy(obj)
		if err := m.verify(strict, obj); err != nil {
			return nil, err
		}
		text, err := marshal(obj)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", obj.where(), err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}

// tidy takes away what is the API server's.
func tidy(obj object) {
	delete(obj, "status")
	metadata := obj.sub("metadata")
	for _, field := range bookkeeping.fields {
		delete(metadata, field)
	}
	annotations := metadata.sub("annotations")
	for _, name := range bookkeeping.annotations {
		delete(annotations, name)
	}
	if annotations != nil && len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	if template := obj.sub("spec", "template", "metadata"); template != nil && template["creationTimestamp"] == nil {
		delete(template, "creationTimestamp")
	}
}

// decoder reads the kinds that are printed. A field that their types don't have is an
// error.
func decoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering API types: %w", err)
		}
	}
	return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Strict: true}), nil
}

// verify decodes obj by its type. A field that is not known may be a newer API's: it is
// noted, and stays.
func (m *migration) verify(strict runtime.Decoder, obj object) error {
	text, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("%s: %w", obj.where(), err)
	}
	_, _, err = strict.Decode(text, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		m.about(Todo, obj.where(), "it is printed with what the API types of this program don't know (%v); check that the API server does", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s is not what the Kubernetes API takes: %w", obj.where(), err)
	}
	return nil
}

// marshal writes obj as YAML. The texts of a ConfigMap are written as they are, whatever
// spaces and tabs they have: the library would put one with a tab, or with spaces at the
// end of a line, into one long line of escapes. What can't be written so is left to it.
func marshal(obj object) ([]byte, error) {
	usual, err := yaml.Marshal(obj)
	if err != nil || obj.text("kind") != "ConfigMap" {
		return usual, err
	}
	short := obj.clone()
	data := short.sub("data")
	var pairs []string
	for key := range data {
		// The last line break is the literal block's own; more than one, or none, would
		// need another mark than the bare bar.
		body, ok := strings.CutSuffix(data.text(key), "\n")
		if !ok || strings.HasSuffix(body, "\n") {
			continue
		}
		mark := fmt.Sprintf("nodens-text-%d-", len(pairs))
		data[key] = mark
		pairs = append(pairs, mark, "|\n    "+strings.ReplaceAll(body, "\n", "\n    "))
	}
	text, err := yaml.Marshal(short)
	if err != nil {
		return nil, err
	}
	text = []byte(strings.NewReplacer(pairs...).Replace(string(text)))
	var back object
	if err := yaml.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(texts(back.sub("data")), texts(obj.sub("data"))) {
		return usual, nil //nolint:nilerr // what the library writes is right, if less pleasant
	}
	return text, nil
}

// texts are the values of a ConfigMap's data.
func texts(data object) map[string]string {
	list := make(map[string]string, len(data))
	for key := range data {
		list[key] = data.text(key)
	}
	return list
}
