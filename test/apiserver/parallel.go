package apiserver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// writers is how many requests of Fill are under way at once: enough to keep the API server busy on its core.
const writers = 4

// Fill creates a namespace and calls write for each number below n, four times at once, until one fails.
func (s *Server) Fill(ctx context.Context, namespace string, n int, write func(ctx context.Context, client kubernetes.Interface, i int) error) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	return Parallel(ctx, n, writers, func(ctx context.Context, i int) error { return write(ctx, client, i) })
}

// Parallel calls do for each number below n, at most atOnce of them at once, until one fails or whole ends. It returns the
// error of the call that failed, or that of whole.
func Parallel(whole context.Context, n, atOnce int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	var next atomic.Int64
	errs := make([]error, atOnce)
	var wg sync.WaitGroup
	for at := range errs {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if errs[at] = do(ctx, i); errs[at] != nil {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	// The first failure has cancelled the others.
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(append(errs, whole.Err())...)
}
