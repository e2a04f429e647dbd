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

// lastApplied is the annotation in which kubectl apply keeps its input.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// serverFields are the metadata and annotations that API servers and their clients add.
var serverFields = struct{ fields, annotations []string }{
	fields:      []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"},
	annotations: []string{lastApplied, "deprecated.daemonset.template.generation"},
}

// printManifest returns all objects as YAML: RBAC rules before the Corefile that needs
// them, the DaemonSet last.
func (m *migration) printManifest() ([]byte, error) {
	strict, err := strictDecoder()
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
	for _, obj := range append(m.out, m.pod.daemonSet) {
		removeServerFields(obj)
		if err := m.checkSchema(strict, obj); err != nil {
			return nil, err
		}
		text, err := marshalYAML(obj)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", obj.describe(), err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}

// removeServerFields removes the fields that the API server sets.
func removeServerFields(obj object) {
	delete(obj, "status")
	metadata := obj.child("metadata")
	for _, field := range serverFields.fields {
		delete(metadata, field)
	}
	annotations := metadata.child("annotations")
	for _, name := range serverFields.annotations {
		delete(annotations, name)
	}
	if annotations != nil && len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	if template := obj.child("spec", "template", "metadata"); template != nil && template["creationTimestamp"] == nil {
		delete(template, "creationTimestamp")
	}
}

// strictDecoder returns a decoder for the kinds that are printed. Unknown fields are
// errors.
func strictDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering API types: %w", err)
		}
	}
	return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Strict: true}), nil
}

// checkSchema decodes obj as its API type. An unknown field may belong to a newer API: it
// is noted and kept.
func (m *migration) checkSchema(strict runtime.Decoder, obj object) error {
	text, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("%s: %w", obj.describe(), err)
	}
	_, _, err = strict.Decode(text, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		m.noteFor(Todo, obj.describe(), "it has fields that this program's API types don't know (%v); check that the API server does", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s is not a valid API object: %w", obj.describe(), err)
	}
	return nil
}

// marshalYAML returns obj as YAML. The texts of a ConfigMap are written as literal blocks
// where possible; the library would write a text with a tab, or with spaces at the end of a
// line, as one long escaped line.
func marshalYAML(obj object) ([]byte, error) {
	usual, err := yaml.Marshal(obj)
	if err != nil || obj.text("kind") != "ConfigMap" {
		return usual, err
	}
	short := obj.clone()
	data := short.child("data")
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
	if err := yaml.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(dataTexts(back.child("data")), dataTexts(obj.child("data"))) {
		return usual, nil //nolint:nilerr // what the library writes is right, if less pleasant
	}
	return text, nil
}

// dataTexts returns the values of a ConfigMap's data.
func dataTexts(data object) map[string]string {
	list := make(map[string]string, len(data))
	for key := range data {
		list[key] = data.text(key)
	}
	return list
}
