package install

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// quantities are the resources of a node.
func quantities(cpu, memory, pods string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse(pods),
	}
}

// playKubelets does what kubelets do to the objects of their pods, until ctx ends: a pod that the scheduler has placed
// becomes ready, and one that is deleted goes.
func playKubelets(ctx context.Context, client kubernetes.Interface) error {
	for ctx.Err() == nil {
		w, err := client.CoreV1().Pods("kube-system").Watch(ctx, metav1.ListOptions{})
		if err == nil {
			err = playPods(ctx, client, w)
			w.Stop()
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func playPods(ctx context.Context, client kubernetes.Interface, w watch.Interface) error {
	for event := range w.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted {
			continue
		}
		var err error
		switch pods := client.CoreV1().Pods(pod.Namespace); {
		case pod.DeletionTimestamp != nil:
			err = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
		case pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodRunning:
			pod.Status = runningStatus()
			_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		}
		// The pod may have changed or gone since; another event says so.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("playing the kubelet of pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func runningStatus() corev1.PodStatus {
	now := metav1.Now()
	return corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	}
}

// errPending is a pod that no node can take.
var errPending = errors.New("a pod is pending")
