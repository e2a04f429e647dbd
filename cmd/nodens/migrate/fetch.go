package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Access is the cluster to read from, and the credentials.
type Access struct {
	// Kubeconfig is a file; "" is $KUBECONFIG, then ~/.kube/config, then the service account
	// of a pod. Context is one of its contexts, "" the current one.
	Kubeconfig, Context string
	// Namespace is where NodeLocal DNSCache runs.
	Namespace string
}

// requestTimeout bounds one request, for an API server behind a slow network.
const requestTimeout = 20 * time.Second

// Fetch reads the relevant objects from an API server. Objects other than DaemonSets and
// ConfigMaps are left out if the caller may not list them.
func (o *Objects) Fetch(ctx context.Context, a Access) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.Context}).ClientConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w; set --kubeconfig, or -f to read files", err)
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return fmt.Errorf("credentials for the API server: %w", err)
	}
	defer client.CloseIdleConnections()
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	o.live = true
	in := "/namespaces/" + url.PathEscape(a.Namespace)
	for _, list := range []struct {
		path string
		must bool
	}{
		{"/apis/apps/v1" + in + "/daemonsets", true},
		{"/api/v1" + in + "/configmaps", true},
		{"/api/v1" + in + "/services", false},
		{"/apis/monitoring.coreos.com/v1/podmonitors", false},
	} {
		err := get(ctx, client, base.JoinPath(list.path), func(body io.Reader) error { return o.Read("the API server's "+list.path, body) })
		if err != nil && list.must {
			return err
		}
	}
	o.fetchKubeletConfig(ctx, client, base)
	return nil
}

// fetchKubeletConfig adds a kubelet's configuration, if the caller may read it.
func (o *Objects) fetchKubeletConfig(ctx context.Context, client *http.Client, base *url.URL) {
	var nodes, conf object
	into := func(dst *object) func(io.Reader) error {
		return func(body io.Reader) error { return json.NewDecoder(io.LimitReader(body, maxBytes)).Decode(dst) }
	}
	from := base.JoinPath("/api/v1/nodes")
	from.RawQuery = "limit=1"
	if get(ctx, client, from, into(&nodes)) != nil {
		return
	}
	for _, node := range nodes.children("items") {
		if get(ctx, client, base.JoinPath("/api/v1/nodes", node.name(), "proxy/configz"), into(&conf)) != nil {
			return
		}
		if k := conf.child("kubeletconfig"); k != nil {
			k["kind"] = "KubeletConfiguration"
			_ = o.store(k) // optional: at the limit of objects it is left out
		}
	}
}

// get sends a GET request and passes the body to read.
func get(ctx context.Context, client *http.Client, from *url.URL, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "nodens")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		const most = 4000 // bytes of an error response
		text, _ := io.ReadAll(io.LimitReader(resp.Body, most))
		var status object
		if json.Unmarshal(text, &status) == nil && status.text("message") != "" {
			text = []byte(status.text("message"))
		}
		if resp.StatusCode == http.StatusForbidden {
			text = append(text, "; allow it, or give the objects with -f"...)
		}
		return fmt.Errorf("API server: %s for %s: %s", resp.Status, from.Path, text)
	}
	return read(resp.Body)
}
