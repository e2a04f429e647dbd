// Internal: tests bounds, and YAML output, of unexported functions.

package migrate

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/config"
)

// ownManifest has what is taken from nodens' own.
const ownManifest = `kind: ServiceAccount
metadata: {name: node-local-dns}
apiVersion: v1
---
kind: ClusterRole
metadata: {name: nodens}
apiVersion: rbac.authorization.k8s.io/v1
---
kind: ClusterRoleBinding
metadata: {name: nodens}
apiVersion: rbac.authorization.k8s.io/v1
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodens}
subjects: [{kind: ServiceAccount, name: node-local-dns, namespace: kube-system}]
---
kind: DaemonSet
metadata: {name: node-local-dns}
apiVersion: apps/v1
spec:
  template:
    spec:
      containers:
      - args: [-localip, a]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]
        terminationMessagePolicy: FallbackToLogsOnError
        startupProbe: {exec: {command: [nodens, ready, -handover-dir, /var/lib/nodens]}}
        volumeMounts: [{name: handover, mountPath: /var/lib/nodens}]
      volumes: [{name: handover, hostPath: {path: /var/lib/nodens}}]
`

// daemonSet is one as an API server has it, made by somebody who doesn't apply.
const daemonSet = `{"kind":"DaemonSetList","apiVersion":"apps/v1","items":[{"metadata":{"name":"node-local-dns","namespace":"kube-system","generation":2,"uid":"u"},
"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"},"creationTimestamp":null},"spec":{"hostNetwork":true,"serviceAccountName":"dns",
"containers":[{"name":"node-cache","image":"old","args":["-localip","169.254.20.10","-conf","/etc/Corefile"EXTRA],
"ports":[{"containerPort":53,"hostPort":53,"name":"dns"}],"volumeMounts":[{"name":"c","mountPath":"/etc/coredns"}]}],
"volumes":[{"name":"c","configMap":{"name":"node-local-dns","items":[{"key":"Corefile","path":"Corefile.base"}]}}]}},
"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}},
"status":{"observedGeneration":2,"desiredNumberScheduled":3,"updatedNumberScheduled":UPDATED}}]}`

// configMaps are those of a namespace: the agent's, and CoreDNS's with options of its own.
const configMaps = `{"kind":"ConfigMapList","apiVersion":"v1","items":[
{"metadata":{"name":"node-local-dns","namespace":"kube-system"},"data":{"Corefile":"cluster.local:53 {\n\tcache 30\n\tforward . __PILLAR__CLUSTER__DNS__\n}\nexample.test:53 {\n\tforward . 192.0.2.9\n}\n"}},
{"metadata":{"name":"coredns","namespace":"kube-system"},"data":{"Corefile":".:53 {\n\trewrite name a.test b.test\n\tkubernetes cluster.local in-addr.arpa {\n\t\tpods verified\n\t\tttl 7\n\t\tendpoint_pod_names\n\t\tfallthrough in-addr.arpa\n\t}\n\tforward . /etc/resolv.conf\n}\n"}}]}`

// testFlags reads the arguments of the objects above.
func testFlags(args []string) (*Flags, error) {
	f := &Flags{Conf: "/etc/Corefile", Base: "/etc/coredns/Corefile.base", KubeDNS: "/etc/kube-dns"}
	for i := 0; i+1 < len(args); i++ {
		switch args[i] {
		case "-localip":
			addr, err := netip.ParseAddr(args[i+1])
			if err != nil {
				return nil, err
			}
			f.Config.LocalIPs = []netip.Addr{addr}
		case "-handover-dir":
			f.HandoverDir = args[i+1]
		}
	}
	return f, nil
}

func knownTestFlag(name string) (known, value bool) { return true, name != "skipteardown" }

// apiServer is an API server that has the paths, and forbids all others.
func apiServer(t *testing.T, paths map[string]string) (kubeconfig string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := paths[r.URL.Path]
		if !ok {
			http.Error(w, `{"kind":"Status","message":"forbidden"}`, http.StatusForbidden)
			return
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n", s.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestFetch goes through both steps with what an API server has.
func TestFetch(t *testing.T) {
	for _, c := range []struct {
		name, extra, updated, image string
		want, notes, none           []string
	}{
		{"first", "", "3", "new", []string{"image: new", "ports: null", "maxSurge: 0", "- -handover-dir"}, []string{"first step", "pods query 10.0.0.10"}, []string{"kubernetes cluster.local", "status:", "uid:", "creationTimestamp"}},
		{"its rollout is not done", `,"-handover-dir","/h"`, "2", "", []string{"maxSurge: 0"}, []string{"is not complete"}, []string{"kubernetes cluster.local"}},
		{"second", `,"-handover-dir","/h"`, "3", "", []string{
			"\t\tpods verified\n    \t\tttl 7\n    \t\tendpoint_pod_names\n", "maxSurge: 1", "maxUnavailable: 0", "kind: ClusterRole\n", "name: dns\n", "- /h\n",
		}, []string{"it has `rewrite`"}, []string{"example.test:53 {\n    \tkubernetes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kubeconfig := apiServer(t, map[string]string{
				"/apis/apps/v1/namespaces/kube-system/daemonsets": strings.NewReplacer("EXTRA", c.extra, "UPDATED", c.updated).Replace(daemonSet),
				"/api/v1/namespaces/kube-system/configmaps":       configMaps,
				"/api/v1/nodes":                 `{"kind":"NodeList","items":[{"metadata":{"name":"n"}}]}`,
				"/api/v1/nodes/n/proxy/configz": `{"kubeletconfig":{"clusterDNS":["10.0.0.10"]}}`,
			})
			var o Objects
			if err := o.Fetch(t.Context(), Access{Kubeconfig: kubeconfig, Namespace: "kube-system"}); err != nil {
				t.Fatal(err)
			}
			r, err := Run(Request{Objects: &o, Image: c.image, Manifest: []byte(ownManifest), Flags: testFlags, Known: knownTestFlag})
			if err != nil {
				t.Fatal(err)
			}
			notes := fmt.Sprint(r.Notes)
			for _, want := range c.want {
				if !strings.Contains(string(r.Manifest), want) {
					t.Errorf("the manifest lacks %q", want)
				}
			}
			for _, want := range c.notes {
				if !strings.Contains(notes, want) {
					t.Errorf("the notes lack %q", want)
				}
			}
			for _, none := range c.none {
				if strings.Contains(string(r.Manifest), none) {
					t.Errorf("the manifest has %q", none)
				}
			}
			if t.Failed() {
				t.Logf("%s\n%s", r.Manifest, notes)
			}
		})
	}
}

// TestFetchRefused: what the caller may not list is said, with the server's words.
func TestFetchRefused(t *testing.T) {
	var o Objects
	err := o.Fetch(t.Context(), Access{Kubeconfig: apiServer(t, nil), Namespace: "kube-system"})
	if err == nil || !strings.Contains(err.Error(), "403") || !strings.HasSuffix(err.Error(), ": forbidden; allow it, or give the objects with -f") {
		t.Errorf("error %v, want that of the API server", err)
	}
}

// endlessReader is a reader without an end.
type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

// TestBounds: bytes and objects are bounded over all that is read.
func TestBounds(t *testing.T) {
	var o Objects
	if err := o.Read("file", endlessReader{}); err == nil || !strings.Contains(err.Error(), "file: more than 32 MiB") {
		t.Errorf("of endless input: %v", err)
	}
	var many strings.Builder
	many.WriteString(`{"kind":"List","items":[`)
	for i := range maxObjects + 1 {
		fmt.Fprintf(&many, `{"kind":"Service","metadata":{"name":"s%d"}},`, i)
	}
	text := strings.TrimSuffix(many.String(), ",") + "]}"
	o = Objects{}
	if err := o.Read("file", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "more than 10000 objects") {
		t.Errorf("of too many objects: %v", err)
	}
}

// TestFiles reads a folder and standard input; what stands in two places is what came last.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	service := "kind: Service\nmetadata: {name: a}\nspec: {clusterIP: %s}\n"
	for name, text := range map[string]string{"a.yaml": fmt.Sprintf(service, "10.0.0.1"), "b.txt": "}", "c.json": `{"kind":"Secret"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var o Objects
	if err := o.Files([]string{dir, "-"}, strings.NewReader(fmt.Sprintf(service, "10.0.0.2"))); err != nil {
		t.Fatal(err)
	}
	if len(o.list) != 1 || o.list[0].text("spec", "clusterIP") != "10.0.0.2" {
		t.Errorf("read %v", o.list)
	}
	if err := o.Files([]string{t.TempDir()}, nil); err == nil || !strings.Contains(err.Error(), "has no .yaml") {
		t.Errorf("of an empty folder: %v", err)
	}
}

// TestMarshal: a ConfigMap's texts are what they were, and as they were where YAML can.
func TestMarshal(t *testing.T) {
	for text, block := range map[string]bool{
		"a {\n\tb   \n}\n":      true,
		"# c\n\na {\n}\n":       true,
		"no end":                false,
		"two ends\n\n":          false,
		"  begins with space\n": false,
		"\x01\n":                false,
		"":                      false,
		"nodens-text-0-\n":      true,
	} {
		obj := object{"kind": "ConfigMap", "data": map[string]any{"Corefile": text, "other": "---\nx: |\n  y\n"}}
		out, err := marshalYAML(obj)
		if err != nil {
			t.Fatal(err)
		}
		var back object
		if err := yaml.Unmarshal(out, &back); err != nil || back.text("data", "Corefile") != text || back.text("data", "other") != obj.text("data", "other") {
			t.Errorf("%q became %q (%v):\n%s", text, back.text("data", "Corefile"), err, out)
		}
		if got := strings.Contains(string(out), "  Corefile: |\n"); got != block {
			t.Errorf("%q is a literal block: %v, want %v:\n%s", text, got, block, out)
		}
	}
}

// FuzzMake: whatever objects there are, there is an error, or a manifest that can be read,
// of which the next step is an error or a manifest in turn.
func FuzzMake(f *testing.F) {
	f.Add([]byte(strings.NewReplacer("EXTRA", "", "UPDATED", "3").Replace(daemonSet)), []byte(configMaps))
	f.Add([]byte(strings.NewReplacer("EXTRA", `,"-handover-dir=/h","x"`, "UPDATED", `"3"`).Replace(daemonSet)), []byte("kind: ConfigMap\nmetadata: {name: node-local-dns}\ndata: {Corefile: \". {\\n}\"}"))
	f.Fuzz(func(t *testing.T, set, conf []byte) {
		var o Objects
		if errors.Join(o.Read("set", strings.NewReader(string(set))), o.Read("conf", strings.NewReader(string(conf)))) != nil {
			return
		}
		request := Request{Objects: &o, Image: "new", Manifest: []byte(ownManifest), Flags: testFlags, Known: knownTestFlag}
		r, err := Run(request)
		if err != nil {
			return
		}
		if err := o.Read("made", strings.NewReader(string(r.Manifest))); err != nil {
			t.Fatalf("what is printed can't be read: %v\n%s", err, r.Manifest)
		}
		if next, err := Run(request); (next == nil) != (err != nil) {
			t.Fatalf("the next step is %v, with error %v", next, err)
		}
	})
}

// TestSameOptions: every option that shapes answers is taken over.
func TestSameOptions(t *testing.T) {
	k := &config.Kubernetes{Pods: config.PodsInsecure, TTL: 5, NoEndpoints: true, IgnoreEmptyService: true, EndpointPodNames: true, Namespaces: []string{"a", "b"}, Labels: "x=y", NamespaceLabels: "z"}
	want := "pods insecure;ttl 5;endpoint_pod_names;noendpoints;ignore empty_service;namespaces a b;namespace_labels z;labels x=y"
	if got := strings.Join(directiveOptions(k), ";"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
