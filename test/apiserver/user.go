package apiserver

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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

// role is what the agent may do in a cluster: read the objects that DNS
// answers are made from.
func role() *rbacv1.ClusterRole {
	read := []string{"list", "watch"}
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "nodens"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "namespaces"}, Verbs: read},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		},
	}
}

// grant gives the agent its role.
func (s *Server) grant(ctx context.Context) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	r := role()
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
