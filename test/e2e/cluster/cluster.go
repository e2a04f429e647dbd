// Package cluster runs a real Kubernetes on one machine: etcd, API server, controller
// manager and scheduler in a network namespace of their own, and nodes, each with
// containerd, kubelet and kube-proxy in a network, mount and process namespace of its
// own. It needs root. Nothing of it is in the machine's own network, and nothing is left
// when it is down.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/peer"
)

// Options say what cluster is wanted.
type Options struct {
	// Dir is where files and logs go. The caller owns it; it has to be empty, with an
	// absolute path that is not below /run, /var/lib or /var/log, where nodes have files
	// of their own.
	Dir string
	// Nodes is how many nodes there are.
	Nodes int
	// Release is a minor release of Kubernetes from peer.Releases; "" is the one of most tests.
	Release string
	// Proxy is kube-proxy's mode: iptables or nftables.
	Proxy string
	// Network is the pod network; one without a name is the first of PodNetworks.
	Network PodNetwork
	// DualStack gives nodes, pods and Services IPv6 addresses besides.
	DualStack bool
	// Joining is how many more nodes Join can add.
	Joining int
	// ClusterDNS are the servers that the kubelets write into pods' resolv.conf.
	ClusterDNS []string
	// Images gives files of OCI layouts that every node gets. It is called once, while
	// the cluster starts, and may take its time. Nil is none.
	Images func(context.Context) ([]string, error)
}

// maxNodes is how many letters there are for names, and fewer than there are addresses.
const maxNodes = 26

// Addresses of what is in every cluster.
const (
	// ServiceRange4 and ServiceRange6 are what ClusterIPs are taken from.
	ServiceRange4 = "10.96.0.0/16"
	ServiceRange6 = "fd00:10:96::/112"
	// DNS is kube-dns's ClusterIP, and DNS6 that of IPv6.
	DNS  = "10.96.0.10"
	DNS6 = "fd00:10:96::a"
	// Domain is the cluster's domain.
	Domain = "cluster.local"
)

// Cluster is a cluster that is up. Its methods may be called from several goroutines,
// except for Down and those that start and stop parts.
type Cluster struct {
	options  Options
	binaries map[string]string
	ca       []byte
	// cgroup is the control group of all nodes.
	cgroup  string
	control *sandbox
	nodes   []*Node
	joining []*Node // which Join has not added yet
	api     *peer.Process
	outside *peer.Process

	// initialState is the machine before the cluster.
	initialState hostState

	mu        sync.Mutex // for the rest
	processes []*peer.Process
	// namespaces are those that were made for the cluster, until it is down, and
	// processesLeft who was in them then.
	namespaces    []namespace
	leftProcesses []string
}

// clusterCount counts those of this process: their control groups have names of their own.
var clusterCount atomic.Int64

// Up starts a cluster, whose nodes are ready when it returns. It leaves nothing on error.
func Up(ctx context.Context, o Options) (c *Cluster, err error) {
	if o.Network.Name == "" {
		o.Network = PodNetworks()[0]
	}
	c = &Cluster{options: o, cgroup: cgroupName(os.Getpid(), clusterCount.Add(1))}
	defer func() {
		if err != nil {
			err, c = errors.Join(fmt.Errorf("starting a cluster: %w", err), c.Down()), nil
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return c, err
	}
	work := []func(context.Context) error{c.startControl}
	for _, n := range c.nodes {
		work = append(work, n.boot)
	}
	if err := parallel(ctx, work...); err != nil {
		return c, err
	}
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return c, err
		}
	}
	return c, parallel(ctx, c.addRoutes, c.startNetworks, c.waitReady, c.importImages)
}

// importImages gives the nodes their images.
func (c *Cluster) importImages(ctx context.Context) error {
	if c.options.Images == nil {
		return nil
	}
	files, err := c.options.Images(ctx)
	if err != nil {
		return err
	}
	var work []func(context.Context) error
	for _, n := range c.nodes {
		work = append(work, func(ctx context.Context) error { return n.Import(ctx, files...) })
	}
	return parallel(ctx, work...)
}

// prepare gets everything that processes are started from, and the control plane's
// network.
func (c *Cluster) prepare(ctx context.Context) (err error) {
	if err := errors.Join(checkHost(), c.options.check()); err != nil {
		return err
	}
	if err := removeStaleCgroups(); err != nil {
		return err
	}
	if c.initialState, err = readHostState(); err != nil {
		return err
	}
	var nodes []*Node
	for i := range c.options.Nodes + c.options.Joining {
		letter := string(rune('a' + i))
		n := &Node{Name: "node-" + letter, Zone: letter, cluster: c, clusterDNS: c.options.ClusterDNS}
		n.setAddresses(i+1, c.options.DualStack)
		nodes = append(nodes, n)
	}
	c.nodes, c.joining = slices.Clip(nodes[:c.options.Nodes]), nodes[c.options.Nodes:]
	if err := c.prepareFiles(ctx); err != nil {
		return err
	}
	if c.control, err = c.openSandbox(syscall.CLONE_NEWNET, pauseConfig{}); err != nil {
		return err
	}
	return c.createBridge(ctx)
}

// prepareFiles has programs, images and users there.
func (c *Cluster) prepareFiles(ctx context.Context) (err error) {
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return err
	}
	c.binaries = make(map[string]string)
	for _, name := range programs {
		program := name
		if c.options.Release != "" {
			program = peer.InRelease(name, c.options.Release)
		}
		if c.binaries[name], err = peer.Binary(ctx, program, c.options.Dir); err != nil {
			return err
		}
	}
	return errors.Join(c.networkPrograms(ctx), c.writePauseImage(ctx), c.writeAccess())
}

// startControl starts the control plane and the world outside.
func (c *Cluster) startControl(ctx context.Context) error {
	for _, start := range []func(context.Context) error{c.startOutsideDNS, c.startEtcd, c.StartAPI} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return c.startControllers()
}

// parallel runs the functions concurrently. The first error cancels the others.
func parallel(ctx context.Context, work ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	errs := make([]error, len(work))
	for i, do := range work {
		wait.Go(func() {
			if errs[i] = do(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// Join adds one of the nodes of Options.Joining, with all images. Its kubelet registers it with the
// taints, and writes the servers into pods' resolv.conf. Join does not wait until the node is ready.
func (c *Cluster) Join(ctx context.Context, clusterDNS []string, taints ...corev1.Taint) (*Node, error) {
	if len(c.joining) == 0 {
		return nil, fmt.Errorf("all %d nodes have joined: raise Options.Joining", len(c.nodes))
	}
	others, n := c.nodes, c.joining[0]
	c.joining = c.joining[1:]
	c.nodes = append(slices.Clone(others), n) // Down stops it, also after an error
	n.clusterDNS, n.taints = clusterDNS, taints
	if err := n.boot(ctx); err != nil {
		return nil, err
	}
	work := []func(context.Context) error{func(ctx context.Context) error { return c.control.runIP(ctx, n.routes()...) }}
	for _, other := range others {
		if !c.options.Network.OwnRoutes {
			work = append(work, func(ctx context.Context) error { return other.sandbox.runIP(ctx, n.routes()...) })
		}
	}
	if c.options.Images != nil {
		files, err := c.options.Images(ctx)
		if err != nil {
			return nil, err
		}
		work = append(work, func(ctx context.Context) error { return n.Import(ctx, files...) })
	}
	if err := parallel(ctx, work...); err != nil {
		return nil, err
	}
	if err := n.start(); err != nil || c.options.Network.Start == nil {
		return n, err
	}
	return n, n.startNetwork(ctx)
}

// waitReady waits until pods can run.
func (c *Cluster) waitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return err
	}
	// Without it pods are refused: their tokens are of this account.
	err = peer.Await(ctx, "the account of pods", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.waitReady(ctx, client, func(corev1.NodeCondition) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// Down ends the cluster and takes away all of it, Options.Dir excepted. It may be called
// twice, and takes no notice of what has ended by itself.
func (c *Cluster) Down() error {
	var errs []error
	for _, n := range c.nodes {
		if n.sandbox != nil {
			errs = append(errs, n.sandbox.close())
			n.sandbox = nil
		}
	}
	c.mu.Lock()
	processes := c.processes
	c.processes = nil
	c.mu.Unlock()
	for _, p := range slices.Backward(processes) {
		p.Kill()
	}
	if c.control != nil {
		errs = append(errs, c.control.close())
		c.control = nil
	}
	errs = append(errs, c.closeNamespaces())
	return errors.Join(append(errs, removeCgroup(context.Background(), c.cgroup))...)
}

// Nodes are the cluster's nodes.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// check says what is wrong with the options; nil if nothing is.
func (o *Options) check() error {
	if !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("the folder %q: give a path from the root, which is the same everywhere", o.Dir)
	}
	for _, hidden := range []string{"/run/", "/var/lib/", "/var/log/"} {
		if strings.HasPrefix(o.Dir+"/", hidden) {
			return fmt.Errorf("the folder %s: give one outside of %s, where nodes have files of their own", o.Dir, hidden)
		}
	}
	if err := o.checkNodes(); err != nil {
		return err
	}
	if o.Proxy != "iptables" && o.Proxy != "nftables" {
		return fmt.Errorf("kube-proxy's mode %q: give iptables or nftables", o.Proxy)
	}
	if o.DualStack && o.Network.SingleStack {
		return fmt.Errorf("the pod network %s: it has no IPv6; give another for a dual-stack cluster", o.Network.Name)
	}
	return nil
}

// checkNodes is check for the number of nodes.
func (o *Options) checkNodes() error {
	if o.Nodes < 1 || o.Joining < 0 || o.Nodes+o.Joining > maxNodes {
		return fmt.Errorf("%d nodes and %d that join: a cluster has 1 to %d", o.Nodes, o.Joining, maxNodes)
	}
	return nil
}

// checkHost returns an error if this machine cannot run a cluster.
func checkHost() error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster takes root")
	}
	for _, tool := range []string{"nsenter", "ip", "iptables", "nft", "conntrack", "containerd", "ctr", "runc", "busybox", "/usr/lib/cni/bridge"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing; `make e2e` installs it on Debian", tool)
		}
	}
	return nil
}
