package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// writer writes the objects of cases.
type writer struct{ client dynamic.Interface }

func newWriter(t *testing.T, api *apiserver.Server) writer {
	t.Helper()
	client, err := dynamic.NewForConfig(api.Config(apiserver.Admin))
	check.NoError(t, err)
	return writer{client}
}

// resource returns where o is written. The plural of each kind that cases have is regular.
func (w writer) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	kind := o.GroupVersionKind()
	r := w.client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: strings.ToLower(kind.Kind) + "s"})
	if o.GetNamespace() == "" {
		return r
	}
	return r.Namespace(o.GetNamespace())
}

// mustWrite is write, and fails the test on an error.
func (w writer) mustWrite(t *testing.T, manifest map[string]any) {
	t.Helper()
	check.NoError(t, w.write(t.Context(), manifest))
}

// write creates the object, sets its status, and deletes it if it asks for that. It creates the object's namespace, and
// waits until the API server serves a new resource.
func (w writer) write(ctx context.Context, manifest map[string]any) error {
	o := &unstructured.Unstructured{Object: manifest}
	if ns := o.GetNamespace(); ns != "" {
		namespace := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns}}
		// It may be there already.
		_, _ = w.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(ctx, &unstructured.Unstructured{Object: namespace}, metav1.CreateOptions{})
	}
	status := o.Object["status"]
	var made *unstructured.Unstructured
	var failed error
	err := peer.Await(ctx, "the API server to serve the kind", func(ctx context.Context) error {
		if made, failed = w.resource(o).Create(ctx, o, metav1.CreateOptions{}); apierrors.IsNotFound(failed) {
			return failed
		}
		return nil
	})
	if refused := o.GetAnnotations()["test/refused"]; refused != "" && failed != nil && strings.Contains(failed.Error(), refused) {
		return err
	}
	err = errors.Join(err, failed)
	if err == nil && status != nil {
		made.Object["status"] = status
		_, err = w.resource(o).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	}
	if err == nil && o.GetAnnotations()["test/delete"] != "" {
		err = w.resource(o).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		return fmt.Errorf("%s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	return nil
}
