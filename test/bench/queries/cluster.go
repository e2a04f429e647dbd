package queries

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

// startCluster starts an API server with what sets of n questions ask for; the caller closes it.
func startCluster(ctx context.Context, dir string, n int) (*apiserver.Server, error) {
	api, err := apiserver.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := api.Fill(ctx, harness.Namespace, n, fill); err != nil {
		api.Close()
		return nil, fmt.Errorf("writing Services: %w", err)
	}
	return api, nil
}

// fill writes the objects with the number i: a Service, a headless Service and
// its endpoints.
func fill(ctx context.Context, client kubernetes.Interface, i int) error {
	services := client.CoreV1().Services(harness.Namespace)
	ports := []corev1.ServicePort{{Name: "http", Port: 80}}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: fmt.Sprintf("web-%04d", i)},
		Spec:       corev1.ServiceSpec{Ports: ports}, // the API server gives it an address
	}
	set := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: harness.Namespace, Name: fmt.Sprintf("set-%04d", i)},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: ports},
	}
	for _, s := range []*corev1.Service{web, set} {
		if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err := client.DiscoveryV1().EndpointSlices(harness.Namespace).Create(ctx, endpoints(set.Name, i), metav1.CreateOptions{})
	return err
}

// endpoints are those of a headless Service, as the controller would write them:
// the label is what tells an agent whose they are.
func endpoints(service string, i int) *discoveryv1.EndpointSlice {
	name, port := "http", int32(80)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: harness.Namespace, Name: service + "-x",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service, corev1.IsHeadlessService: "",
				discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for n := range harness.EndpointCount {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+(i>>8), i&255, n+1)},
		})
	}
	return slice
}
