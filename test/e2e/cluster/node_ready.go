package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// waitReady waits until the node says that it is ready, in a condition that fits.
func (n *Node) waitReady(ctx context.Context, client kubernetes.Interface, fits func(corev1.NodeCondition) bool) error {
	return n.kubelet.Await(ctx, n.Name+" to be ready", func(ctx context.Context) error {
		object, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range object.Status.Conditions {
			if c.Type == corev1.NodeReady {
				if c.Status == corev1.ConditionTrue && fits(c) {
					return nil
				}
				return fmt.Errorf("it says %s since %s: %s", c.Status, c.LastTransitionTime, c.Message)
			}
		}
		return errors.New("the node has not said anything")
	})
}

// RestartKubelet stops the node's kubelet, starts it again and waits until the node is
// ready by its word.
func (n *Node) RestartKubelet(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(n.cluster.Config())
	if err != nil {
		return err
	}
	if err := signalChild(n.kubelet.PID(), syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.kubelet.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	if err := n.startKubelet(); err != nil {
		return err
	}
	// A lease is renewed at once, and with a time finer than the second that conditions of
	// nodes have, which a kubelet repeats every five minutes only.
	err = n.kubelet.Await(ctx, n.Name+" to renew its lease", func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(began) {
			err = fmt.Errorf("it is from %s", lease.Spec.RenewTime)
		}
		return err
	})
	if err != nil {
		return err
	}
	return n.waitReady(ctx, client, func(corev1.NodeCondition) bool { return true })
}
