package counting

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/bench/harness"
)

const (
	// podCount is the number of pods of the node. Kubernetes is made for up to 110.
	podCount = 250
	nodeName = "bench-node"
)

// podAddr returns the address of the pod with the number i. The loopback interface has all of 127.0.0.0/8, so that
// the load generator can send from it.
func podAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 1, byte(i / 200), byte(1 + i%200)})
}

// createPods writes n running pods of the node.
func createPods(ctx context.Context, api *apiserver.Server, n int) error {
	return api.Fill(ctx, harness.Namespace, n, createPod)
}

// podsPerWorkload is the number of pods of a ReplicaSet.
const podsPerWorkload = 5

// podHash is the label pod-template-hash of all pods.
const podHash = "5d9c7b8f6d"

// replicaSet returns the name of the ReplicaSet of the pod with the number i, and podName the pod's.
func replicaSet(i int) string { return fmt.Sprintf("web-%02d-%s", i/podsPerWorkload, podHash) }
func podName(i int) string    { return fmt.Sprintf("%s-%05d", replicaSet(i), i) }

// createPod writes the pod with the number i, as its ReplicaSet and the kubelet would.
func createPod(ctx context.Context, client kubernetes.Interface, i int) error {
	set, yes := replicaSet(i), true
	pods := client.CoreV1().Pods(harness.Namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(i), Labels: map[string]string{"app": "web", "pod-template-hash": podHash},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: "1", Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	addr := podAddr(i).String()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// checkCounts returns an error unless the agent with attribution has counted the queries that it has answered for
// the pods' namespace, and the other agent nothing.
func (p *pair) checkCounts(ctx context.Context) error {
	const series = "nodens_client_queries_total{"
	var counted [2]float64
	for i, prefix := range []string{series + `namespace="` + harness.Namespace + `"`, series} {
		text, err := get(ctx, p.agents[i].Any().Metrics, "/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if _, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(line, prefix) {
				n, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return fmt.Errorf("reading %s: %w", series, err)
				}
				counted[i] += n
			}
		}
	}
	if counted[0] < float64(p.answered[0]) || counted[1] > 0 {
		return fmt.Errorf("of the pods' %d queries the agent with attribution has counted %.0f, and that without %.0f", p.answered[0], counted[0], counted[1])
	}
	return nil
}
