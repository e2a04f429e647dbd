package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/cmd/nodens/kubectl"
	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// podDNS are the fields of a pod that the policy sets.
type podDNS struct {
	Policy corev1.DNSPolicy
	Config *corev1.PodDNSConfig
}

// optInPod is a pod in a namespace with the label.
type optInPod struct {
	name   string
	change func(*corev1.Pod)
	// want is nil if the policy leaves the pod alone.
	want *corev1.PodDNSConfig
}

// clusterSearch are the search domains of the cluster for pods of the namespace shop.
var clusterSearch = []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}

// agentFirst is what the policy sets, with the pod's own search domains and options.
func agentFirst(searches []string, options ...corev1.PodDNSConfigOption) *corev1.PodDNSConfig {
	return &corev1.PodDNSConfig{
		Nameservers: []string{"169.254.20.10", "10.96.0.10"}, Searches: append(clusterSearch[:3:3], searches...), Options: options,
	}
}

func option(name, value string) corev1.PodDNSConfigOption {
	return corev1.PodDNSConfigOption{Name: name, Value: &value}
}

// domains returns n search domains of so many bytes.
func domains(n, size int) (list []string) {
	for i := range n {
		label := fmt.Sprintf("d%d.", i)
		for size-len(label) > 63 {
			label += strings.Repeat("x", 62) + "."
		}
		list = append(list, label+strings.Repeat("x", size-len(label)))
	}
	return list
}

func withConfig(c corev1.PodDNSConfig) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.DNSConfig = &c }
}

func optInPods() []optInPod {
	five := option("ndots", "5")
	edns := corev1.PodDNSConfigOption{Name: "edns0"}
	return []optInPod{
		{"plain", func(*corev1.Pod) {}, agentFirst(nil, five)},
		{"of a ReplicaSet", func(p *corev1.Pod) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "1", Controller: &yes}}
		}, agentFirst(nil, five)},
		{"own search domains", withConfig(corev1.PodDNSConfig{Searches: []string{"corp.example"}}), agentFirst([]string{"corp.example"}, five)},
		{"own options", withConfig(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{edns}}), agentFirst(nil, edns, five)},
		{"own ndots", withConfig(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{option("ndots", "1"), edns}}), agentFirst(nil, option("ndots", "1"), edns)},
		{"empty dnsConfig", withConfig(corev1.PodDNSConfig{}), agentFirst(nil, five)},
		{"empty lists", withConfig(corev1.PodDNSConfig{Nameservers: []string{}, Searches: []string{}, Options: []corev1.PodDNSConfigOption{}}), agentFirst(nil, five)},
		{"32 search domains", withConfig(corev1.PodDNSConfig{Searches: domains(29, 8)}), agentFirst(domains(29, 8), five)},
		{"33 search domains", withConfig(corev1.PodDNSConfig{Searches: domains(30, 8)}), nil},
		{"long search domains", withConfig(corev1.PodDNSConfig{Searches: domains(10, 199)}), nil},
		{"own name server", withConfig(corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}), nil},
		{"hostNetwork", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil},
		{"ClusterFirstWithHostNet", func(p *corev1.Pod) {
			p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		}, nil},
		{"Default", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, nil},
		{"None", func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
		}, nil},
		// Also what a copy of a changed pod looks like.
		{"changed already", func(p *corev1.Pod) { p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, agentFirst(nil, five) }, nil},
		{"label of the pod", func(p *corev1.Pod) { p.Labels = map[string]string{"nodens.dev/dns": "cluster"} }, nil},
		{"Windows", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, nil},
		{"node selector for Windows", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "windows"} }, nil},
		{"static pod", func(p *corev1.Pod) {
			p.Annotations, p.Spec.NodeName = map[string]string{"kubernetes.io/config.mirror": "1"}, "a"
		}, nil},
	}
}

// optIn is an API server with the overlay opt-in.
type optIn struct {
	client *kubernetes.Clientset
}

// namespace makes a namespace, or sets its label nodens.dev/dns; "" removes it.
func (o *optIn) namespace(t *testing.T, name, label string) {
	t.Helper()
	spaces := o.client.CoreV1().Namespaces()
	_, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		check.NoError(t, err)
	}
	value := "null"
	if label != "" {
		value = `"` + label + `"`
	}
	patch := fmt.Sprintf(`{"metadata": {"labels": {"nodens.dev/dns": %s}}}`, value)
	_, err = spaces.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	check.NoError(t, err)
}

// create makes a pod and returns what the API server has made of it.
func (o *optIn) create(ctx context.Context, namespace string, p optInPod) (podDNS, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	p.change(pod)
	made, err := o.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return podDNS{}, err
	}
	return podDNS{made.Spec.DNSPolicy, made.Spec.DNSConfig}, nil
}

// await waits until a plain pod in the namespace shop gets what is wanted; a pod that is refused ends the test.
func (o *optIn) await(t *testing.T, what string, want podDNS) {
	t.Helper()
	err := peer.Await(t.Context(), what, func(ctx context.Context) error {
		got, err := o.create(ctx, "shop", optInPods()[0])
		if err != nil {
			t.Errorf("a pod is refused: %v", err)
			return nil
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("the pod's DNS (-want +got):\n%s", d)
		}
		return nil
	})
	check.NoError(t, err)
}

// TestOptIn: the overlay opt-in changes new pods of labelled namespaces and no others; without the label, or if an
// expression fails, new pods are as before.
func TestOptIn(t *testing.T) {
	releases := peer.Releases()
	for _, release := range releases[len(releases)-soak.Choose(1, len(releases)):] {
		t.Run(release, func(t *testing.T) { testOptIn(t, release) })
	}
}

func testOptIn(t *testing.T, release string) {
	server := apiserver.StartRelease(t, release)
	client, err := server.Client()
	check.NoError(t, err)
	o := &optIn{client}
	o.namespace(t, "shop", "agent")
	o.namespace(t, "other", "cluster")
	before := make(map[string]podDNS)
	for _, p := range optInPods() {
		before[p.name], err = o.create(t.Context(), "shop", p)
		check.NoError(t, err)
	}
	plain, changed := before["plain"], podDNS{corev1.DNSNone, optInPods()[0].want}
	applyOverlay(t, server, "opt-in", nil)
	o.await(t, "the policy", changed)
	for _, p := range optInPods() {
		want := before[p.name]
		if p.want != nil {
			want = podDNS{corev1.DNSNone, p.want}
		}
		got, err := o.create(t.Context(), "shop", p)
		check.NoError(t, err)
		check.Equal(t, want, got, "%s", p.name)
	}
	for _, namespace := range []string{"other", "default"} {
		got, err := o.create(t.Context(), namespace, optInPods()[0])
		check.NoError(t, err)
		check.Equal(t, plain, got, "a pod in namespace %s", namespace)
	}
	o.namespace(t, "shop", "")
	o.await(t, "pods as before without the label", plain)
	o.namespace(t, "shop", "agent")
	o.await(t, "changed pods with the label", changed)
	// An API server that has just started knows the policy before it takes a pod.
	check.NoError(t, server.Restart(t.Context()))
	got, err := o.create(t.Context(), "shop", optInPods()[0])
	check.NoError(t, err)
	check.Equal(t, changed, got, "after a restart")
	applyOverlay(t, server, "opt-in", func(manifest string) string {
		return strings.Replace(manifest, `''cluster.local''`, `[''cluster.local''][object.spec.containers.size()]`, 1)
	})
	o.await(t, "pods as before while an expression fails", plain)
}

// TestOptInBeta: the policy works in the version of the API that Kubernetes 1.34 and 1.35 have.
func TestOptInBeta(t *testing.T) {
	if testing.Short() {
		t.Skip("building an API server takes minutes: skipped under -short")
	}
	server, err := apiserver.Open(t.Context(), t.TempDir(), "--runtime-config=admissionregistration.k8s.io/v1beta1=true")
	check.NoError(t, err)
	t.Cleanup(server.Close)
	client, err := server.Client()
	check.NoError(t, err)
	o := &optIn{client}
	o.namespace(t, "shop", "agent")
	applyOverlay(t, server, "opt-in", func(manifest string) string {
		return strings.ReplaceAll(manifest, "admissionregistration.k8s.io/v1\n", "admissionregistration.k8s.io/v1beta1\n")
	})
	o.await(t, "the policy", podDNS{corev1.DNSNone, optInPods()[0].want})
}

// applyOverlay applies an overlay, changed by change if that is not nil.
func applyOverlay(t *testing.T, server *apiserver.Server, overlay string, change func(string) string) {
	t.Helper()
	root, err := peer.Root()
	check.NoError(t, err)
	kubectl := peer.Build(t, "kubectl")
	manifest, err := exec.CommandContext(t.Context(), kubectl, "kustomize", filepath.Join(root, "daemonset/overlays", overlay)).Output()
	check.NoError(t, err)
	if change != nil {
		text := change(string(manifest))
		if text == string(manifest) {
			t.Fatalf("nothing is changed in:\n%s", manifest)
		}
		manifest = []byte(text)
	}
	cmd := exec.CommandContext(t.Context(), kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-")
	cmd.Stdin, cmd.Env = strings.NewReader(string(manifest)), append(os.Environ(), "KUBECONFIG="+server.Kubeconfig(apiserver.Admin), "HOME="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// TestNdotsPatch: what kubectl nodens advise --apply writes, with kubectl and an API server. A dry run changes nothing, the
// other fields stay, and an object that somebody has changed meanwhile is left alone.
func TestNdotsPatch(t *testing.T) {
	server := apiserver.Start(t)
	client, err := server.Client()
	check.NoError(t, err)
	t.Setenv("PATH", filepath.Dir(peer.Build(t, "kubectl"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, c := t.Context(), &kubectl.Cluster{Kubeconfig: server.Kubeconfig(apiserver.Admin), Namespace: "kube-system"}
	edns := corev1.PodDNSConfigOption{Name: "edns0"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "c"}}, RestartPolicy: corev1.RestartPolicyAlways,
			DNSConfig: &corev1.PodDNSConfig{Searches: []string{"corp.example"}, Options: []corev1.PodDNSConfigOption{option("ndots", "5"), edns}},
		},
	}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	meta := metav1.ObjectMeta{Name: "web"}
	_, err = client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
	check.NoError(t, err)
	task := *template.DeepCopy()
	task.Spec.RestartPolicy, task.Spec.DNSConfig = corev1.RestartPolicyNever, nil
	_, err = client.BatchV1().CronJobs("default").Create(ctx, &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{
		Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: task}},
	}}, metav1.CreateOptions{})
	check.NoError(t, err)
	configs := func() (deployment, cronJob *corev1.PodDNSConfig) {
		d, err := client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		check.NoError(t, err)
		j, err := client.BatchV1().CronJobs("default").Get(ctx, "web", metav1.GetOptions{})
		check.NoError(t, err)
		return d.Spec.Template.Spec.DNSConfig, j.Spec.JobTemplate.Spec.Template.Spec.DNSConfig
	}
	for _, kind := range []string{"Deployment", "CronJob"} {
		p, err := c.NdotsPatch(ctx, &report.AdvisedWorkload{Namespace: "default", WorkloadKind: kind, Workload: "web"}, 2)
		check.NoError(t, err)
		before, _ := configs()
		check.NoError(t, p.Apply(ctx, true))
		if after, _ := configs(); kind == "Deployment" && !cmp.Equal(before, after) {
			t.Errorf("a dry run changes it: %s", cmp.Diff(before, after))
		}
		check.NoError(t, p.Apply(ctx, false))
		if err := p.Apply(ctx, false); err == nil {
			t.Errorf("%s: a second patch of the same version succeeds", kind)
		}
	}
	deployment, cronJob := configs()
	check.Equal(t, &corev1.PodDNSConfig{Searches: []string{"corp.example"}, Options: []corev1.PodDNSConfigOption{edns, option("ndots", "2")}}, deployment, "of the Deployment")
	check.Equal(t, &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{option("ndots", "2")}}, cronJob, "of the CronJob")
}
