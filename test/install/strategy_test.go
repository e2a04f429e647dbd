package install

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// TestUpdateStrategies: Kubernetes accepts a rolling update of which exactly one of maxSurge
// and maxUnavailable is 0, and none is over 100 %. The chart refuses the others by this rule.
func TestUpdateStrategies(t *testing.T) {
	client, err := apiserver.Start(t).Client()
	check.NoError(t, err)
	objects := manifest(t)
	at := slices.IndexFunc(objects, func(o object) bool { return o.Kind == "DaemonSet" })
	var set appsv1.DaemonSet
	check.NoError(t, yaml.Unmarshal(objects[at].text, &set))
	values := []string{"0", "1", "0%", "10%", "100%", "101%"}
	zero := []string{"0", "0%"}
	for _, surge := range values {
		for _, unavailable := range values {
			s, u := intstr.Parse(surge), intstr.Parse(unavailable)
			set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u}
			invalid := validate(t, client, &set)
			accepted := slices.Contains(zero, surge) != slices.Contains(zero, unavailable) && surge != "101%" && unavailable != "101%"
			if accepted != (invalid == nil) {
				t.Errorf("maxSurge %s, maxUnavailable %s: %v, want accepted %v", surge, unavailable, invalid, accepted)
			}
		}
	}
}

// validate returns Kubernetes' verdict about the object: nil or an error of type Invalid. Any
// other error is about the request, which validate repeats.
func validate(t *testing.T, client kubernetes.Interface, set *appsv1.DaemonSet) (invalid error) {
	t.Helper()
	err := peer.Await(t.Context(), "an answer to a dry run", func(ctx context.Context) error {
		_, err := client.AppsV1().DaemonSets(set.Namespace).Create(ctx, set, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) {
			invalid, err = err, nil
		}
		return err
	})
	check.NoError(t, err)
	return invalid
}
