package kubernetes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodens-dns/nodens/internal/config"
)

// newCodecs returns codecs for the types of this package only. The scheme of client-go's
// clientset registers all API groups, which costs an agent on each node memory.
func newCodecs() (serializer.CodecFactory, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			return serializer.CodecFactory{}, fmt.Errorf("kubernetes: registering API types: %w", err)
		}
	}
	if err := metav1.AddMetaToScheme(s); err != nil {
		return serializer.CodecFactory{}, fmt.Errorf("kubernetes: registering API types: %w", err)
	}
	s.AddKnownTypeWithName(multiclusterV1alpha1.WithKind("ServiceImport"), &serviceImport{})
	metav1.AddToGroupVersion(s, multiclusterV1alpha1)
	return serializer.NewCodecFactory(s), nil
}

// restConfig returns the address of the API server and the credentials. Errors name the
// option at fault.
func restConfig(cfg *config.Kubernetes) (*rest.Config, error) {
	var c *rest.Config
	var err error
	switch {
	case cfg.Kubeconfig != "":
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
	c.UserAgent = "nodens"
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c.ContentType = runtime.ContentTypeProtobuf
	c.WarningHandler = rest.NoWarnings{}
	if cfg.QPS > 0 {
		c.QPS = cfg.QPS
	}
	if cfg.Burst > 0 {
		c.Burst = cfg.Burst
	}
	return c, nil
}

// clients are a view's clients of the API groups. They share one connection.
type clients struct {
	core, discovery, multicluster rest.Interface

	conn *connection
}

// newClients prepares the clients. It opens no connection.
func newClients(c *rest.Config) (*clients, error) {
	codec, err := newCodecs()
	if err != nil {
		return nil, err
	}
	set := &clients{}
	if set.conn, err = newConnection(c); err != nil {
		return nil, fmt.Errorf("kubernetes: credentials for the API server: %w", err)
	}
	http, err := set.conn.httpClient()
	if err != nil {
		return nil, fmt.Errorf("kubernetes: credentials for the API server: %w", err)
	}
	for _, group := range []struct {
		client *rest.Interface
		gv     schema.GroupVersion
		path   string
	}{
		{&set.core, corev1.SchemeGroupVersion, "/api"},
		{&set.discovery, discoveryv1.SchemeGroupVersion, "/apis"},
		{&set.multicluster, multiclusterV1alpha1, "/apis"},
	} {
		of := rest.CopyConfig(c)
		of.GroupVersion, of.APIPath = &group.gv, group.path
		of.NegotiatedSerializer = codec.WithoutConversion()
		if *group.client, err = rest.RESTClientForConfigAndClient(of, http); err != nil {
			return nil, fmt.Errorf("kubernetes: client for %s: %w", group.gv, err)
		}
	}
	return set, nil
}

// close closes the connection and cancels all requests.
func (c *clients) close() { c.conn.close() }
