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

// step is a change in the API, and the answers to a name before and after it.
type step struct {
	old, new string
	do       func(context.Context) error
}

// steps makes the changes one by one while a pod of each node asks for the name 100 times
// a second. Between the old answer and the new one there has to be no other.
func (w *world) steps(ctx context.Context, s *suite, name string, list []step) (string, error) {
	if w.client == nil {
		return "", errNotMade
	}
	var slowest time.Duration
	asked := 0
	for i, step := range list {
		var followings []*following
		for _, pod := range ordinary()[:2] {
			f, err := w.follow(ctx, s, pod, name, step.new)
			if err != nil {
				return "", fmt.Errorf("%s, step %d: %w", pod, i+1, err)
			}
			followings = append(followings, f)
		}
		err := step.do(ctx)
		done := time.Now()
		for _, f := range followings {
			c, e := f.end()
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

// renamed changes where an ExternalName Service leads to.
func (w *world) renamed(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNotMade
	}
	const ip = "10.96.99.1" // of nobody else: it is not in the part that is given out by itself
	one, two := words("one.outside.test", cluster.Outside4), words("two.outside.test", cluster.Outside4)
	patch := func(text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.client.CoreV1().Services(namesNS).Patch(ctx, "moving", types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
	}
	seen, err := w.steps(ctx, s, "moving"+inNames, []step{
		{one, two, patch(`{"spec":{"externalName":"two.outside.test"}}`)},
		{two, ip, patch(`{"spec":{"type":"ClusterIP","externalName":null,"clusterIP":"` + ip + `","ports":[{"name":"http","port":80}]}}`)},
	})
	if err != nil {
		return "", err
	}
	_, err = w.ask(ctx, s, ordinary()[:4], []question{q("host moving", ip), q("name "+ip, "moving"+inNames)})
	return seen, err
}

// changed makes a Service whose name was denied before, changes it and deletes it.
func (w *world) changed(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNotMade
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
	made, err := w.steps(ctx, s, "new"+inNames, []step{
		{"none", a, serve(a)}, {a, "none", remove}, {"none", b, serve(b)}, {b, "none", remove},
	})
	if err != nil {
		return "", err
	}
	moved, err := w.steps(ctx, s, dashed("10.98.1.1")+".big"+inNames, []step{{"none", "10.98.1.1", move}})
	return strings.Join([]string{made, "endpoints " + moved}, "; "), err
}
