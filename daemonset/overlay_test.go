package daemonset

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodens-dns/nodens/test/peer"
)

// runTool runs kubectl or helm and returns its standard output. The error contains its
// standard error. runTool also stats the files that the program may read, so that go test
// does not use a cached result after they have changed.
func runTool(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	for _, dir := range []string{"base", "components", "overlays", "chart", "settings", "cleanup", "network-policy", "monitoring"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(t.Context(), peer.Build(t, name), args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, complaint.Bytes())
	}
	return out.Bytes(), nil
}

// renderOverlay renders an overlay with kubectl and decodes it.
func renderOverlay(t *testing.T, name string) []runtime.Object {
	t.Helper()
	text, err := runTool(t, "kubectl", "kustomize", filepath.Join("overlays", name))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatalf("overlay %s: %v", name, err)
	}
	return objects
}

// compareObjects compares two sets of objects in any order.
func compareObjects(t *testing.T, want, got []runtime.Object) {
	t.Helper()
	if d := cmp.Diff(indexObjects(t, want), indexObjects(t, got)); d != "" {
		t.Errorf("objects (-want +got):\n%s", d)
	}
}

// indexObjects returns the objects by type, namespace and name.
func indexObjects(t *testing.T, objects []runtime.Object) map[string]runtime.Object {
	t.Helper()
	m := make(map[string]runtime.Object)
	for _, o := range objects {
		meta := o.(metav1.Object)
		key := fmt.Sprintf("%T %s %s/%s", o, o.GetObjectKind().GroupVersionKind().Kind, meta.GetNamespace(), meta.GetName())
		if m[key] != nil {
			t.Errorf("%s is a duplicate", key)
		}
		m[key] = o
	}
	return m
}

// TestOverlays: each overlay makes these changes and no others.
func TestOverlays(t *testing.T) {
	listen := func(addrs string) func(*appsv1.DaemonSet, *corev1.Service) {
		return func(set *appsv1.DaemonSet, _ *corev1.Service) { set.Spec.Template.Spec.Containers[0].Args[1] = addrs }
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	tests := map[string]func(*appsv1.DaemonSet, *corev1.Service){
		"link-local": func(*appsv1.DaemonSet, *corev1.Service) {},
		"takeover": func(set *appsv1.DaemonSet, upstream *corev1.Service) {
			listen(localIP+","+kubeDNS)(set, upstream)
			c := &set.Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "-takeover-service=kube-dns")
		},
		"first-rollout": func(set *appsv1.DaemonSet, _ *corev1.Service) {
			none, one := intstr.FromInt32(0), intstr.FromInt32(1)
			set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &none, MaxUnavailable: &one}
		},
		"nftables": func(set *appsv1.DaemonSet, _ *corev1.Service) {
			c := &set.Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "-netfilter=nftables")
		},
		"seccomp": func(set *appsv1.DaemonSet, _ *corev1.Service) {
			profile := "nodens.json"
			set.Spec.Template.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile}
		},
		"kernel-path": func(set *appsv1.DaemonSet, _ *corev1.Service) {
			c := &set.Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "-kernel-path=auto")
			c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "BPF", "PERFMON")
		},
		"dual-stack": func(set *appsv1.DaemonSet, upstream *corev1.Service) {
			listen(localIP+",fd00:169:254:20::10")(set, upstream)
			upstream.Spec.IPFamilyPolicy = &policy
		},
		"host":           func(set *appsv1.DaemonSet, _ *corev1.Service) { addHost(set, "auto") },
		"host-remove":    func(set *appsv1.DaemonSet, _ *corev1.Service) { addHost(set, "remove") },
		"cilium":         nil, // its own tests
		"opt-in":         nil,
		"node-condition": nil,
		"dns-policy":     nil,
	}
	dirs, err := os.ReadDir("overlays")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		change, ok := tests[dir.Name()]
		if !ok {
			t.Errorf("overlay %s is not in this table", dir.Name())
		}
		if change == nil {
			continue
		}
		t.Run(dir.Name(), func(t *testing.T) {
			want, got := loadManifest(t), renderOverlay(t, dir.Name())
			set, _ := findObject[*appsv1.DaemonSet](t, want, "")
			upstream, _ := findObject[*corev1.Service](t, want, "kube-dns-upstream")
			change(set, upstream)
			compareObjects(t, want, got)
			checkAccepted(t, got)
		})
	}
	if len(dirs) != len(tests) {
		t.Errorf("%d overlays, %d in this table", len(dirs), len(tests))
	}
}

// addHost makes the change of the component host, with a value of --host-resolver.
func addHost(set *appsv1.DaemonSet, resolver string) {
	c := &set.Spec.Template.Spec.Containers[0]
	c.Args = append(c.Args, "-host-listen=169.254.20.11", "-host-root=/host", "-host-resolver="+resolver)
	for _, m := range []struct {
		name, path string
		kind       corev1.HostPathType
		readOnly   bool
	}{
		{"host-etc", "/etc", corev1.HostPathDirectory, false},
		{"host-resolve", "/run/systemd/resolve", corev1.HostPathDirectoryOrCreate, true},
		{"host-resolved", "/run/systemd/resolved.conf.d", corev1.HostPathDirectoryOrCreate, false},
		{"host-networkmanager", "/run/NetworkManager", corev1.HostPathDirectoryOrCreate, false},
		{"host-dbus", "/run/dbus", corev1.HostPathDirectoryOrCreate, true},
	} {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: "/host" + m.path, ReadOnly: m.readOnly})
		volume := corev1.Volume{Name: m.name}
		volume.HostPath = &corev1.HostPathVolumeSource{Path: m.path, Type: &m.kind}
		set.Spec.Template.Spec.Volumes = append(set.Spec.Template.Spec.Volumes, volume)
	}
}

// checkAccepted: checks that the agent accepts the Corefile with the arguments, that each zone has a
// listener, and that the upstream Service comes before the DaemonSet.
func checkAccepted(t *testing.T, objects []runtime.Object) {
	t.Helper()
	set, last := findObject[*appsv1.DaemonSet](t, objects, "")
	maps, _ := findObject[*corev1.ConfigMap](t, objects, "")
	flags := flagsOf(t, set.Spec.Template.Spec.Containers[0].Args)
	for _, b := range parse(t, maps.Data["Corefile"], flags).Blocks {
		if len(b.Listen) == 0 {
			t.Errorf("zone %s has no listener", b.Zones[0])
		}
	}
	if _, place := findObject[*corev1.Service](t, objects, flags["upstreamsvc"]); place > last {
		t.Errorf("Service %s comes after the DaemonSet, whose pods need its address", flags["upstreamsvc"])
	}
}

// TestBase: nodens.yaml is the base of the overlays.
func TestBase(t *testing.T) {
	var files []os.FileInfo
	for _, name := range []string{"nodens.yaml", "base/nodens.yaml"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, info)
	}
	if !os.SameFile(files[0], files[1]) {
		t.Error("nodens.yaml is not base/nodens.yaml")
	}
	text, err := runTool(t, "kubectl", "kustomize", "base")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	compareObjects(t, loadManifest(t), slices.Clone(objects))
}
