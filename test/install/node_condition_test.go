package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/kubernetes"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

var errNotRefused = errors.New("the agent may write about another node")

// agentToken returns a token as the kubelet gives to the agent's pod on a node.
func agentToken(t *testing.T, admin *client.Clientset, node string) string {
	t.Helper()
	pod, err := admin.CoreV1().Pods("kube-system").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "node-local-dns", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	check.NoError(t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	reply, err := admin.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "node-local-dns", request, metav1.CreateOptions{})
	check.NoError(t, err)
	return reply.Status.Token
}

// testNode is a Node as a cluster has it, with three taints and as many images as the kubelet reports.
func testNode(name string) *corev1.Node {
	var images []corev1.ContainerImage
	for i := range 50 {
		image := corev1.ContainerImage{SizeBytes: 1}
		for j := range 5 {
			image.Names = append(image.Names, fmt.Sprintf("registry.example/%s/%d:%d", strings.Repeat("x", 150), i, j))
		}
		images = append(images, image)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, Taints: []corev1.Taint{
			{Key: "nodens.dev/not-ready", Effect: corev1.TaintEffectNoExecute}, {Key: "other", Effect: corev1.TaintEffectNoSchedule},
			{Key: "nodens.dev/not-ready", Effect: corev1.TaintEffectNoSchedule},
		}},
		Status: corev1.NodeStatus{
			Capacity:   quantities("4", "4Gi", "100"),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Images:     images,
		},
	}
}

// TestNodeCondition: with the rights of the overlay node-condition an agent writes its condition and Events and removes its taint, of
// its own Node only, and nothing else of it.
func TestNodeCondition(t *testing.T) {
	server := apiserver.Start(t)
	admin, err := server.Client()
	check.NoError(t, err)
	ctx := t.Context()
	for _, name := range []string{"a", "b"} {
		_, err := admin.CoreV1().Nodes().Create(ctx, testNode(name), metav1.CreateOptions{})
		check.NoError(t, err)
	}
	applyOverlay(t, server, "node-condition", nil)
	settings := server.Config(apiserver.Admin)
	settings.BearerToken = agentToken(t, admin, "a")
	agent, err := client.NewForConfig(settings)
	check.NoError(t, err)
	kubeconfig := tokenKubeconfig(t, server, settings.BearerToken)
	own, err := kubernetes.NewNodeWriter(&config.Kubernetes{Kubeconfig: kubeconfig}, "a")
	check.NoError(t, err)
	t.Cleanup(own.Close)
	other, err := kubernetes.NewNodeWriter(&config.Kubernetes{Kubeconfig: kubeconfig}, "b")
	check.NoError(t, err)
	t.Cleanup(other.Close)
	condition := kubernetes.NodeCondition{Ready: true, Reason: "DNSReady", Message: "text", Since: time.Now()}
	err = peer.Await(ctx, "the rights, and the policy", func(ctx context.Context) error {
		if err := own.SetCondition(ctx, condition); err != nil {
			return err
		}
		err := other.SetCondition(ctx, condition)
		if err == nil {
			return errNotRefused
		}
		if !strings.Contains(err.Error(), "own node only") {
			return err
		}
		return nil
	})
	check.NoError(t, err)
	removed, err := own.RemoveTaint(ctx)
	if err != nil || !removed {
		t.Errorf("the taint is removed: %v, %v", removed, err)
	}
	if removed, err := own.RemoveTaint(ctx); err != nil || removed {
		t.Errorf("without a taint: removed %v, %v", removed, err)
	}
	check.NoError(t, own.Event(ctx, true, "UpstreamsDown", "all upstreams are down"))
	node, err := admin.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
	check.NoError(t, err)
	check.Equal(t, []string{"other", corev1.TaintNodeNotReady}, taintKeys(node), "taints; the API server adds the second one to new Nodes")
	conditions := make(map[corev1.NodeConditionType]string)
	for _, c := range node.Status.Conditions {
		conditions[c.Type] = string(c.Status) + c.Message
	}
	check.Equal(t, map[corev1.NodeConditionType]string{corev1.NodeReady: "True", kubernetes.NodeConditionType: "Truetext"}, conditions, "conditions")
	events, err := admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=a"})
	check.NoError(t, err)
	if len(events.Items) != 1 || events.Items[0].Reason != "UpstreamsDown" || events.Items[0].InvolvedObject.UID != node.UID {
		t.Errorf("events %v", events.Items)
	}
	if _, err := other.RemoveTaint(ctx); !isRefused(err) {
		t.Errorf("the taint of another node: %v", err)
	}
	if err := other.Event(ctx, true, "UpstreamsDown", "all upstreams are down"); !isRefused(err) {
		t.Errorf("an Event about another node: %v", err)
	}
	refuseNodePatches(t, agent)
	testConditionOfAgent(t, admin, tokenKubeconfig(t, server, agentToken(t, admin, "b")))
	unbound := server.Config(apiserver.Admin)
	request, err := admin.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "node-local-dns", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	check.NoError(t, err)
	unbound.BearerToken = request.Status.Token
	nowhere, err := client.NewForConfig(unbound)
	check.NoError(t, err)
	if _, err := nowhere.CoreV1().Nodes().Patch(ctx, "a", types.MergePatchType, []byte(`{"spec": {"unschedulable": true}}`), metav1.PatchOptions{}); !isRefused(err) {
		t.Errorf("with a token of no pod: %v", err)
	}
}

// tokenKubeconfig returns the path of a kubeconfig file with the token.
func tokenKubeconfig(t *testing.T, server *apiserver.Server, token string) string {
	t.Helper()
	text, err := os.ReadFile(server.Kubeconfig(apiserver.Agent))
	check.NoError(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	check.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "token: agent", "token: "+token, 1)), 0o600))
	return file
}

// testConditionOfAgent: an agent on node b writes the condition and removes the taint when it answers.
func testConditionOfAgent(t *testing.T, admin *client.Clientset, kubeconfig string) {
	t.Helper()
	port, err := peer.Port()
	check.NoError(t, err)
	agent := peer.StartServer(t, fmt.Sprintf("cluster.local:%d {\n bind 127.0.0.1\n kubernetes cluster.local {\n  kubeconfig %s\n }\n}\n", port, kubeconfig), peer.Command{
		Name: "nodens", Args: []string{"--node-name=b", "--node-condition"},
	})
	err = agent.Await(t.Context(), "the condition", func(ctx context.Context) error {
		node, err := admin.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == kubernetes.NodeConditionType && c.Status == corev1.ConditionTrue && c.Message != "text" && !slices.Contains(taintKeys(node), kubernetes.StartupTaint) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, taints %v", node.Status.Conditions, node.Spec.Taints)
	})
	check.NoError(t, err)
}

func taintKeys(node *corev1.Node) (keys []string) {
	for _, t := range node.Spec.Taints {
		keys = append(keys, t.Key)
	}
	return keys
}

// refuseNodePatches: nothing else of its own Node can be changed.
func refuseNodePatches(t *testing.T, agent *client.Clientset) {
	t.Helper()
	for _, p := range []struct{ patch, subresource string }{
		{`{"spec": {"unschedulable": true}}`, ""},
		{`{"spec": {"taints": []}}`, ""},
		{`{"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}`, ""},
		{`{"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, {"key": "nodens.dev/not-ready", "effect": "NoSchedule"}]}}`, ""},
		{`{"spec": {"taints": [{"key": "other", "effect": "NoExecute"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}`, ""},
		{`{"spec": {"providerID": "x"}}`, ""},
		{`{"metadata": {"labels": {"zone": "b"}}}`, ""},
		{`{"metadata": {"labels": {"zone": "b"}}}`, "status"},
		{`{"metadata": {"annotations": {"a": "b"}}}`, "status"},
		{`{"metadata": {"finalizers": ["a.example/b"]}}`, "status"},
		{`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "status"},
		{`{"status": {"conditions": [{"type": "Other", "status": "True"}]}}`, "status"},
		{`{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`, "status"},
		{`{"status": {"capacity": {"cpu": "8"}}}`, "status"},
		{`{"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}`, "status"},
		{`{"status": {"images": [{"names": ["b"], "sizeBytes": 1}]}}`, "status"},
		{`{"status": {"nodeInfo": {"kubeletVersion": "v9"}}}`, "status"},
		{`{"status": {"volumesAttached": [{"name": "a", "devicePath": "b"}]}}`, "status"},
	} {
		_, err := agent.CoreV1().Nodes().Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(p.patch), metav1.PatchOptions{}, p.subresource)
		if !isRefused(err) {
			t.Errorf("%s %s: %v, want an error of the policy", p.subresource, p.patch, err)
		}
	}
	if err := agent.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting the Node: %v", err)
	}
}

// isRefused reports whether err is the policy's.
func isRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'node-condition.nodens.dev'")
}
