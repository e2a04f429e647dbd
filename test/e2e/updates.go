package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// updateStep is a change in the API and the answers for a name before and after it.
type updateStep struct {
	old, new string
	apply    func(context.Context) error
}

// runSteps applies the changes one by one while a pod on each node queries the name 100 times
// a second. No other answer may appear between the old and the new one.
func (w *namesFixture) runSteps(ctx context.Context, s *suite, name string, list []updateStep) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	var slowest time.Duration
	asked := 0
	for i, step := range list {
		var watches []*nameWatch
		for _, pod := range ordinaryPods()[:2] {
			f, err := w.watchName(ctx, s, pod, name, step.new)
			if err != nil {
				return "", fmt.Errorf("%s, step %d: %w", pod, i+1, err)
			}
			watches = append(watches, f)
		}
		err := step.apply(ctx)
		done := time.Now()
		for _, f := range watches {
			c, e := f.wait()
			if e == nil && (c.first != step.old || len(c.others) > 0) {
				e = fmt.Errorf("%s was %s, want %s, and then %q before %s", name, c.first, step.old, c.others, step.new)
			}
			err = errors.Join(err, e)
			asked += c.asked
			slowest = max(slowest, c.at.Sub(done))
		}
		if err != nil {
			return "", fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return fmt.Sprintf("%d times, %d queries, seen after %d ms", len(list), asked, slowest.Milliseconds()), nil
}

// changeExternalName changes the target of an ExternalName Service.
func (w *namesFixture) changeExternalName(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	const ip = "10.96.99.1" // outside the range of automatic assignment
	one, two := uniqueWords("one.outside.test", cluster.Outside4), uniqueWords("two.outside.test", cluster.Outside4)
	patch := func(text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.client.CoreV1().Services(namesNS).Patch(ctx, "moving", types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
	}
	seen, err := w.runSteps(ctx, s, "moving"+namesSuffix, []updateStep{
		{one, two, patch(`{"spec":{"externalName":"two.outside.test"}}`)},
		{two, ip, patch(`{"spec":{"type":"ClusterIP","externalName":null,"clusterIP":"` + ip + `","ports":[{"name":"http","port":80}]}}`)},
	})
	if err != nil {
		return "", err
	}
	_, err = w.ask(ctx, s, ordinaryPods()[:4], []question{q("host moving", ip), q("name "+ip, "moving"+namesSuffix)})
	return seen, err
}

// changeServices creates a Service whose name was NXDOMAIN before, changes it and deletes it.
func (w *namesFixture) changeServices(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	const a, b = "10.96.99.2", "10.96.99.3"
	services := w.client.CoreV1().Services(namesNS)
	serve := func(ip string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := services.Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "new"},
				Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			}, metav1.CreateOptions{})
			return err
		}
	}
	remove := func(ctx context.Context) error { return services.Delete(ctx, "new", metav1.DeleteOptions{}) }
	slices := w.client.DiscoveryV1().EndpointSlices(namesNS)
	move := func(ctx context.Context) error {
		patch := `{"endpoints":[{"addresses":["10.98.1.1"]}]}`
		_, err := slices.Patch(ctx, "big", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	made, err := w.runSteps(ctx, s, "new"+namesSuffix, []updateStep{
		{"none", a, serve(a)}, {a, "none", remove}, {"none", b, serve(b)}, {b, "none", remove},
	})
	if err != nil {
		return "", err
	}
	moved, err := w.runSteps(ctx, s, dashedIP("10.98.1.1")+".big"+namesSuffix, []updateStep{{"none", "10.98.1.1", move}})
	return strings.Join([]string{made, "endpoints " + moved}, "; "), err
}
