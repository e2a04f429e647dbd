package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestAdopt: however NodeLocal DNSCache was installed, and however nodens is installed over it, the next upgrade schedules
// its pods beside the old ones. NodeLocal DNSCache's manifest declares ports, which with hostNetwork are ports of the node;
// what was not made by kubectl apply keeps them unless the new object removes them. The API server, scheduler and DaemonSet
// controller are Kubernetes'; the test plays the kubelets.
func TestAdopt(t *testing.T) {
	c := startCluster(t)
	old := filepath.Join(c.root, "test/e2e/testdata/nodelocaldns.yaml")
	privileged := c.write(t, "privileged.yaml", strings.Replace(readFile(t, old), "          capabilities:\n            add:\n            - NET_ADMIN\n", "          privileged: true\n", 1))
	oldChart := c.oldChart(t, readFile(t, old))
	const (
		helm  = "helm upgrade --install %s daemonset/chart --namespace kube-system --take-ownership --set image.repository=example.test/nodens,image.tag=v%s,updateStrategy.rollingUpdate.%s=1"
		apply = "kubectl apply -f "
	)
	overlay := func(name string) string {
		return "kubectl kustomize daemonset/overlays/" + name + " | kubectl apply -f -"
	}
	upgrade := strings.Replace(overlay("link-local"), " | ", " | sed s/nodens:0.1.0/nodens:v2/ | ", 1)
	rows := []struct {
		name string
		// lines install NodeLocal DNSCache, then nodens, then its next version. They run in the repository's root.
		lines []string
	}{
		{"create, kustomize", []string{"kubectl create -f " + old, overlay("first-rollout"), overlay("link-local"), upgrade}},
		{"apply, plain manifest", []string{apply + old, apply + "daemonset/nodens.yaml", upgrade}},
		{"create privileged, plain manifest", []string{"kubectl create -f " + privileged, apply + "daemonset/nodens.yaml", upgrade}},
		{"server-side apply, kustomize", []string{
			"kubectl apply --server-side -f " + old,
			strings.Replace(overlay("first-rollout"), "apply", "apply --server-side --force-conflicts", 1),
			strings.Replace(upgrade, "apply", "apply --server-side --force-conflicts", 1),
		}},
		{"Helm, Helm", []string{
			"helm install old " + oldChart + " --namespace kube-system",
			fmt.Sprintf(helm, "node-local-dns", "1", "maxUnavailable"), fmt.Sprintf(helm, "node-local-dns", "1", "maxSurge"), fmt.Sprintf(helm, "node-local-dns", "2", "maxSurge"),
		}},
		{"Helm, Helm, one release", []string{
			"helm install node-local-dns " + oldChart + " --namespace kube-system",
			fmt.Sprintf(helm, "node-local-dns", "1", "maxUnavailable"), fmt.Sprintf(helm, "node-local-dns", "2", "maxSurge"),
		}},
		{"create, migrate", []string{"kubectl create -f " + old, c.migrate("--image example.test/nodens:v1"), c.migrate(""), c.migrate("--image example.test/nodens:v2")}},
		{"create privileged, migrate saved objects", []string{
			"kubectl create -f " + privileged,
			"kubectl -n kube-system get daemonset,configmap,service -o yaml | sed '/last-applied/,+1d' | " + c.nodens + " migrate --image example.test/nodens:v1 -f - 2>/dev/null | kubectl apply -f -",
			c.migrate(""), c.migrate("--image example.test/nodens:v2"),
		}},
		{"Helm, migrate", []string{
			"helm install old " + oldChart + " --namespace kube-system",
			c.migrate("--image example.test/nodens:v1"), c.migrate(""), c.migrate("--image example.test/nodens:v2"),
		}},
	}
	for _, row := range rows[:soak.Choose(2, len(rows))] {
		t.Run(row.name, func(t *testing.T) {
			t.Cleanup(func() { c.clear(t) })
			for _, line := range row.lines {
				c.run(t, line)
				if err := c.awaitRollout(t.Context()); err != nil {
					t.Fatalf("after %q: %v", line, err)
				}
			}
			set, err := c.client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "node-local-dns", metav1.GetOptions{})
			check.NoError(t, err)
			box := set.Spec.Template.Spec.Containers[0]
			if !strings.HasSuffix(box.Image, "nodens:v2") || len(box.Ports) > 0 {
				t.Errorf("the DaemonSet has image %s and ports %v, want nodens:v2 and none", box.Image, box.Ports)
			}
		})
	}
}

// adoption is a control plane with two nodes that exist as objects only.
type adoption struct {
	root, dir, nodens string
	env               []string
	client            *kubernetes.Clientset
}

func startCluster(t *testing.T) *adoption {
	t.Helper()
	server := apiserver.Start(t)
	client, err := server.Client()
	check.NoError(t, err)
	root, err := peer.Root()
	check.NoError(t, err)
	kubeconfig := server.Kubeconfig(apiserver.Admin)
	c := &adoption{root: root, dir: t.TempDir(), nodens: peer.Build(t, "nodens"), client: client}
	programs := filepath.Dir(peer.Build(t, "kubectl")) + ":" + filepath.Dir(peer.Build(t, "helm"))
	c.env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+c.dir)
	peer.Start(t, peer.Command{Name: "kube-controller-manager", Path: peer.Build(t, "kube-controller-manager"), Dir: c.dir, Args: []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0", "--controllers=daemonset-controller,garbage-collector-controller",
		"--flex-volume-plugin-dir=" + c.dir,
	}})
	peer.Start(t, peer.Command{Name: "kube-scheduler", Path: peer.Build(t, "kube-scheduler"), Dir: c.dir, Args: []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0",
	}})
	for _, name := range []string{"a", "b"} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
			Status: corev1.NodeStatus{
				Allocatable: quantities("4", "4Gi", "100"), Capacity: quantities("4", "4Gi", "100"),
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- playKubelets(ctx, client) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// awaitRollout waits until every node has a ready pod of the latest template, and no other. A pod that the scheduler can't
// place is an error.
func (c *adoption) awaitRollout(ctx context.Context) error {
	var pending error
	err := peer.Await(ctx, "the rollout", func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, cond := range pod.Status.Conditions {
				if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable && pod.DeletionTimestamp == nil {
					pending = fmt.Errorf("%w: %s", errPending, cond.Message)
					return nil
				}
			}
		}
		set, err := c.client.AppsV1().DaemonSets("kube-system").Get(ctx, "node-local-dns", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; !rolledOut(set) || len(pods.Items) != 2 {
			return fmt.Errorf("%d pods, status %+v", len(pods.Items), s)
		}
		return nil
	})
	if pending != nil {
		return pending
	}
	return err
}

func rolledOut(set *appsv1.DaemonSet) bool {
	s := set.Status
	return s.ObservedGeneration == set.Generation && s.UpdatedNumberScheduled == 2 && s.NumberReady == 2
}

// run runs a line of shell in the repository's root.
func (c *adoption) run(t *testing.T, line string) {
	t.Helper()
	// Not the test's context, which has ended in a cleanup.
	cmd := exec.CommandContext(context.Background(), "bash", "-c", "set -e -o pipefail; "+line)
	cmd.Dir, cmd.Env = c.root, c.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// migrate returns a line that applies the next step of nodens migrate.
func (c *adoption) migrate(args string) string {
	return c.nodens + " migrate " + args + " 2>/dev/null | kubectl apply -f -"
}

// clear removes what a row has installed.
func (c *adoption) clear(t *testing.T) {
	t.Helper()
	c.run(t, "helm list -n kube-system -q | xargs -r helm uninstall -n kube-system --no-hooks >/dev/null; "+
		"kubectl -n kube-system delete --ignore-not-found --wait daemonset/node-local-dns serviceaccount/node-local-dns "+
		"configmap/node-local-dns configmap/nodens service/node-local-dns service/kube-dns-upstream; "+
		"kubectl delete --ignore-not-found clusterrole/nodens clusterrolebinding/nodens; "+
		"kubectl -n kube-system wait --for=delete pod --all --timeout=1m")
}

// write writes a file of the test.
func (c *adoption) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(c.dir, name)
	check.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// oldChart writes a chart of NodeLocal DNSCache with these objects.
func (c *adoption) oldChart(t *testing.T, objects string) string {
	t.Helper()
	check.NoError(t, os.MkdirAll(filepath.Join(c.dir, "old", "templates"), 0o700))
	c.write(t, "old/Chart.yaml", "apiVersion: v2\nname: old\nversion: 1.0.0\n")
	c.write(t, "old/templates/all.yaml", objects)
	return filepath.Join(c.dir, "old")
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	check.NoError(t, err)
	return string(text)
}
