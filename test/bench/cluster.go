package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
)

// namespace holds the Services that are asked for.
const namespace = "bench"

// startCluster starts an API server with the Services of every cluster workload;
// the caller closes it.
func startCluster(ctx context.Context, dir string) (*apiserver.Server, error) {
	api, err := apiserver.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := fillCluster(ctx, api); err != nil {
		api.Close()
		return nil, fmt.Errorf("writing Services: %w", err)
	}
	return api, nil
}

// writers is how many requests are under way at once: enough to keep the API
// server busy on its core.
const writers = 4

func fillCluster(ctx context.Context, api *apiserver.Server) error {
	client, err := api.Client()
	if err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < nameCount && errs[w] == nil; i += writers {
				_, errs[w] = client.CoreV1().Services(namespace).Create(ctx, service(i), metav1.CreateOptions{})
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// service is the Service with the number i; the API server gives it an address.
func service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("web-%04d", i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// prepare builds what a cluster takes while all cores may still be used.
func prepare(ctx context.Context, dir string) error {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := peer.Binary(ctx, name, dir); err != nil {
			return err
		}
	}
	return nil
}
