package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// stubConfig is the ConfigMap that users of kube-dns have their stub domains in.
const stubConfig = "kube-dns"

// reloadTimeout is how long the agents may take to see a changed ConfigMap by themselves:
// `reload` looks every 30 to 45 s, and twice if a file is gone; kubelet writes a changed
// one once a minute. Twice all that is for a busy machine.
const reloadTimeout = 4 * time.Minute

// startStubDomain names a stub domain, and goes on without waiting until it is known: the
// agents look at their configuration twice a minute, which is long enough for all the
// other checks.
func (w *namesFixture) startStubDomain(ctx context.Context, s *suite, client kubernetes.Interface) {
	w.stubStarted = make(chan error, 1)
	_, err := client.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: stubConfig},
		Data:       map[string]string{"stubDomains": `{"stub.test": ["` + stubDNS + `"]}`},
	}, metav1.CreateOptions{})
	if err != nil {
		w.stubStarted <- err
		return
	}
	go func() { w.stubStarted <- touchAgentPods(ctx, client) }()
}

// touchAgentPods changes something about the agents' pods, whereupon kubelet looks at their volumes
// at once and not only once a minute.
func touchAgentPods(ctx context.Context, client kubernetes.Interface) error {
	pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=node-local-dns"})
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e/touched":"%d"}}}`, time.Now().UnixNano())
	for _, p := range pods.Items {
		_, err := client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// checkStubDomains waits for the stub domain, changes its server, adds upstreams, and takes
// everything back.
func (w *namesFixture) checkStubDomains(ctx context.Context, s *suite) (seen string, err error) {
	if w.client == nil {
		return "", errNoPods
	}
	began := time.Now()
	if err := <-w.stubStarted; err != nil {
		return "", err
	}
	configs := w.client.CoreV1().ConfigMaps("kube-system")
	if err := w.waitAnswer(ctx, s, "a.stub.test", stub1); err != nil {
		return "", err
	}
	waited := time.Since(began)
	if _, err := w.ask(ctx, s, ordinaryPods()[:4], []question{
		q("host www.stub.test", stub1), none("host nx.stub.test"), q("canon a.b.stub.test", "a.b.stub.test"),
		q("host www.outside.test", cluster.Outside4, cluster.Outside6), q("host cluster", w.clusterIP["names/cluster"]),
	}); err != nil {
		return "", err
	}
	patch := `{"data":{"stubDomains":"{\"stub.test\": [\"` + stubDNS + `:5353\"]}","upstreamNameservers":"[\"` + stubDNS + `\"]"}}`
	if _, err := configs.Patch(ctx, stubConfig, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return "", err
	}
	if err := w.reloadUntil(ctx, s, "b.stub.test", stub2); err != nil {
		return "", err
	}
	if _, err := w.ask(ctx, s, ordinaryPods()[:4], []question{
		q("host www.b.stub.test", stub2), q("host other.outside.test", stub1), none("host nx.other.test"), q("host cluster", w.clusterIP["names/cluster"]),
	}); err != nil {
		return "", err
	}
	if err := configs.Delete(ctx, stubConfig, metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	if err := w.reloadUntil(ctx, s, "c.stub.test", "none"); err != nil {
		return "", err
	}
	_, err = w.ask(ctx, s, ordinaryPods()[:4], []question{none("host www.c.stub.test"), q("host third.outside.test", cluster.Outside4, cluster.Outside6)})
	return fmt.Sprintf("added, after %.0f s more; changed; removed", waited.Seconds()), err
}

// waitAnswer waits until pods of both nodes get the answer.
func (w *namesFixture) waitAnswer(ctx context.Context, s *suite, name, want string) error {
	return forEach(ordinaryPods()[:2], func(pod string) error {
		f, err := w.watchNameFor(ctx, s, reloadTimeout, pod, name, want)
		if err == nil {
			_, err = f.wait()
		}
		return err
	})
}

// reloadUntil is known for agents that are told to look at their configuration, by SIGUSR1, until
// kubelet has written it.
func (w *namesFixture) reloadUntil(ctx context.Context, s *suite, name, want string) error {
	if err := touchAgentPods(ctx, w.client); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := make(chan error, 1)
	go func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				told <- nil
				return
			case <-t.C:
			}
			for _, n := range w.nodes {
				// A node has a process namespace of its own, with one agent in it.
				const tell = `for p in /proc/[0-9]*; do [ "$(readlink "$p/exe")" = /usr/local/bin/nodens ] && kill -USR1 "${p#/proc/}"; done; :`
				if out, err := n.Command(ctx, "sh", "-c", tell).CombinedOutput(); err != nil && ctx.Err() == nil {
					told <- fmt.Errorf("telling %s's agent: %w\n%s", n.Name, err, out)
					return
				}
			}
		}
	}()
	err := w.waitAnswer(ctx, s, name, want)
	cancel()
	return errors.Join(err, <-told)
}
