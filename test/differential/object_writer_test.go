package differential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/peer"
)

// writers is how many requests are under way at once: enough to keep the API
// server busy on two cores.
const writers = 8

// forEachParallel calls do for all items, several at a time, and joins the errors.
func forEachParallel[T any](items []T, do func(T) error) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(items))
		gate = make(chan struct{}, writers)
	)
	for i, item := range items {
		gate <- struct{}{}
		wg.Go(func() {
			errs[i] = do(item)
			<-gate
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// objectWriter is the objects of the API server. Its methods may be called
// concurrently; errors name the object.
type objectWriter struct {
	client kubernetes.Interface
}

// write creates the world's objects, the namespaces first.
func (s objectWriter) write(ctx context.Context, w *world) error {
	return s.apply(ctx, &change{created: w.objects()})
}

// deleteAll deletes the world's objects, the namespaces last.
func (s objectWriter) deleteAll(ctx context.Context, w *world) error {
	return s.apply(ctx, &change{deleted: w.objects()})
}

// objects are all of the world's.
func (w *world) objects() []metav1.Object {
	var out []metav1.Object
	for _, o := range w.namespaces {
		out = append(out, o)
	}
	for _, o := range w.services {
		out = append(out, o)
	}
	for _, o := range w.slices {
		out = append(out, o)
	}
	for _, o := range w.pods {
		out = append(out, o)
	}
	for _, o := range w.imports {
		out = append(out, o)
	}
	return out
}

// change is what a round does to the objects.
type change struct {
	deleted []metav1.Object
	created []metav1.Object
	updated []metav1.Object
	// terminating are pods that are asked to go and stay for now.
	terminating []*corev1.Pod
}

// apply deletes first, so that names and addresses are free, then creates,
// then updates.
func (s objectWriter) apply(ctx context.Context, c *change) error {
	goneSpaces, gone := splitNamespaces(c.deleted)
	madeSpaces, made := splitNamespaces(c.created)
	step := func(objects []metav1.Object, do func(context.Context, metav1.Object) error) func() error {
		return func() error {
			return forEachParallel(objects, func(o metav1.Object) error { return objectError(o, do(ctx, o)) })
		}
	}
	for _, step := range []func() error{
		step(gone, s.remove),
		step(goneSpaces, s.remove),
		step(madeSpaces, s.create),
		step(made, s.createRetrying),
		step(c.updated, s.update),
		func() error {
			return forEachParallel(c.terminating, func(p *corev1.Pod) error { return s.terminatePod(ctx, p) })
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// splitNamespaces tells the namespaces from the rest.
func splitNamespaces(objects []metav1.Object) (spaces, rest []metav1.Object) {
	for _, o := range objects {
		if _, ok := o.(*corev1.Namespace); ok {
			spaces = append(spaces, o)
			continue
		}
		rest = append(rest, o)
	}
	return spaces, rest
}

func objectError(o metav1.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
}

// createRetrying creates the object, again and again while the API server takes its
// namespace for the one of the name that was deleted.
func (s objectWriter) createRetrying(ctx context.Context, o metav1.Object) error {
	var last error
	err := peer.Await(ctx, "the new namespace", func(ctx context.Context) error {
		if last = s.create(ctx, o); apierrors.HasStatusCause(last, corev1.NamespaceTerminatingCause) {
			return last
		}
		return nil
	})
	return cmp.Or(err, last)
}

// create creates the object, and its status where it has one.
func (s objectWriter) create(ctx context.Context, o metav1.Object) error {
	var options metav1.CreateOptions
	switch o := o.(type) {
	case *corev1.Namespace:
		_, err := s.client.CoreV1().Namespaces().Create(ctx, o, options)
		return err
	case *discoveryv1.EndpointSlice:
		_, err := s.client.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o, options)
		return err
	case *corev1.Service:
		made, err := s.client.CoreV1().Services(o.Namespace).Create(ctx, o, options)
		if err != nil || len(o.Status.LoadBalancer.Ingress) == 0 {
			return err
		}
		made.Status = o.Status
		_, err = s.client.CoreV1().Services(o.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	case *corev1.Pod:
		made, err := s.client.CoreV1().Pods(o.Namespace).Create(ctx, o, options)
		if err != nil {
			return err
		}
		made.Status = o.Status
		_, err = s.client.CoreV1().Pods(o.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	case *serviceImport:
		return s.imports(s.rest().Post(), o.Namespace, "", o).Do(ctx).Error()
	}
	return errors.ErrUnsupported
}

// update writes what the object says now over what is there.
func (s objectWriter) update(ctx context.Context, o metav1.Object) error {
	var options metav1.UpdateOptions
	switch o := o.(type) {
	case *corev1.Namespace:
		now, err := s.client.CoreV1().Namespaces().Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Labels = o.Labels
		_, err = s.client.CoreV1().Namespaces().Update(ctx, now, options)
		return err
	case *discoveryv1.EndpointSlice:
		// Without a resourceVersion it is the last write that counts.
		_, err := s.client.DiscoveryV1().EndpointSlices(o.Namespace).Update(ctx, o, options)
		return err
	case *corev1.Service:
		now, err := s.client.CoreV1().Services(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Labels, now.Spec = o.Labels, o.Spec
		now, err = s.client.CoreV1().Services(o.Namespace).Update(ctx, now, options)
		if err != nil || o.Spec.Type != corev1.ServiceTypeLoadBalancer {
			return err
		}
		now.Status = o.Status
		_, err = s.client.CoreV1().Services(o.Namespace).UpdateStatus(ctx, now, options)
		return err
	case *corev1.Pod:
		now, err := s.client.CoreV1().Pods(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status = o.Status
		_, err = s.client.CoreV1().Pods(o.Namespace).UpdateStatus(ctx, now, options)
		return err
	case *serviceImport:
		return s.imports(s.rest().Patch(types.MergePatchType), o.Namespace, o.Name, o).Do(ctx).Error()
	}
	return errors.ErrUnsupported
}

// remove deletes the object at once.
func (s objectWriter) remove(ctx context.Context, o metav1.Object) error {
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}
	switch o := o.(type) {
	case *corev1.Namespace:
		if err := s.client.CoreV1().Namespaces().Delete(ctx, o.Name, options); err != nil {
			return err
		}
		// No controller runs that would let the namespace go.
		now, err := s.client.CoreV1().Namespaces().Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Spec.Finalizers = nil
		_, err = s.client.CoreV1().Namespaces().Finalize(ctx, now, metav1.UpdateOptions{})
		return err
	case *discoveryv1.EndpointSlice:
		return s.client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, options)
	case *corev1.Service:
		return s.client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, options)
	case *corev1.Pod:
		return s.client.CoreV1().Pods(o.Namespace).Delete(ctx, o.Name, options)
	case *serviceImport:
		return s.imports(s.rest().Delete(), o.Namespace, o.Name, nil).Do(ctx).Error()
	}
	return errors.ErrUnsupported
}

// terminatePod asks the pod to go, which it would do when its node says so.
func (s objectWriter) terminatePod(ctx context.Context, p *corev1.Pod) error {
	return s.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{})
}

// serviceImport is the part of a ServiceImport that says something about
// names. Its type is not among client-go's.
type serviceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              importSpec `json:"spec"`
}

type importSpec struct {
	Type  string       `json:"type"`
	IPs   []string     `json:"ips"`
	Ports []importPort `json:"ports"`
}

type importPort struct {
	Name     string          `json:"name,omitempty"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     int32           `json:"port"`
}

func newImport(ns, name string, spec importSpec) *serviceImport {
	return &serviceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: importGroup + "/" + importVersion, Kind: "ServiceImport"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       spec,
	}
}

// The API of ServiceImports.
const (
	importGroup   = "multicluster.x-k8s.io"
	importVersion = "v1alpha1"
)

// importDefinition says to the API server what a ServiceImport is.
const importDefinition = `{
	"apiVersion": "apiextensions.k8s.io/v1",
	"kind": "CustomResourceDefinition",
	"metadata": {
		"name": "serviceimports.multicluster.x-k8s.io",
		"annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}
	},
	"spec": {
		"group": "multicluster.x-k8s.io",
		"scope": "Namespaced",
		"names": {"plural": "serviceimports", "singular": "serviceimport", "kind": "ServiceImport", "listKind": "ServiceImportList"},
		"versions": [{
			"name": "v1alpha1", "served": true, "storage": true,
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
		}]
	}
}`

func (s objectWriter) rest() rest.Interface { return s.client.Discovery().RESTClient() }

// imports completes a request for a ServiceImport.
func (s objectWriter) imports(r *rest.Request, ns, name string, o *serviceImport) *rest.Request {
	r = r.AbsPath("/apis", importGroup, importVersion, "namespaces", ns, "serviceimports", name)
	if o == nil {
		return r
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	return r.Body(text)
}

// createCRD makes the API server serve ServiceImports.
func (s objectWriter) createCRD(ctx context.Context) error {
	err := s.rest().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(importDefinition)).Do(ctx).Error()
	if err != nil {
		return err
	}
	return peer.Await(ctx, "the API server to know ServiceImports", func(ctx context.Context) error {
		return s.imports(s.rest().Get(), "default", "", nil).Do(ctx).Error()
	})
}
