package startup

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// cluster is a scripted API server with objects, over HTTPS.
type cluster struct {
	api        *fakeapi.Server
	web        *http.Server
	kubeconfig string // path
	// services and endpoints are how many there are, and service is one of them in a namespace that the
	// node uses.
	services, endpoints int
	service             question
}

// openCluster starts an API server with the shape's objects. Its files are in dir. The caller closes it.
func openCluster(dir string, shape apiobjects.Shape) (*cluster, error) {
	c := &cluster{
		api: fakeapi.New(), kubeconfig: filepath.Join(dir, "kubeconfig"),
		services: len(shape.Services()), endpoints: shape.Endpoints(),
	}
	c.api.UseProtobuf()
	c.api.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
		if filepath.Base(filepath.Dir(req.URL.Path)) == "nodes" {
			return http.StatusNotFound, metav1.StatusReasonNotFound
		}
		return 0, ""
	})
	first := shape.Services()[0]
	shape.EachObject(func(o apiobjects.Object) {
		c.api.Put(o)
		if s, ok := o.(*corev1.Service); ok && s.Namespace == first.Namespace && s.Name == first.Name {
			c.service = question{first.Host(), netip.MustParseAddr(s.Spec.ClusterIP)}
		}
	})
	if err := c.serve(dir); err != nil {
		c.close()
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	return c, nil
}

// serve listens, and writes the kubeconfig file.
func (c *cluster) serve(dir string) error {
	issuer, err := ca.New()
	if err != nil {
		return err
	}
	cert, err := issuer.Server("127.0.0.1")
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "api-ca.pem")
	if err := os.WriteFile(root, issuer.PEM(), 0o600); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.web = &http.Server{
		Handler: c.api, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
	}
	go func() { _ = c.web.ServeTLS(ln, "", "") }()
	return fakeapi.WriteKubeconfig(c.kubeconfig, "https://"+ln.Addr().String(), root)
}

func (c *cluster) close() {
	c.api.Close()
	if c.web != nil {
		c.web.Close()
	}
}
