package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/soak"
)

// TestRestore puts etcd back to a backup under running agents, and starts others from views that were saved before. In
// the short form a query that needs one more list shows the agents that the versions have gone back; in the long form
// silence does, which takes minutes.
func TestRestore(t *testing.T) {
	binary := peer.Build(t, "nodens")
	releases := peer.Releases()
	for _, release := range releases[soak.Choose(len(releases)-1, 0):] {
		t.Run(release, func(t *testing.T) { testRestore(t, binary, apiserver.StartRelease(t, release)) })
	}
}

// said is what a name's addresses are.
type said struct{ name, want string }

// scopes returns the options of the agents. Only silence shows an agent that has all slices that versions have gone back.
func scopes() map[string]string {
	all := map[string]string{"node": "", "crowded": "scope_max 1\n", "cluster": "scope cluster\n"}
	if soak.Enabled() {
		all["all"] = "scope cluster\nendpoints all\n"
	}
	return all
}

func testRestore(t *testing.T, binary string, api *apiserver.Server) {
	ctx := t.Context()
	client, err := api.Client()
	check.NoError(t, err)
	before := []said{
		{"kept.default.svc.cluster.local.", "NOERROR 10.96.230.1"},
		{"deleted.default.svc.cluster.local.", "NOERROR 10.96.230.2"},
		{"created.default.svc.cluster.local.", "NXDOMAIN"},
	}
	create(t, client, clusterIP("kept", "10.96.230.1"))
	create(t, client, clusterIP("deleted", "10.96.230.2"))
	for i, ns := range restoredNamespaces {
		writeSet(t, client, ns, i)
		before = append(before, said{setName(ns), fmt.Sprintf("NOERROR 10.244.230.%d", i)})
	}
	check.NoError(t, api.Backup(ctx))
	known := before[:len(before)-1] // the last namespace is not used until the end
	agents, files := map[string]*agent{}, map[string]string{}
	for name, options := range scopes() {
		files[name] = filepath.Join(t.TempDir(), "view")
		agents[name] = startSaving(t, binary, api, options, files[name])
	}
	awaitAnswers(t, agents, known)
	after := changeAll(t, client)
	awaitAnswers(t, agents, after)
	for name := range scopes() {
		agents[name].process.Stop() // which saves the view
		saved, err := os.ReadFile(files[name])
		check.NoError(t, err)
		check.NoError(t, os.WriteFile(files[name]+"-before", saved, 0o600))
		agents[name] = startSaving(t, binary, api, scopes()[name], files[name])
	}
	awaitAnswers(t, agents, append(after[:3:3], moveSets(t, client, 2)...)) // not out of the file

	check.NoError(t, api.Restore(ctx))
	create(t, client, clusterIP("new", "10.96.230.9"))
	began := time.Now()
	last := before[len(before)-1]
	if !soak.Enabled() {
		for _, a := range agents {
			a.process.Must(t, last.name, a.says(last.name, dns.TypeA, last.want))
		}
	}
	restored := append(before, said{"new.default.svc.cluster.local.", "NOERROR 10.96.230.9"})
	for name, a := range agents {
		for errors.Is(a.awaitAll(ctx, restored), errNotYet) && time.Since(began) < 10*time.Minute {
		}
		if err := a.awaitAll(ctx, restored); err != nil {
			t.Errorf("%s, %v after the restore: %v", name, time.Since(began), err)
		}
		if n := strings.Count(a.process.Tail(), "were set back"); n != 1 {
			t.Errorf("%s: the log says %d times that versions were set back:\n%s", name, n, a.process.Tail())
		}
		t.Logf("%s: right %v after the restore", name, time.Since(began).Round(time.Second))
	}
	old := map[string]*agent{}
	for name, options := range scopes() {
		old[name] = startSaving(t, binary, api, options, files[name]+"-before")
	}
	awaitAnswers(t, old, restored)
}

// restoredNamespaces have a headless Service each.
var restoredNamespaces = []string{"r1", "r2", "r3", "r4"}

func setName(ns string) string { return "set." + ns + ".svc.cluster.local." }

// writeSet writes the ith namespace with a headless Service and its slice.
func writeSet(t *testing.T, client kubernetes.Interface, ns string, i int) {
	t.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := headless("set")
	s.Namespace, s.Spec.Selector = ns, map[string]string{"app": "set"}
	create(t, client, s)
	slice := setSlice(ns, i, fmt.Sprintf("10.244.230.%d", i))
	if _, err := client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// setSlice is the slice of the ith namespace's Service. Every second one lacks the label of headless Services' slices.
func setSlice(ns string, i int, addr string) *discoveryv1.EndpointSlice {
	slice := endpoints("set", addr)
	slice.Namespace = ns
	if i%2 == 1 {
		delete(slice.Labels, corev1.IsHeadlessService)
	}
	return slice
}

// changeAll changes what the backup has, with many more versions than come after the restore, and returns what the names
// are then.
func changeAll(t *testing.T, client kubernetes.Interface) []said {
	t.Helper()
	ctx := t.Context()
	after := []said{
		{"kept.default.svc.cluster.local.", "NOERROR 10.96.230.1"},
		{"deleted.default.svc.cluster.local.", "NXDOMAIN"},
		{"created.default.svc.cluster.local.", "NOERROR 10.96.230.3"},
	}
	check.NoError(t, client.CoreV1().Services(namespace).Delete(ctx, "deleted", metav1.DeleteOptions{}))
	create(t, client, clusterIP("created", "10.96.230.3"))
	var moved []said
	for i := range 600 {
		moved = moveSets(t, client, i%2)
	}
	return append(after, moved...)
}

// moveSets gives the Services of the namespaces that are in use other endpoints, and returns these.
func moveSets(t *testing.T, client kubernetes.Interface, to int) (moved []said) {
	t.Helper()
	for i, ns := range restoredNamespaces[:len(restoredNamespaces)-1] {
		slice := setSlice(ns, i, fmt.Sprintf("10.244.%d.%d", 231+to, i))
		if _, err := client.DiscoveryV1().EndpointSlices(ns).Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		moved = append(moved, said{setName(ns), "NOERROR " + slice.Endpoints[0].Addresses[0]})
	}
	return moved
}

// startSaving starts an agent that saves its view to the file.
func startSaving(t *testing.T, binary string, api *apiserver.Server, options, file string) *agent {
	t.Helper()
	return startWith(t, binary, api, options+"save "+file+"\n", "")
}

// errNotYet means that an answer is not what it has to become.
var errNotYet = errors.New("not yet")

// awaitAll waits until all names have their addresses, for as long as an awaited condition may take.
func (a *agent) awaitAll(ctx context.Context, all []said) error {
	for _, s := range all {
		if err := a.process.Await(ctx, s.name, a.says(s.name, dns.TypeA, s.want)); err != nil {
			return fmt.Errorf("%w: %w", errNotYet, err)
		}
	}
	return nil
}

func awaitAnswers(t *testing.T, agents map[string]*agent, all []said) {
	t.Helper()
	for name, a := range agents {
		if err := a.awaitAll(t.Context(), all); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
