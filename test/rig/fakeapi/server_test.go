package fakeapi_test

import (
	"net/http"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

func service(ns, name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

// client returns client-go's client, an independent implementation.
func client(t *testing.T, s *fakeapi.Server, contentType string) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, QPS: -1, ContentConfig: rest.ContentConfig{
		AcceptContentTypes: contentType, ContentType: contentType,
	}})
	check.NoError(t, err)
	return c
}

// events reads n events of a watch: their types and the names of their objects.
func events(t *testing.T, w watch.Interface, n int) (list []string) {
	t.Helper()
	for len(list) < n {
		e, ok := <-w.ResultChan()
		if !ok {
			t.Fatalf("the watch ends after %q", list)
		}
		name := ""
		if o, ok := e.Object.(metav1.Object); ok {
			name = o.GetName()
		}
		list = append(list, string(e.Type)+" "+name)
	}
	return list
}

func start(t *testing.T, c kubernetes.Interface, ns string, o metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := c.CoreV1().Services(ns).Watch(t.Context(), o)
	check.NoError(t, err)
	t.Cleanup(w.Stop)
	return w
}

// TestWatch lists and watches with client-go, in JSON and protobuf.
func TestWatch(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(contentType, func(t *testing.T) {
			s := fakeapi.Start(t)
			s.UseProtobuf()
			s.Put(service("a", "one"))
			s.Put(service("b", "other"))
			list, err := client(t, s, runtime.ContentTypeJSON).CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 2 {
				t.Fatalf("%v, %v", list, err)
			}
			yes := true
			c := client(t, s, contentType)
			all := start(t, c, "", metav1.ListOptions{ResourceVersion: list.ResourceVersion})
			streamed := start(t, c, "a", metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
			check.Equal(t, []string{"ADDED one", "BOOKMARK "}, events(t, streamed, 2), "a streamed list")
			s.Put(service("a", "one"))
			s.Remove(service("b", "other"))
			s.Put(service("a", "two"))
			check.Equal(t, []string{"MODIFIED one", "DELETED other", "ADDED two"}, events(t, all, 3), "all")
			check.Equal(t, []string{"MODIFIED one", "ADDED two"}, events(t, streamed, 2), "of a namespace")
			if n := s.Requests("/namespaces/a/services", "watch=true"); n != 1 {
				t.Errorf("%d watches of a namespace are counted, want 1", n)
			}
		})
	}
}

// TestFaults: a server that ends its watches, forgets and fails.
func TestFaults(t *testing.T) {
	s := fakeapi.Start(t)
	c := client(t, s, runtime.ContentTypeJSON)
	s.Put(service("a", "one"))
	w := start(t, c, "a", metav1.ListOptions{ResourceVersion: "1"})
	events(t, w, 1)
	s.Disconnect()
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("after Disconnect the watch has %v", e)
	}
	s.Forget()
	w = start(t, c, "a", metav1.ListOptions{ResourceVersion: "1"})
	if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("an old version gives %v", e)
	}
	s.SetFail(func(*http.Request) (int, metav1.StatusReason) {
		return http.StatusForbidden, metav1.StatusReasonForbidden
	})
	list := func() error {
		_, err := c.CoreV1().Services("a").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("forbidden: %v", err)
	}
	s.SetFail(nil)
	if err := list(); err != nil {
		t.Errorf("allowed again: %v", err)
	}
}

// TestReplace: a streamed list has the last version of an object, also if it was streamed before.
func TestReplace(t *testing.T) {
	s := fakeapi.Start(t)
	s.UseProtobuf()
	c := client(t, s, runtime.ContentTypeProtobuf)
	yes := true
	for i, want := range []string{"first", "second"} {
		o := service("a", "one")
		o.Labels = map[string]string{"version": want}
		s.Put(o)
		for range i + 1 {
			w := start(t, c, "", metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
			if e := <-w.ResultChan(); e.Object.(metav1.Object).GetLabels()["version"] != want {
				t.Errorf("the list has %v, want the %s version", e.Object, want)
			}
		}
	}
}

// TestHistory: a watch gets the last 4,096 events, and expires if it begins before them.
func TestHistory(t *testing.T) {
	const kept = 4096
	s := fakeapi.Start(t)
	for range 2*kept + 10 {
		s.Put(service("a", "one"))
	}
	c, last := client(t, s, runtime.ContentTypeJSON), 2*kept+11
	w := start(t, c, "a", metav1.ListOptions{ResourceVersion: strconv.Itoa(last - kept)})
	events(t, w, kept)
	w = start(t, c, "a", metav1.ListOptions{ResourceVersion: strconv.Itoa(last - kept - 1)})
	if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("a version before the history gives %v", e)
	}
}
