package startup

import (
	"net/http"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/test/bench/apiobjects"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// cluster is a scripted API server with objects, over HTTPS.
type cluster struct {
	*fakeapi.HTTPS
	// services and endpoints are how many there are, and service is one of them in a namespace that the
	// node uses.
	services, endpoints int
	service             question
}

// openCluster starts an API server with the shape's objects. Its files are in dir. The caller closes it.
func openCluster(dir string, shape apiobjects.Shape) (*cluster, error) {
	issuer, err := ca.New()
	if err != nil {
		return nil, err
	}
	c := &cluster{services: len(shape.Services()), endpoints: shape.Endpoints()}
	if c.HTTPS, err = fakeapi.OpenHTTPS(dir, netip.AddrFrom4([4]byte{127, 0, 0, 1}), issuer); err != nil {
		return nil, err
	}
	c.SetFail(func(req *http.Request) (int, metav1.StatusReason) {
		if filepath.Base(filepath.Dir(req.URL.Path)) == "nodes" {
			return http.StatusNotFound, metav1.StatusReasonNotFound
		}
		return 0, ""
	})
	first := shape.Services()[0]
	shape.EachObject(func(o apiobjects.Object) {
		c.Put(o)
		if s, ok := o.(*corev1.Service); ok && s.Namespace == first.Namespace && s.Name == first.Name {
			c.service = question{first.Host(), netip.MustParseAddr(s.Spec.ClusterIP)}
		}
	})
	return c, nil
}
