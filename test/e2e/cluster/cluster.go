// Package cluster runs a real Kubernetes on one machine: etcd, API server, controller
// manager and scheduler in a network namespace of their own, and nodes, each with
// containerd, kubelet and kube-proxy in a network, mount and process namespace of its
// own. It needs root. Nothing of it is in the machine's own network, and nothing is left
// when it is down.
package cluster

import (
	"context"
	"errors"
	"os/exec"

	"k8s.io/client-go/rest"
)

// Options say what cluster is wanted.
type Options struct {
	// Dir is where files and logs go. The caller owns it.
	Dir string
	// Nodes is how many nodes there are.
	Nodes int
	// Proxy is kube-proxy's mode: iptables or nftables.
	Proxy string
	// DualStack gives nodes, pods and Services IPv6 addresses besides.
	DualStack bool
	// ClusterDNS are the servers that the kubelets write into pods' resolv.conf.
	ClusterDNS []string
	// Images are files of OCI layouts that every node has from its start.
	Images []string
}

// Addresses of what is in every cluster.
const (
	// ServiceRange4 and ServiceRange6 are what ClusterIPs are taken from.
	ServiceRange4 = "10.96.0.0/16"
	ServiceRange6 = "fd00:10:96::/112"
	// DNS is kube-dns's ClusterIP.
	DNS = "10.96.0.10"
	// Domain is the cluster's domain.
	Domain = "cluster.local"
)

// Cluster is a cluster that is up. Its methods may be called from several goroutines,
// except for Down and those that start and stop parts.
type Cluster struct{}

// Node is a node of it.
type Node struct {
	// Name is that of the Node object, and Addr its address.
	Name, Addr string
}

var errTODO = errors.New("not built yet")

// Up starts a cluster, whose nodes are ready when it returns. It leaves nothing on error.
func Up(ctx context.Context, o Options) (*Cluster, error) { return nil, errTODO }

// Down ends the cluster and takes away all of it, Options.Dir excepted. It may be called
// twice.
func (c *Cluster) Down() error { return errTODO }

// Nodes are the cluster's nodes.
func (c *Cluster) Nodes() []*Node { return nil }

// Config is an administrator's access, from this process, whatever its network.
func (c *Cluster) Config() *rest.Config { return nil }

// Kubeconfig is a file with an administrator's access, for programs that Command starts.
func (c *Cluster) Kubeconfig() string { return "" }

// Command is a program in the network of the control plane, from which nodes, pods and
// Services can be reached.
func (c *Cluster) Command(ctx context.Context, path string, args ...string) *exec.Cmd { return nil }

// Kubectl runs kubectl with the input and returns its standard output. An error has what
// it wrote on standard error.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	return "", errTODO
}

// Exec runs a program in a pod's first container and returns its standard output.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, argv ...string) (string, error) {
	return "", errTODO
}

// StopAPI stops the API server, and StartAPI starts it again and waits until it is ready.
// The nodes go on without it.
func (c *Cluster) StopAPI() error { return errTODO }

// StartAPI undoes StopAPI.
func (c *Cluster) StartAPI(ctx context.Context) error { return errTODO }

// Command is a program in the node's namespaces, with the node's files.
func (n *Node) Command(ctx context.Context, path string, args ...string) *exec.Cmd { return nil }

// Import gives the node one more image.
func (n *Node) Import(ctx context.Context, file string) error { return errTODO }

// RestartKubelet stops the node's kubelet, starts it again and waits until the node is
// ready by its word.
func (n *Node) RestartKubelet(ctx context.Context) error { return errTODO }
