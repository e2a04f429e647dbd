package install

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// object is a document of the manifest: what says where it goes, and its JSON.
type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`

	text []byte
}

func manifest(t *testing.T) []object {
	t.Helper()
	root, err := peer.Root()
	check.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "daemonset", "nodens.yaml"))
	check.NoError(t, err)
	var list []object
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return list
		}
		check.NoError(t, err)
		var o object
		if o.text, err = yaml.ToJSON(doc); err != nil {
			t.Fatal(err)
		}
		check.NoError(t, json.Unmarshal(o.text, &o))
		list = append(list, o)
	}
}

// client returns the client of the object's group, and its resource.
func (o object) client(c *kubernetes.Clientset) (rest.Interface, string) {
	switch o.Kind {
	case "ServiceAccount":
		return c.CoreV1().RESTClient(), "serviceaccounts"
	case "Service":
		return c.CoreV1().RESTClient(), "services"
	case "ConfigMap":
		return c.CoreV1().RESTClient(), "configmaps"
	case "ClusterRole":
		return c.RbacV1().RESTClient(), "clusterroles"
	case "ClusterRoleBinding":
		return c.RbacV1().RESTClient(), "clusterrolebindings"
	case "DaemonSet":
		return c.AppsV1().RESTClient(), "daemonsets"
	}
	return nil, ""
}

// apply writes the object and returns the resource version it has then.
func (o object) apply(ctx context.Context, c *kubernetes.Clientset) (string, error) {
	client, resource := o.client(c)
	if client == nil {
		return "", errors.New("this test does not know the kind")
	}
	force := true
	raw, err := client.Patch(types.ApplyPatchType).
		NamespaceIfScoped(o.Metadata.Namespace, o.Metadata.Namespace != "").
		Resource(resource).
		Name(o.Metadata.Name).
		VersionedParams(&metav1.PatchOptions{
			FieldManager:    "test",
			FieldValidation: metav1.FieldValidationStrict,
			Force:           &force,
		}, metav1.ParameterCodec).
		Body(o.text).
		Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var written struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	err = json.Unmarshal(raw, &written)
	return written.Metadata.ResourceVersion, err
}

func TestManifest(t *testing.T) {
	server := apiserver.Start(t)
	admin, err := server.Client()
	check.NoError(t, err)
	ctx := t.Context()
	objects := manifest(t)
	versions := map[string]string{}
	for _, o := range objects {
		name := o.Kind + " " + o.Metadata.Name
		version, err := o.apply(ctx, admin)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		versions[name] = version
	}
	for _, o := range objects {
		name := o.Kind + " " + o.Metadata.Name
		version, err := o.apply(ctx, admin)
		if err != nil {
			t.Errorf("%s, a second time: %v", name, err)
		} else if version != versions[name] {
			t.Errorf("%s: applying it again changed it", name)
		}
	}

	upstream, err := admin.CoreV1().Services("kube-system").Get(ctx, "kube-dns-upstream", metav1.GetOptions{})
	check.NoError(t, err)
	if ip := upstream.Spec.ClusterIP; ip == "" || ip == corev1.ClusterIPNone {
		t.Errorf("Service kube-dns-upstream has the ClusterIP %q; the agent needs one to forward to", ip)
	}

	config := server.Config(apiserver.Admin)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:node-local-dns",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
	agent, err := kubernetes.NewForConfig(config)
	check.NoError(t, err)
	// The server learns of role and binding through watches of its own; once it
	// knows both, it knows all the rights.
	err = peer.Await(ctx, "the account's rights", func(ctx context.Context) error {
		_, err := agent.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		return err
	})
	check.NoError(t, err)
	t.Run("granted", func(t *testing.T) { granted(t, agent) })
	t.Run("refused", func(t *testing.T) { refused(t, agent) })
}

// granted lists and watches what the cluster zone is made of, beside the list of
// services that was waited for.
func granted(t *testing.T, c *kubernetes.Clientset) {
	ctx, all := t.Context(), metav1.ListOptions{}
	_, err := c.CoreV1().Namespaces().List(ctx, all)
	allow(t, "list namespaces", err)
	_, err = c.CoreV1().Pods("").List(ctx, all)
	allow(t, "list pods", err)
	_, err = c.DiscoveryV1().EndpointSlices("").List(ctx, all)
	allow(t, "list endpoint slices", err)
	if _, err = c.CoreV1().Nodes().Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a node: %v, want not found", err)
	}
	for what, open := range map[string]func(context.Context, metav1.ListOptions) (watch.Interface, error){
		"watch services":        c.CoreV1().Services("").Watch,
		"watch namespaces":      c.CoreV1().Namespaces().Watch,
		"watch pods":            c.CoreV1().Pods("").Watch,
		"watch endpoint slices": c.DiscoveryV1().EndpointSlices("").Watch,
	} {
		w, err := open(ctx, all)
		allow(t, what, err)
		if err == nil {
			w.Stop()
		}
	}
}

func allow(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// refused asks for what an agent taken over by somebody else would be asked for.
func refused(t *testing.T, c *kubernetes.Clientset) {
	ctx, all := t.Context(), metav1.ListOptions{}
	core := c.CoreV1()
	tests := []struct {
		name string
		ask  func() error
	}{
		{"list secrets", func() error { _, err := core.Secrets("").List(ctx, all); return err }},
		{"list nodes", func() error { _, err := core.Nodes().List(ctx, all); return err }},
		{"get a pod", func() error {
			_, err := core.Pods("kube-system").Get(ctx, "none", metav1.GetOptions{})
			return err
		}},
		{"list config maps", func() error { _, err := core.ConfigMaps("").List(ctx, all); return err }},
		{"get a service", func() error {
			_, err := core.Services("kube-system").Get(ctx, "kube-dns-upstream", metav1.GetOptions{})
			return err
		}},
		{"delete a service", func() error {
			return core.Services("kube-system").Delete(ctx, "kube-dns-upstream", metav1.DeleteOptions{})
		}},
		{"change a namespace", func() error {
			_, err := core.Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.ask(); !apierrors.IsForbidden(err) {
				t.Errorf("%v, want forbidden", err)
			}
		})
	}
}
