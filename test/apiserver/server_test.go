package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
)

// TestServer walks through what other packages rely on: objects survive a
// restart, and the agent's user may read services but not write them.
func TestServer(t *testing.T) {
	s := apiserver.Start(t)
	admin, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	made, err := admin.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	agent, err := kubernetes.NewForConfig(s.Config(apiserver.Agent))
	if err != nil {
		t.Fatal(err)
	}
	list, err := agent.CoreV1().Services("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kept"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].UID != made.UID {
		t.Errorf("after a restart the services are %v, want the one made before it", list.Items)
	}
	if _, err := agent.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("agent lists endpoint slices: %v", err)
	}
	err = agent.CoreV1().Services("default").Delete(ctx, "kept", metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("agent deletes a service: %v, want forbidden", err)
	}
	if _, err := agent.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("agent lists secrets: %v, want forbidden", err)
	}
}
