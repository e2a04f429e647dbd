package daemonset

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// decodeObjects decodes the documents of a manifest, in their order. Unknown fields,
// duplicate fields and unknown kinds are errors. Objects of customKinds are not checked.
func decodeObjects(text []byte) ([]runtime.Object, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{admissionregistrationv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, kind, err := strict.Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) && slices.Contains(customKinds, kind.GroupKind().String()) {
			var content map[string]any
			err = yaml.UnmarshalStrict(doc, &content)
			object = &unstructured.Unstructured{Object: content}
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		objects = append(objects, object)
	}
}

// customKinds are the kinds of custom resources.
var customKinds = []string{
	"CiliumLocalRedirectPolicy.cilium.io", "CustomResourceDefinition.apiextensions.k8s.io", "PodMonitor.monitoring.coreos.com",
	"PrometheusRule.monitoring.coreos.com", "ServiceMonitor.monitoring.coreos.com",
}

// loadManifest decodes nodens.yaml.
func loadManifest(t *testing.T) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile("base/nodens.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatalf("nodens.yaml: %v", err)
	}
	return objects
}

// findObject returns the manifest's only object of type T, by name if the name is not
// empty, and its place in the manifest.
func findObject[T metav1.Object](t *testing.T, objects []runtime.Object, name string) (T, int) {
	t.Helper()
	var found T
	place := -1
	for i, object := range objects {
		o, ok := object.(T)
		if !ok || name != "" && o.GetName() != name {
			continue
		}
		if place >= 0 {
			t.Fatalf("nodens.yaml has two %T %q", found, name)
		}
		found, place = o, i
	}
	if place < 0 {
		t.Fatalf("nodens.yaml has no %T %q", found, name)
	}
	return found, place
}

func TestDecodeIsStrict(t *testing.T) {
	tests := []struct{ name, text string }{
		{"unknown field", "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: a\nsecret: b\n"},
		{"unknown nested field", "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  selectors: {}\n"},
		{"field given twice", "apiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: a\n  name: b\n"},
		{"unknown kind", "apiVersion: v1\nkind: Servce\nmetadata:\n  name: a\n"},
		{"wrong version", "apiVersion: apps/v1beta1\nkind: DaemonSet\nmetadata:\n  name: a\n"},
		{"second document", "apiVersion: v1\nkind: ServiceAccount\n---\napiVersion: v1\nkind: ServiceAccount\nx: y\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if objects, err := decodeObjects([]byte(tt.text)); err == nil {
				t.Errorf("decoded to %v, want an error", objects)
			}
		})
	}
}

// TestObjects: other objects, users or an installed NodeLocal DNSCache refer to these names.
// Pods need the objects before the DaemonSet.
func TestObjects(t *testing.T) {
	objects := loadManifest(t)
	_, last := findObject[*appsv1.DaemonSet](t, objects, "node-local-dns")
	if want := len(objects) - 1; last != want {
		t.Errorf("the DaemonSet is object %d, want it last (%d): its pods need the others", last, want)
	}
	findObject[*corev1.ServiceAccount](t, objects, "node-local-dns")
	findObject[*corev1.ConfigMap](t, objects, "nodens")
	findObject[*corev1.Service](t, objects, "kube-dns-upstream")
	findObject[*corev1.Service](t, objects, "node-local-dns")
	findObject[*rbacv1.ClusterRole](t, objects, "nodens")
	findObject[*rbacv1.ClusterRoleBinding](t, objects, "nodens")
	if got, want := len(objects), 7; got != want {
		t.Errorf("the manifest has %d objects, want %d", got, want)
	}
	for _, object := range objects {
		o := object.(metav1.Object)
		want := "kube-system"
		switch object.(type) {
		case *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding:
			want = ""
		}
		if got := o.GetNamespace(); got != want {
			t.Errorf("%T %s: namespace %q, want %q", o, o.GetName(), got, want)
		}
	}
}
