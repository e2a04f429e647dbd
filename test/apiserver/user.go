package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodens-dns/nodens/test/peer"
)

// User is a user of the API server; the name is the token too.
type User string

// The users.
const (
	// Admin may do everything.
	Admin User = "admin"
	// Agent may do what the agent's ClusterRole allows.
	Agent User = "agent"
)

// group is the user's group; the administrator's is the one that RBAC lets
// through without a rule.
func (u User) group() string {
	if u == Admin {
		return "system:masters"
	}
	return "agents"
}

// errNoRole says that the manifest has changed its shape.
var errNoRole = errors.New("the manifest has no ClusterRole")

// role is what the agent may do in a cluster: the ClusterRole of the manifest
// that is installed there.
func role() (*rbacv1.ClusterRole, error) {
	root, err := peer.Root()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(root, "daemonset", "nodens.yaml"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The size is that of the decoder's look-ahead for JSON.
	d := yaml.NewYAMLOrJSONDecoder(f, 4096)
	for {
		var r rbacv1.ClusterRole
		switch err := d.Decode(&r); {
		case errors.Is(err, io.EOF):
			return nil, errNoRole
		case err != nil:
			return nil, err
		case r.Kind == "ClusterRole":
			return &r, nil
		}
	}
}

// grant gives the agent its role.
func (s *Server) grant(ctx context.Context) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	r, err := role()
	if err != nil {
		return fmt.Errorf("reading the agent's role: %w", err)
	}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, r, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("writing the agent's role: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: string(Agent)}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding the agent's role: %w", err)
	}
	return nil
}

// writeKubeconfig writes the user's kubeconfig file.
func (s *Server) writeKubeconfig(u User) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: s.url, CertificateAuthority: s.path("ca.crt")}
	c.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: string(u)}
	c.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	c.CurrentContext = "test"
	return clientcmd.WriteToFile(*c, s.Kubeconfig(u))
}
