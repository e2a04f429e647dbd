package watch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/miekg/dns"
)

// namespace holds the objects that the tests change.
const namespace = "default"

// change is one write to the API server and the answer that it leads to.
type change struct {
	kind  string
	write func(ctx context.Context) error
	name  string
	qtype uint16
	want  string
}

// life is the life of a ClusterIP service and of a headless one with a
// slice, which it leaves behind: each change is to be seen before the next
// one is made. Different numbers make different objects.
func life(client kubernetes.Interface, n int) []change {
	services := client.CoreV1().Services(namespace)
	slices := client.DiscoveryV1().EndpointSlices(namespace)
	plain := clusterIP(fmt.Sprintf("plain-%d", n), fmt.Sprintf("10.96.200.%d", n+1))
	head := headless(fmt.Sprintf("head-%d", n))
	slice := endpoints(head.Name, fmt.Sprintf("10.244.200.%d", n+1))
	first, second := slice.Endpoints[0].Addresses[0], fmt.Sprintf("10.244.201.%d", n+1)
	plainName, headName := owner(plain), owner(head)

	create := func(s *corev1.Service) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := services.Create(ctx, s, metav1.CreateOptions{})
			return err
		}
	}
	remove := func(s *corev1.Service) func(context.Context) error {
		return func(ctx context.Context) error { return services.Delete(ctx, s.Name, metav1.DeleteOptions{}) }
	}
	rename := func(ctx context.Context) error { return renamePort(ctx, services, plain.Name) }
	createSlice := func(ctx context.Context) error {
		_, err := slices.Create(ctx, slice, metav1.CreateOptions{})
		return err
	}
	update := func(modify func()) func(context.Context) error {
		return func(ctx context.Context) error {
			modify()
			_, err := slices.Update(ctx, slice, metav1.UpdateOptions{})
			return err
		}
	}
	return []change{
		{"create service", create(plain), plainName, dns.TypeA, "NOERROR " + plain.Spec.ClusterIP},
		{"rename its port", rename, "_renamed._tcp." + plainName, dns.TypeSRV, "NOERROR 0 100 80 " + plainName},
		{"delete service", remove(plain), plainName, dns.TypeA, "NXDOMAIN"},
		{"create headless service and slice", func(ctx context.Context) error {
			if _, err := services.Create(ctx, head, metav1.CreateOptions{}); err != nil {
				return err
			}
			return createSlice(ctx)
		}, headName, dns.TypeA, "NOERROR " + first},
		{"add an endpoint", update(func() {
			slice.Endpoints = append(slice.Endpoints, endpoint(second))
		}), headName, dns.TypeA, "NOERROR " + first + " " + second},
		{"make it unready", update(func() {
			slice.Endpoints[1].Conditions.Ready = new(bool)
		}), headName, dns.TypeA, "NOERROR " + first},
		{"give a hostname", update(func() {
			hostname := "zero"
			slice.Endpoints[0].Hostname = &hostname
		}), "zero." + headName, dns.TypeA, "NOERROR " + first},
		{"delete slice", func(ctx context.Context) error {
			return slices.Delete(ctx, slice.Name, metav1.DeleteOptions{})
		}, headName, dns.TypeA, "NXDOMAIN"},
		{"create slice", createSlice, headName, dns.TypeA, "NOERROR " + first},
		{"delete headless service", remove(head), headName, dns.TypeA, "NXDOMAIN"},
	}
}

func renamePort(ctx context.Context, services typed.ServiceInterface, name string) error {
	s, err := services.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Spec.Ports[0].Name = "renamed"
	_, err = services.Update(ctx, s, metav1.UpdateOptions{})
	return err
}

func owner(s *corev1.Service) string { return s.Name + "." + s.Namespace + ".svc.cluster.local." }

func clusterIP(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func headless(name string) *corev1.Service {
	return clusterIP(name, corev1.ClusterIPNone)
}

// endpoints is a slice of the service with one address.
func endpoints(service, addr string) *discoveryv1.EndpointSlice {
	name, port := "http", int32(80)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-a",
			Labels: map[string]string{discoveryv1.LabelServiceName: service, corev1.IsHeadlessService: ""},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{endpoint(addr)},
	}
}

func endpoint(addr string) discoveryv1.Endpoint {
	ready := true
	return discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}
