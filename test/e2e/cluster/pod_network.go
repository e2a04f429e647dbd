package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/peer"
)

// PodNetwork is a network of pods: what a node gets besides its interface eth0.
//
// To add one, write a file with a function that returns it, and add the function to PodNetworks.
// If the network needs programs, add each to the tools of package peer, name it in Programs or
// Plugins, and start it in Start with Node.spawn: the program runs in the node's namespaces and
// ends with the node. Its Node object has a podCIDR then. Nothing has to be cleaned up: interfaces,
// rules and routes end with the node's namespaces, and /etc, /run, /var/lib and /var/log are the
// node's own. Other files belong below Node.path, which is the same path inside and outside of the node.
type PodNetwork struct {
	// Name selects the network; it is a word for a command line and a table.
	Name string
	// Programs are what Start needs, by their names in package peer.
	Programs []string
	// Plugins are CNI plugins that Debian's package lacks, by their names in package peer.
	Plugins []string
	// Chain returns the node's CNI plugins with their configuration, in their order. If it is
	// nil, Start writes it with Node.writePluginList.
	Chain func(*Node) []object
	// Start starts the network's programs on a node. It is called once per node, concurrently,
	// while the kubelet already runs. Nil: there are none.
	Start func(context.Context, *Node) error
	// OwnRoutes says that these programs make the routes to the pods of other nodes. Otherwise
	// the cluster makes them.
	OwnRoutes bool
	// OwnServices says that these programs forward packets to Services, in place of kube-proxy.
	OwnServices bool
	// SingleStack says that the network is for IPv4 only.
	SingleStack bool
	// Policies says that the network enforces NetworkPolicies.
	Policies bool
	// ClusterIPsOpen says that it doesn't for packets to a ClusterIP that is an address of the node.
	ClusterIPsOpen bool
	// Missing says why the network cannot run on this machine, and what to do; "" if it can.
	Missing string
	// Version returns the versions of the network's programs.
	Version func(context.Context) (string, error)
}

// PodNetworks returns all networks, the default one first.
func PodNetworks() []PodNetwork {
	return []PodNetwork{
		bridgeNetwork(), ptpNetwork(), policiesNetwork(), flannelNetwork("host-gw"), flannelNetwork("vxlan"), kubeRouterNetwork(), ciliumNetwork(),
	}
}

// FindPodNetwork returns the network of that name. A missing one is an error.
func FindPodNetwork(name string) (PodNetwork, error) {
	var names []string
	for _, network := range PodNetworks() {
		if network.Name == name && network.Missing != "" {
			return PodNetwork{}, fmt.Errorf("the pod network %s: %s", name, network.Missing)
		}
		if network.Name == name {
			return network, nil
		}
		names = append(names, network.Name)
	}
	return PodNetwork{}, fmt.Errorf("there is no pod network %q; there are %s", name, strings.Join(names, ", "))
}

// bridgeNetwork has one bridge per node, with a port for each pod.
func bridgeNetwork() PodNetwork {
	return PodNetwork{
		Name: "bridge",
		Chain: func(n *Node) []object {
			return []object{
				{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": n.hostLocal()},
				portMapping(),
			}
		},
		Version: debianPluginsVersion,
	}
}

// ptpNetwork has a pair of veths and a route for each pod.
func ptpNetwork() PodNetwork {
	return PodNetwork{
		Name:    "ptp",
		Chain:   func(n *Node) []object { return []object{{"type": "ptp", "ipam": n.hostLocal()}, portMapping()} },
		Version: debianPluginsVersion,
	}
}

// hostLocal returns the configuration of the plugin that assigns addresses of the node's range.
func (n *Node) hostLocal() object {
	var ranges [][]object
	routes := []object{{"dst": "0.0.0.0/0"}}
	for _, pods := range n.podRanges {
		ranges = append(ranges, []object{{"subnet": pods}})
	}
	if len(n.podRanges) > 1 {
		routes = append(routes, object{"dst": "::/0"})
	}
	return object{"type": "host-local", "dataDir": "/run/cni", "ranges": ranges, "routes": routes}
}

// portMapping is the plugin for hostPorts.
func portMapping() object {
	return object{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true}
}

// debianPlugins is the folder of the CNI plugins of Debian's package.
const debianPlugins = "/usr/lib/cni"

// debianPluginsVersion returns the version of that package. The plugins themselves don't know it.
func debianPluginsVersion(ctx context.Context) (string, error) {
	const name = "containernetworking-plugins"
	version, err := runOutput(exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${Version}", name))
	return "Debian's " + name + " " + version, err
}

// pluginDir and pluginConfigDir are the folders of the node's CNI plugins, and of their
// configuration.
const (
	pluginDir       = "cni"
	pluginConfigDir = "net.d"
)

// writePlugins writes the node's CNI configuration, if the network has a fixed one, and gives the
// node the plugins.
func (n *Node) writePlugins() error {
	podNetwork := n.cluster.options.Network
	if podNetwork.Chain != nil {
		if err := n.writePluginList(podNetwork.Chain(n)); err != nil {
			return err
		}
	}
	programs, err := filepath.Glob(debianPlugins + "/*")
	if err != nil {
		return err
	}
	for _, name := range podNetwork.Plugins {
		programs = append(programs, n.cluster.binaries[name])
	}
	for _, program := range programs {
		if err := os.Symlink(program, n.path(filepath.Join(pluginDir, filepath.Base(program)))); err != nil {
			return err
		}
	}
	return nil
}

// writePluginList writes the node's CNI configuration: from then on the kubelet can start pods.
func (n *Node) writePluginList(plugins []object) error {
	list := object{"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	// containerd must not read half of it.
	path := n.path(filepath.Join(pluginConfigDir, n.cluster.options.Network.Name+".conflist"))
	if err := os.WriteFile(path+".part", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// grantNetwork gives the user network the rights.
func (c *Cluster) grantNetwork(ctx context.Context, rules []rbacv1.PolicyRule) error {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	name := metav1.ObjectMeta{Name: network.name}
	_, err = client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: name, Rules: rules}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: network.name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: network.name}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another node was first
		return nil
	}
	return err
}

// startNetwork starts the network's programs on the node, whose object gets its pods' addresses
// before.
func (n *Node) startNetwork(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(n.cluster.Config())
	if err != nil {
		return err
	}
	patch, err := json.Marshal(object{"spec": object{"podCIDR": n.podRanges[0], "podCIDRs": n.podRanges}})
	if err != nil {
		return err
	}
	err = n.kubelet.Await(ctx, n.Name+" to register", func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if start := n.cluster.options.Network.Start; err == nil && start != nil {
		err = start(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("the pod network of %s: %w", n.Name, err)
	}
	return nil
}

// startNetworks starts the network's programs on all nodes.
func (c *Cluster) startNetworks(ctx context.Context) error {
	var work []func(context.Context) error
	for _, n := range c.nodes {
		work = append(work, n.startNetwork)
	}
	return parallel(ctx, work...)
}

// Network returns the cluster's pod network.
func (c *Cluster) Network() PodNetwork { return c.options.Network }

// networkPrograms builds the programs of the network.
func (c *Cluster) networkPrograms(ctx context.Context) (err error) {
	for _, name := range append(append([]string(nil), c.options.Network.Programs...), c.options.Network.Plugins...) {
		if c.binaries[name], err = peer.Binary(ctx, name, c.options.Dir); err != nil {
			return err
		}
	}
	return nil
}
