package cluster

import (
	"context"
	"os"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nodens-dns/nodens/test/peer"
)

// kubeRouterNetwork has kube-router on each node: for routes between the nodes by BGP, and for
// NetworkPolicies. Services are kube-proxy's.
func kubeRouterNetwork() PodNetwork {
	return PodNetwork{
		Name:     "kube-router",
		Programs: []string{"kube-router"},
		Chain: func(n *Node) []object {
			return []object{
				{"type": "bridge", "bridge": "kube-bridge", "isGateway": true, "hairpinMode": true, "ipam": n.hostLocal()},
				portMapping(),
			}
		},
		Start:       func(ctx context.Context, n *Node) error { return n.startKubeRouter(ctx) },
		OwnRoutes:   true,
		SingleStack: true,
		Policies:    true,
		// Its chain for packets to the node returns those for the range of ClusterIPs.
		ClusterIPsOpen: true,
		Version: func(context.Context) (string, error) {
			version, err := peer.ToolVersion("kube-router")
			return "kube-router " + version, err
		},
	}
}

// startKubeRouter starts kube-router on the node. Its own copy of iproute2's table names hides the
// machine's, to which it would add a line.
func (n *Node) startKubeRouter(ctx context.Context) error {
	read := []string{"get", "list", "watch"}
	err := n.cluster.grantNetwork(ctx, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces", "pods", "services", "nodes", "endpoints"}, Verbs: read},
		{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}, Verbs: read},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.path("rt_tables"), []byte("254 main\n"), 0o644); err != nil {
		return err
	}
	const inOwnMounts = `mount --bind "$1" /etc/iproute2/rt_tables && shift && exec "$@"`
	_, err = n.spawn("kube-router", "unshare", "--mount", "sh", "-c", inOwnMounts, "sh", n.path("rt_tables"),
		"env", "NODE_NAME="+n.Name, "KUBE_ROUTER_CNI_CONF_FILE="+n.path(pluginConfigDir+"/kube-router.conflist"),
		n.cluster.binaries["kube-router"], "--kubeconfig="+n.cluster.kubeconfig(network),
		"--run-router=true", "--run-firewall=true", "--run-service-proxy=false",
		// No tunnels: the nodes are in one subnet.
		"--enable-overlay=false",
		"--service-cluster-ip-range="+ServiceRange4)
	return err
}
