package daemonset

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
)

// localIP is the agent's address in the manifest.
const localIP = "169.254.20.10"

func TestScheduling(t *testing.T) {
	spec, _ := podSpec(t)
	if !spec.HostNetwork {
		t.Error("the pod is not in the node's network")
	}
	if got, want := spec.DNSPolicy, corev1.DNSDefault; got != want {
		t.Errorf("dnsPolicy %q, want %q: with the cluster's DNS the agent would query itself", got, want)
	}
	if got, want := spec.PriorityClassName, "system-node-critical"; got != want {
		t.Errorf("priority class %q, want %q", got, want)
	}
	if spec.EnableServiceLinks == nil || !*spec.EnableServiceLinks {
		t.Error("service links are off: the agent would not learn the address of kube-dns-upstream")
	}
	taints := []corev1.Taint{
		{Key: "CriticalAddonsOnly", Effect: ""},
		{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute},
		{Key: "anything", Value: "at-all", Effect: corev1.TaintEffectNoSchedule},
	}
	for _, taint := range taints {
		if !tolerated(spec.Tolerations, taint) {
			t.Errorf("a node with the taint %v gets no agent", taint)
		}
	}
}

// tolerated implements the part of the scheduler's rule that the manifest uses: the operator
// Exists, for which empty fields match everything.
func tolerated(list []corev1.Toleration, taint corev1.Taint) bool {
	return slices.ContainsFunc(list, func(tol corev1.Toleration) bool {
		return tol.Operator == corev1.TolerationOpExists &&
			(tol.Key == "" || tol.Key == taint.Key) &&
			(tol.Effect == "" || tol.Effect == taint.Effect)
	})
}

func TestSelectors(t *testing.T) {
	objects := loadManifest(t)
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	pods := labels.Set(set.Spec.Template.Labels)
	if !labels.SelectorFromSet(set.Spec.Selector.MatchLabels).Matches(pods) || len(set.Spec.Selector.MatchLabels) == 0 {
		t.Errorf("the DaemonSet selects %v, its pods have %v", set.Spec.Selector.MatchLabels, pods)
	}
	metrics, _ := findObject[*corev1.Service](t, objects, "node-local-dns")
	if !labels.SelectorFromSet(metrics.Spec.Selector).Matches(pods) || len(metrics.Spec.Selector) == 0 {
		t.Errorf("Service %s selects %v, the agent's pods have %v", metrics.Name, metrics.Spec.Selector, pods)
	}
	upstream, _ := findObject[*corev1.Service](t, objects, "kube-dns-upstream")
	if d := cmp.Diff(map[string]string{"k8s-app": "kube-dns"}, upstream.Spec.Selector); d != "" {
		t.Errorf("Service %s selects (-want +got):\n%s", upstream.Name, d)
	}
	if labels.SelectorFromSet(upstream.Spec.Selector).Matches(pods) {
		t.Errorf("Service %s selects the agent itself: it would forward to itself", upstream.Name)
	}
}

// TestRollout: on each node the new pod becomes ready before the old one is stopped.
func TestRollout(t *testing.T) {
	set, _ := findObject[*appsv1.DaemonSet](t, loadManifest(t), "")
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	want := appsv1.DaemonSetUpdateStrategy{
		Type:          appsv1.RollingUpdateDaemonSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &one, MaxUnavailable: &none},
	}
	if d := cmp.Diff(want, set.Spec.UpdateStrategy); d != "" {
		t.Errorf("update strategy (-want +got):\n%s", d)
	}
	// The agent waits 20 s for a hand-over in progress, and stops in 5 s.
	grace := set.Spec.Template.Spec.TerminationGracePeriodSeconds
	if grace == nil || *grace <= 25 {
		t.Errorf("the grace period is %v s, want more than 25 s for a hand-over and the stop", grace)
	}
}

func TestProbes(t *testing.T) {
	_, c := podSpec(t)
	tests := []struct {
		name  string
		probe *corev1.Probe
		path  string
		port  int32
		// within is the maximum time until the probe fails.
		within time.Duration
	}{
		{"liveness", c.LivenessProbe, "/health", 8080, time.Minute},
		{"readiness", c.ReadinessProbe, "/ready", 8181, 30 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.probe == nil || tt.probe.HTTPGet == nil {
				t.Fatal("no HTTP probe")
			}
			want := &corev1.HTTPGetAction{Host: localIP, Path: tt.path, Port: intstr.FromInt32(tt.port)}
			if d := cmp.Diff(want, tt.probe.HTTPGet); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			seconds := tt.probe.PeriodSeconds * tt.probe.FailureThreshold
			if d := time.Duration(seconds) * time.Second; d <= 0 || d > tt.within {
				t.Errorf("fails after %v, want at most %v", d, tt.within)
			}
			// The old agent takes the node back from one that hangs after 8 s at most. Meanwhile the
			// shared /ready fails: an old pod that is not ready is deleted at once.
			if tt.name == "readiness" && tt.probe.PeriodSeconds*(tt.probe.FailureThreshold-1) <= 16 {
				t.Errorf("fails after %d failures every %d s, want more than 16 s between the first and the last", tt.probe.FailureThreshold, tt.probe.PeriodSeconds)
			}
		})
	}
}

// startSeconds is how long an agent may take to start before the comparison: a successor waits 10 s
// for its predecessor and 40 s for its view.
const startSeconds = 60

// TestStartupProbe: the probe runs the agent's program with the agent's hand-over folder, so
// that it asks the agent in the same container.
func TestStartupProbe(t *testing.T) {
	_, c := podSpec(t)
	if c.StartupProbe == nil || c.StartupProbe.Exec == nil {
		t.Fatal("no probe with a command: over HTTP the old pod's agent would answer")
	}
	command := []string{"/usr/local/bin/nodens", "ready", "-handover-dir", flagsOf(t, c.Args)["handover-dir"]}
	if d := cmp.Diff(command, c.StartupProbe.Exec.Command); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	want := startSeconds + int(options.Default().HandoverCompare.Seconds())
	if seconds := int(c.StartupProbe.PeriodSeconds * c.StartupProbe.FailureThreshold); seconds < want {
		t.Errorf("the agent has %d s to start, want %d s for a hand-over and the comparison", seconds, want)
	}
}

func TestResources(t *testing.T) {
	_, c := podSpec(t)
	limit := c.Resources.Limits.Memory()
	if limit.Cmp(*c.Resources.Requests.Memory()) < 0 {
		t.Errorf("the memory limit %v is below the request", limit)
	}
	if cpu := c.Resources.Limits.Cpu(); !cpu.IsZero() {
		t.Errorf("a CPU limit of %v throttles the node's DNS", cpu)
	}
	place := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	if place < 0 {
		t.Fatal("GOMEMLIMIT is not set")
	}
	// The runtime writes MiB, the API Mi.
	soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[place].Value, "B"))
	if err != nil {
		t.Fatalf("GOMEMLIMIT: %v", err)
	}
	if soft.Cmp(*limit) >= 0 {
		t.Errorf("GOMEMLIMIT %v is not below the limit %v: the kernel kills the agent first", &soft, limit)
	}
}

// TestNodeName: the agent gets the name of its node, whose pods it watches. Without the version, which the API server adds, server-side apply
// is in conflict with a client-side apply of the same manifest.
func TestNodeName(t *testing.T) {
	_, c := podSpec(t)
	place := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NODE_NAME" })
	if place < 0 {
		t.Fatal("NODE_NAME is not set")
	}
	want := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}
	if d := cmp.Diff(want, c.Env[place].ValueFrom); d != "" {
		t.Errorf("NODE_NAME (-want +got):\n%s", d)
	}
}

// TestPodIdentity: the agent knows its pod, and its last words are in the pod's status.
func TestPodIdentity(t *testing.T) {
	_, c := podSpec(t)
	place := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "POD_UID" })
	if place < 0 {
		t.Fatal("POD_UID is not set")
	}
	want := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}
	if d := cmp.Diff(want, c.Env[place].ValueFrom); d != "" {
		t.Errorf("POD_UID (-want +got):\n%s", d)
	}
	if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Errorf("the termination message policy is %q", c.TerminationMessagePolicy)
	}
}

func TestVolumes(t *testing.T) {
	spec, c := podSpec(t)
	objects := loadManifest(t)
	config, _ := findObject[*corev1.ConfigMap](t, objects, "")
	volumes := map[string]corev1.VolumeSource{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v.VolumeSource
	}
	mounts := map[string]corev1.VolumeMount{}
	for _, m := range c.VolumeMounts {
		if _, ok := volumes[m.Name]; !ok {
			t.Errorf("mount %s has no volume", m.MountPath)
		}
		mounts[m.MountPath] = m
	}
	if len(mounts) != len(volumes) {
		t.Errorf("%d volumes and %d mounts, want each mounted once", len(volumes), len(mounts))
	}

	base, ok := flagsOf(t, c.Args)["basecorefile"]
	if !ok {
		t.Fatal("the arguments do not name -basecorefile")
	}
	source := volumes[mounts[path.Dir(base)].Name].ConfigMap
	if source == nil || source.Name != config.Name {
		t.Fatalf("-basecorefile %s is not in ConfigMap %s", base, config.Name)
	}
	items := []corev1.KeyToPath{{Key: "Corefile", Path: path.Base(base)}}
	if d := cmp.Diff(items, source.Items); d != "" {
		t.Errorf("items of ConfigMap %s (-want +got):\n%s", config.Name, d)
	}
	dns := volumes[mounts["/etc/kube-dns"].Name].ConfigMap
	if dns == nil || dns.Name != "kube-dns" || dns.Optional == nil || !*dns.Optional {
		t.Errorf("/etc/kube-dns is %v, want ConfigMap kube-dns, optional", dns)
	}
	lock := volumes[mounts["/run/xtables.lock"].Name].HostPath
	if lock == nil || lock.Path != "/run/xtables.lock" || lock.Type == nil || *lock.Type != corev1.HostPathFileOrCreate {
		t.Errorf("/run/xtables.lock is %v, want the node's file", lock)
	}
	dir := flagsOf(t, c.Args)["handover-dir"]
	given := volumes[mounts[dir].Name].HostPath
	if given == nil || given.Path != dir || given.Type == nil || *given.Type != corev1.HostPathDirectoryOrCreate {
		t.Errorf("-handover-dir %s is %v, want the node's folder, which both pods of an upgrade share", dir, given)
	}
	for at, m := range mounts {
		if writable := at == "/run/xtables.lock" || at == dir; m.ReadOnly == writable {
			t.Errorf("mount %s: read-only is %v", at, m.ReadOnly)
		}
	}
}

// flagsOf returns the flags of args with their values; "" for a flag without a value.
func flagsOf(t *testing.T, args []string) map[string]string {
	t.Helper()
	flags := map[string]string{}
	name := ""
	for _, arg := range args {
		if flag, ok := strings.CutPrefix(arg, "-"); ok {
			name, arg, _ = strings.Cut(strings.TrimPrefix(flag, "-"), "=")
			if _, twice := flags[name]; twice {
				t.Errorf("-%s is given twice", name)
			}
			flags[name] = arg
			continue
		}
		if name == "" || flags[name] != "" {
			t.Fatalf("argument %q belongs to no flag", arg)
		}
		flags[name] = arg
	}
	return flags
}

func TestArguments(t *testing.T) {
	_, c := podSpec(t)
	flags := flagsOf(t, c.Args)
	want := map[string]string{
		"localip":      localIP,
		"basecorefile": "/etc/coredns/Corefile.base",
		"upstreamsvc":  "kube-dns-upstream",
		"handover-dir": "/var/lib/nodens",
		"page":         "127.0.0.1:8353",
		"skipteardown": "",
	}
	if d := cmp.Diff(want, flags); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := netip.ParseAddr(flags["localip"]); err != nil {
		t.Errorf("-localip: %v", err)
	}
	findObject[*corev1.Service](t, loadManifest(t), flags["upstreamsvc"])
}

// TestManifestImage: the image is named by a version, since "latest" changes over time.
func TestManifestImage(t *testing.T) {
	_, c := podSpec(t)
	if !regexp.MustCompile(`^nodens:[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(c.Image) {
		t.Errorf("the manifest's image is %s, want nodens with a version", c.Image)
	}
}
