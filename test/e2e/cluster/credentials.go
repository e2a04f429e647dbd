package cluster

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodens-dns/nodens/test/ca"
)

// apiURL is where the API server is.
const apiURL = "https://" + controlAddr4 + ":6443"

// user is a user of the API server, whose name is the token too.
type user struct{ name, group string }

// The users besides the nodes. The roles of those of the system are the API server's own.
var (
	admin      = user{"admin", "system:masters"}
	controller = user{"system:kube-controller-manager", ""}
	scheduler  = user{"system:kube-scheduler", ""}
	proxy      = user{"system:kube-proxy", ""}
	// network is the pod network's programs.
	network = user{"pod-network", ""}
)

// The names of users without rights of their own. Operator is in the group that daemonset/kubectl-nodens.yaml
// names, Developer in none that a manifest names.
const (
	Operator  = "operator"
	Developer = "developer"
)

// humans are the users with these names.
func humans() []user { return []user{{Operator, "dns-operators"}, {Developer, "developers"}} }

// node is the user that a node's kubelet is.
func (n *Node) user() user { return user{"system:node:" + n.Name, "system:nodes"} }

// kubeconfig is the file with the user's access.
func (c *Cluster) kubeconfig(u user) string {
	return c.path(strings.ReplaceAll(u.name, ":", "-") + ".kubeconfig")
}

// writeAccess writes the CA, the certificates and the users.
func (c *Cluster) writeAccess() error {
	clusterCA, err := ca.New()
	if err != nil {
		return err
	}
	c.ca = clusterCA.PEM()
	if err := os.WriteFile(c.path("ca.crt"), c.ca, 0o644); err != nil {
		return err
	}
	for name, template := range map[string]*x509.Certificate{
		"server": ca.ServerTemplate("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc."+Domain,
			"127.0.0.1", controlAddr4, "10.96.0.1", "fd00:10:96::1"),
		// The API server is a client of kubelets.
		"kubelet-client": {Subject: pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}}},
		// Its key signs the tokens of service accounts.
		"account": {Subject: pkix.Name{CommonName: "accounts"}},
	} {
		cert, err := clusterCA.Sign(template)
		if err != nil {
			return err
		}
		if err := ca.WriteFiles(cert, c.path(name+".crt"), c.path(name+".key")); err != nil {
			return err
		}
	}
	users := append(humans(), admin, controller, scheduler, proxy, network)
	for _, n := range slices.Concat(c.nodes, c.joining) {
		users = append(users, n.user())
	}
	var tokens strings.Builder
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", u.name, u.name, u.name, u.group)
		if err := c.writeKubeconfig(u); err != nil {
			return err
		}
	}
	return os.WriteFile(c.path("tokens.csv"), []byte(tokens.String()), 0o600)
}

func (c *Cluster) writeKubeconfig(u user) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["e2e"] = &clientcmdapi.Cluster{Server: apiURL, CertificateAuthority: c.path("ca.crt")}
	k.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: u.name}
	k.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "user"}
	k.CurrentContext = "e2e"
	return clientcmd.WriteToFile(*k, c.kubeconfig(u))
}

// Config is an administrator's access, from this process, whatever its network. Its rate
// limit is off.
func (c *Cluster) Config() *rest.Config {
	return &rest.Config{
		Host:            apiURL,
		BearerToken:     admin.name,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		Dial:            c.Dial,
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{},
	}
}

// Kubeconfig is a file with an administrator's access, for programs that Command starts.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig(admin) }

// KubeconfigOf is a file with the access of Operator or Developer.
func (c *Cluster) KubeconfigOf(name string) string { return c.kubeconfig(user{name: name}) }

// path is a file of the cluster's.
func (c *Cluster) path(name string) string { return filepath.Join(c.options.Dir, name) }
