package daemonset

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestCleanup: cleanup.yaml runs the agent's image with the volumes, arguments and
// capabilities that the clean-up needs.
func TestCleanup(t *testing.T) {
	text, err := os.ReadFile("cleanup.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decodeObjects(text)
	if err != nil {
		t.Fatalf("cleanup.yaml: %v", err)
	}
	set, _ := findObject[*appsv1.DaemonSet](t, objects, "")
	spec := set.Spec.Template.Spec
	agent, c := podSpec(t)
	if !spec.HostNetwork {
		t.Error("it does not use the node's network")
	}
	if !cmp.Equal(set.Spec.Selector.MatchLabels, set.Spec.Template.Labels) {
		t.Error("it does not select its own pods")
	}
	first := spec.InitContainers[0]
	for _, container := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		if container.Image != c.Image {
			t.Errorf("container %s is of image %s, the agent of %s", container.Name, container.Image, c.Image)
		}
	}
	if len(first.Args) == 0 || first.Args[0] != "cleanup" {
		t.Fatalf("its arguments are %q, want cleanup first", first.Args)
	}
	flags, agents := flagsOf(t, first.Args[1:]), flagsOf(t, c.Args)
	for _, name := range []string{"localip", "handover-dir"} {
		if flags[name] != agents[name] || flags[name] == "" {
			t.Errorf("-%s is %q, the agent's %q", name, flags[name], agents[name])
		}
	}
	// The pod waits after the clean-up; the image has no other program that waits.
	if rest := spec.Containers[0]; len(rest.Command) > 0 || !slices.Equal(rest.Args, []string{"wait"}) {
		t.Errorf("after cleaning up it runs %q %q, want the agent's command wait", rest.Command, rest.Args)
	}
	// iptables-legacy needs NET_RAW.
	if want := []corev1.Capability{"NET_ADMIN", "NET_RAW"}; !slices.Equal(first.SecurityContext.Capabilities.Add, want) {
		t.Errorf("it has the capabilities %v, want %v", first.SecurityContext.Capabilities.Add, want)
	}
	for _, v := range spec.Volumes {
		at := slices.IndexFunc(agent.Volumes, func(o corev1.Volume) bool { return o.Name == v.Name })
		if at < 0 {
			t.Errorf("the agent has no volume %s", v.Name)
			continue
		}
		if d := cmp.Diff(agent.Volumes[at], v); d != "" {
			t.Errorf("volume %s (-agent +cleanup):\n%s", v.Name, d)
		}
	}
}
