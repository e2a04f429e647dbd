package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// The condition that the agent writes, and the taint that it removes from the Node once it answers.
const (
	NodeConditionType = "nodens.dev/DNSReady"
	StartupTaint      = "nodens.dev/not-ready"
)

// NodeCondition is the state of DNS on a node.
type NodeCondition struct {
	Ready bool
	// Reason is a word in camel case, Message is for people; the API server takes 32 KiB.
	Reason, Message string
	Since           time.Time // of Ready
}

// NodeWriter writes what the agent knows into the Node object of its machine. Its methods block for a request at most, five
// seconds, and are for one goroutine. Their errors name the node; an error status of the API server is in their chain.
type NodeWriter struct {
	conn *reflector.Connection
	core rest.Interface
	node string
	uid  types.UID // of the Node; "" until it is known
}

// writeTimeout bounds a request of a [NodeWriter].
const writeTimeout = 5 * time.Second

// NewNodeWriter returns a writer with the credentials in cfg for the Node of that name. It opens no connection.
func NewNodeWriter(cfg *config.Kubernetes, node string) (*NodeWriter, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	w := &NodeWriter{node: node}
	if w.conn, err = reflector.Connect(rc); err != nil {
		return nil, fmt.Errorf("kubernetes: credentials for the API server: %w", err)
	}
	if w.core, err = w.conn.Client(corev1.SchemeGroupVersion); err != nil {
		return nil, fmt.Errorf("kubernetes: client for nodes: %w", err)
	}
	return w, nil
}

// Close closes the connection.
func (w *NodeWriter) Close() { w.conn.Close() }

// SetCondition writes c, and that it is right now. Other conditions stay.
func (w *NodeWriter) SetCondition(ctx context.Context, c NodeCondition) error {
	status := corev1.ConditionFalse
	if c.Ready {
		status = corev1.ConditionTrue
	}
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: NodeConditionType, Status: status, Reason: c.Reason, Message: c.Message,
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.NewTime(c.Since),
	}}}}
	return w.patch(ctx, types.StrategicMergePatchType, patch, "status")
}

// patch sends a patch of the Node, or of its subresource.
func (w *NodeWriter) patch(ctx context.Context, t types.PatchType, patch any, subresources ...string) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return w.do(ctx, w.core.Patch(t).Resource("nodes").Name(w.node).SubResource(subresources...).Body(body), nil)
}

// do sends a request, and decodes the reply into result unless that is nil.
func (w *NodeWriter) do(ctx context.Context, r *rest.Request, result any) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	reply := r.SetHeader("Accept", runtime.ContentTypeJSON).MaxRetries(0).Do(ctx)
	err := reply.Error() // with the text of the API server, which Raw does not decode
	if err == nil && result != nil {
		data, _ := reply.Raw()
		err = json.Unmarshal(data, result)
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", w.node, reflector.WithoutURL(err))
	}
	return nil
}

// RemoveTaint removes [StartupTaint], with any effect, if the Node has it.
func (w *NodeWriter) RemoveTaint(ctx context.Context) (removed bool, err error) {
	var node struct {
		Metadata struct{ UID types.UID }
		Spec     struct{ Taints []corev1.Taint }
	}
	if err := w.do(ctx, w.core.Get().Resource("nodes").Name(w.node), &node); err != nil {
		return false, err
	}
	w.uid = node.Metadata.UID
	var patch []map[string]string
	for i, t := range slices.Backward(node.Spec.Taints) { // the places of the others stay
		if t.Key == StartupTaint {
			path := fmt.Sprintf("/spec/taints/%d", i)
			// Others change taints, too: test fails if the taint has another place by now.
			patch = append(patch, map[string]string{"op": "test", "path": path + "/key", "value": StartupTaint}, map[string]string{"op": "remove", "path": path})
		}
	}
	if patch == nil {
		return false, nil
	}
	return true, w.patch(ctx, types.JSONPatchType, patch)
}

// Event writes an Event about the Node, as kubectl describe node shows it.
func (w *NodeWriter) Event(ctx context.Context, warning bool, reason, message string) error {
	kind, now := corev1.EventTypeNormal, metav1.Now()
	if warning {
		kind = corev1.EventTypeWarning
	}
	event := corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: w.node + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: w.uid},
		Type:           kind, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: "nodens", Host: w.node}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	body, err := json.Marshal(&event)
	if err != nil {
		return err
	}
	return w.do(ctx, w.core.Post().Namespace(metav1.NamespaceDefault).Resource("events").SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body), nil)
}
