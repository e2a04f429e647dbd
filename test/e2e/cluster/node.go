package cluster

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/test/peer"
)

// nodeNamespaces are the namespaces of a node, as nsenter calls them.
var nodeNamespaces = []string{"mount", "net", "uts", "ipc", "pid"}

const nodeFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID

// Node is a node of a cluster.
type Node struct {
	// Name is that of the Node object.
	Name string
	// Addr is its address, and Addr6 that of IPv6, or "" without dual-stack.
	Addr, Addr6 string
	// Zone is its topology zone.
	Zone string

	cluster   *Cluster
	podRanges []string
	// clusterDNS are the servers that the kubelet writes into pods' resolv.conf, and taints those
	// that it registers the node with.
	clusterDNS []string
	taints     []corev1.Taint
	sandbox    *sandbox
	kubelet    *peer.Process
	cilium     *peer.Process // nil on other pod networks
}

// path is a file of the node's.
func (n *Node) path(name string) string { return n.cluster.path(filepath.Join(n.Name, name)) }

// Command is a program in the node's namespaces, with the node's files. The end of ctx
// ends it.
func (n *Node) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	argv := n.sandbox.nsenterArgs(nodeNamespaces, path, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = outputWait
	cmd.Cancel = func() error { return errors.Join(signalChild(cmd.Process.Pid, syscall.SIGKILL), cmd.Process.Kill()) }
	return cmd
}

// signalChild sends a signal to the program that an nsenter has started, which passes none on.
// Nobody being there is no error.
func signalChild(nsenter int, s syscall.Signal) error {
	pid, err := onlyChild(nsenter)
	if err != nil {
		return nil //nolint:nilerr // it has ended, or was never started
	}
	if err := syscall.Kill(pid, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// spawn starts a program on the node.
func (n *Node) spawn(name, path string, args ...string) (*peer.Process, error) {
	argv := n.sandbox.nsenterArgs(nodeNamespaces, path, args...)
	return n.cluster.process(n.Name+"-"+name, argv)
}

// spawnInGroup is spawn in the node's control group of version 2. The program's children are in it, too: containerd
// chooses only the groups of version 1.
func (n *Node) spawnInGroup(name, path string, args ...string) (*peer.Process, error) {
	const enter = `echo $$ >"$1/cgroup.procs" && shift && exec "$@"`
	return n.spawn(name, "sh", append([]string{"-c", enter, "sh", n.unifiedCgroup(), path}, args...)...)
}

// unifiedCgroup is the node's control group of version 2.
func (n *Node) unifiedCgroup() string {
	return filepath.Join(cgroupRoot, "unified", n.cluster.cgroup, n.Name)
}

// boot makes the node as far as it needs nobody else: containers can run on it then.
func (n *Node) boot(ctx context.Context) error {
	if err := n.writeFiles(); err != nil {
		return err
	}
	if err := createCgroup(filepath.Join(n.cluster.cgroup, n.Name)); err != nil {
		return err
	}
	var err error
	n.sandbox, err = n.cluster.openSandbox(nodeFlags, pauseConfig{n.Name, n.path("")})
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if err := n.cluster.connectNode(ctx, n); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	spawn := n.spawn
	if n.cluster.options.Network.OwnServices {
		spawn = n.spawnInGroup // where its programs find the processes of containers
		// On a folder that is no mount point, Cilium mounts the root of all groups.
		if _, err := runOutput(n.Command(ctx, "mount", "--bind", n.unifiedCgroup(), n.unifiedCgroup())); err != nil {
			return err
		}
	}
	// In its own folder, which goes with the cluster: a shim that is killed while it starts a probe leaves a file.
	p, err := spawn("containerd", "env", "TMPDIR="+n.path(temporaryDir), "containerd", "--config="+n.path("containerd.toml"))
	if err != nil {
		return err
	}
	err = p.Await(ctx, "containerd on "+n.Name, func(ctx context.Context) error {
		_, err := runOutput(n.Command(ctx, "ctr", "version"))
		return err
	})
	if err != nil {
		return err
	}
	return n.Import(ctx, n.cluster.path(pauseFile))
}

// Import gives the node more images.
func (n *Node) Import(ctx context.Context, files ...string) error {
	for _, file := range files {
		file, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if _, err := runOutput(n.Command(ctx, "ctr", "--namespace=k8s.io", "images", "import", file)); err != nil {
			return fmt.Errorf("giving %s the image %s: %w", n.Name, file, err)
		}
	}
	return nil
}

// start starts what works through the API server.
func (n *Node) start() error {
	if err := n.startKubelet(); err != nil {
		return err
	}
	if n.cluster.options.Network.OwnServices {
		return nil
	}
	_, err := n.spawn("kube-proxy", n.cluster.binaries["kube-proxy"], "--config="+n.path("kube-proxy.yaml"), "--hostname-override="+n.Name)
	return err
}

func (n *Node) startKubelet() error {
	addresses := n.Addr
	if n.Addr6 != "" {
		addresses += "," + n.Addr6
	}
	var err error
	n.kubelet, err = n.spawn("kubelet", n.cluster.binaries["kubelet"],
		"--config="+n.path("kubelet.yaml"), "--kubeconfig="+n.cluster.kubeconfig(n.user()),
		"--hostname-override="+n.Name, "--node-ip="+addresses,
		"--node-labels=topology.kubernetes.io/zone="+n.Zone)
	return err
}

//go:embed containerd.toml
var containerdConfig string

// temporaryDir is the folder, below that of a node, of containerd's temporary files.
const temporaryDir = "tmp"

// writeFiles writes the node's configuration.
func (n *Node) writeFiles() error {
	hosts := filepath.Join(n.path(registriesDir), Registry)
	for _, dir := range []string{n.path(pluginConfigDir), n.path(pluginDir), n.path(temporaryDir), hosts} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, value := range map[string]any{
		"kubelet.yaml":    n.kubeletConfig(),
		"kube-proxy.yaml": n.proxyConfig(),
	} {
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.path(name), text, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(registryHosts), 0o644); err != nil {
		return err
	}
	if err := n.writePlugins(); err != nil {
		return err
	}
	config := strings.NewReplacer("NET_D", n.path(pluginConfigDir), "CNI_BIN", n.path(pluginDir), "SANDBOX", pauseImage, "CERTS_D", n.path(registriesDir)).Replace(containerdConfig)
	if err := os.WriteFile(n.path("containerd.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	return n.copySettings()
}

// copySettings gives the node a copy of the machine's /etc, with a resolv.conf of its own.
func (n *Node) copySettings() error {
	if _, err := runOutput(exec.Command("cp", "--archive", "/etc", n.path("etc"))); err != nil {
		return err
	}
	file := n.path("etc/resolv.conf")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be a link
		return err
	}
	return os.WriteFile(file, []byte(n.cluster.ResolvConf()), 0o644)
}
