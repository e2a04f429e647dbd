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

// serverFields are the fields of metadata, and the annotations, that an API server or its
// clients write for themselves.
var serverFields = struct{ fields, annotations []string }{
	fields:      []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"},
	annotations: []string{lastApplied, "deprecated.daemonset.template.generation"},
}

// printManifest gives all objects as YAML: rights before the Corefile that makes use of them, the
// DaemonSet last.
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

// removeServerFields takes away what is the API server's.
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

// strictDecoder reads the kinds that are printed. A field that their types don't have is an
// error.
func strictDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering API types: %w", err)
		}
	}
	return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Strict: true}), nil
}

// checkSchema decodes obj by its type. A field that is not known may be a newer API's: it is
// noted, and stays.
func (m *migration) checkSchema(strict runtime.Decoder, obj object) error {
	text, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("%s: %w", obj.describe(), err)
	}
	_, _, err = strict.Decode(text, nil, nil)
	if runtime.IsStrictDecodingError(err) {
		m.noteFor(Todo, obj.describe(), "it is printed with what the API types of this program don't know (%v); check that the API server does", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s is not what the Kubernetes API takes: %w", obj.describe(), err)
	}
	return nil
}

// marshalYAML writes obj as YAML. The texts of a ConfigMap are written as they are, whatever
// spaces and tabs they have: the library would put one with a tab, or with spaces at the
// end of a line, into one long line of escapes. What can't be written so is left to it.
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

// dataTexts are the values of a ConfigMap's data.
func dataTexts(data object) map[string]string {
	list := make(map[string]string, len(data))
	for key := range data {
		list[key] = data.text(key)
	}
	return list
}
