package kubernetes

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/filewatch"
	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/kubernetes/reflector"
)

// maxCredentials bounds each file with credentials, in bytes. client-go reads them without a bound.
const maxCredentials = 1 << 20

// restConfig returns the address of the API server and the credentials. Errors name the
// option at fault.
func restConfig(cfg *config.Kubernetes) (*rest.Config, error) {
	c, err := loadConfig(cfg)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{c.CAFile, c.CertFile, c.KeyFile, c.BearerTokenFile} {
		if err = filewatch.Check(path, maxCredentials); path != "" && err != nil {
			return nil, fmt.Errorf("kubernetes: reading the credentials: %w", err)
		}
	}
	c.UserAgent = "nodens"
	c.WarningHandler = rest.NoWarnings{}
	if cfg.QPS > 0 {
		c.QPS = cfg.QPS
	}
	if cfg.Burst > 0 {
		c.Burst = cfg.Burst
	}
	return c, nil
}

// loadConfig returns what client-go loads from the kubeconfig or the endpoint in cfg, or from
// the pod's service account if cfg has neither.
func loadConfig(cfg *config.Kubernetes) (c *rest.Config, err error) {
	switch {
	case cfg.Kubeconfig != "":
		if err = filewatch.Check(cfg.Kubeconfig, maxCredentials); err != nil {
			return nil, fmt.Errorf("kubernetes: kubeconfig %s: %w", cfg.Kubeconfig, err)
		}
		c, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig},
			&clientcmd.ConfigOverrides{CurrentContext: cfg.Context}).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("kubernetes: kubeconfig %s: %w", cfg.Kubeconfig, err)
		}
	case cfg.Endpoint != "":
		over := &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: cfg.Endpoint}}
		if cfg.TLS != nil {
			over.ClusterInfo.CertificateAuthority = cfg.TLS.CA
			over.AuthInfo = clientcmdapi.AuthInfo{ClientCertificate: cfg.TLS.Cert, ClientKey: cfg.TLS.Key}
		}
		c, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{}, over).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("kubernetes: endpoint %s, tls: %w", cfg.Endpoint, err)
		}
	default:
		if c, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("kubernetes: no endpoint, kubeconfig or manifests is set, and there is no usable service account: %w", err)
		}
	}
	return c, nil
}

// serviceAccountNamespace is the file that has the namespace of an agent in a pod.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ownNamespace returns the label, in wire form, of the namespace that the agent runs in; ""
// if cfg names the API server or manifests, or if it is unknown.
func ownNamespace(cfg *config.Kubernetes) string {
	if cfg.Kubeconfig != "" || cfg.Endpoint != "" || len(cfg.Manifests) > 0 {
		return ""
	}
	f, err := os.Open(serviceAccountNamespace)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 2*wire.MaxLabel))
	if err != nil {
		return ""
	}
	key, ok := namespaceKey(strings.TrimSpace(string(b)))
	if !ok {
		return ""
	}
	return key
}

// clients are a view's clients by API group. They share one connection.
type clients struct {
	groups map[string]rest.Interface
	conn   *reflector.Connection
}

// newClients prepares the clients. It opens no connection.
func newClients(c *rest.Config) (*clients, error) {
	set := &clients{groups: map[string]rest.Interface{}}
	var err error
	if set.conn, err = reflector.Connect(c); err != nil {
		return nil, fmt.Errorf("kubernetes: credentials for the API server: %w", err)
	}
	for i := range kinds {
		gv := kinds[i].version
		if set.groups[gv.Group], err = set.conn.Client(gv); err != nil {
			return nil, fmt.Errorf("kubernetes: client for %s: %w", gv, err)
		}
	}
	return set, nil
}

// close closes the connection and cancels all requests.
func (c *clients) close() { c.conn.Close() }

// RedirectKlog makes client-go log through package log, where it writes to standard error otherwise. It must be called
// before anything else of client-go runs.
func RedirectKlog() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(standardLog{}, &slog.HandlerOptions{ReplaceAttr: withoutTime})))
}

// standardLog writes lines to the standard logger of package log.
type standardLog struct{}

func (standardLog) Write(line []byte) (int, error) {
	log.Print(string(line))
	return len(line), nil
}
