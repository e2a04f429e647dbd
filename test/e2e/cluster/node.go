package cluster

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nodens-dns/nodens/test/peer"
)

// kinds are the namespaces of a node, as nsenter calls them.
var kinds = []string{"mount", "net", "uts", "ipc", "pid"}

const nodeFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID

// Node is a node of a cluster.
type Node struct {
	// Name is that of the Node object.
	Name string
	// Addr is its address, and Addr6 that of IPv6, or "" without dual-stack.
	Addr, Addr6 string
	// Zone is its topology zone.
	Zone string

	of      *Cluster
	pods    []string
	room    *room
	kubelet *peer.Process
}

// path is a file of the node's.
func (n *Node) path(name string) string { return n.of.path(filepath.Join(n.Name, name)) }

// Command is a program in the node's namespaces, with the node's files. The end of ctx
// ends it.
func (n *Node) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	argv := n.room.inside(kinds, path, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = lag
	cmd.Cancel = func() error { return errors.Join(tell(cmd.Process.Pid, syscall.SIGKILL), cmd.Process.Kill()) }
	return cmd
}

// tell sends a signal to the program that an nsenter has started, which passes none on.
// Nobody being there is no error.
func tell(nsenter int, s syscall.Signal) error {
	pid, err := child(nsenter)
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
	argv := n.room.inside(kinds, path, args...)
	return n.of.process(n.Name+"-"+name, argv)
}

// boot makes the node as far as it needs nobody else: containers can run on it then.
func (n *Node) boot(ctx context.Context) error {
	if err := n.files(); err != nil {
		return err
	}
	if err := makeGroup(filepath.Join(n.of.group, n.Name)); err != nil {
		return err
	}
	var err error
	n.room, err = n.of.open(nodeFlags, hold{n.Name, n.path("")})
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if err := n.of.join(ctx, n); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	p, err := n.spawn("containerd", "containerd", "--config="+n.path("containerd.toml"))
	if err != nil {
		return err
	}
	err = p.Await(ctx, "containerd on "+n.Name, func(ctx context.Context) error {
		_, err := output(n.Command(ctx, "ctr", "version"))
		return err
	})
	if err != nil {
		return err
	}
	return n.Import(ctx, n.of.path(pauseFile))
}

// Import gives the node more images.
func (n *Node) Import(ctx context.Context, files ...string) error {
	for _, file := range files {
		file, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if _, err := output(n.Command(ctx, "ctr", "--namespace=k8s.io", "images", "import", file)); err != nil {
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
	_, err := n.spawn("kube-proxy", n.of.binaries["kube-proxy"], "--config="+n.path("kube-proxy.yaml"), "--hostname-override="+n.Name)
	return err
}

func (n *Node) startKubelet() error {
	addresses := n.Addr
	if n.Addr6 != "" {
		addresses += "," + n.Addr6
	}
	var err error
	n.kubelet, err = n.spawn("kubelet", n.of.binaries["kubelet"],
		"--config="+n.path("kubelet.yaml"), "--kubeconfig="+n.of.kubeconfig(n.user()),
		"--hostname-override="+n.Name, "--node-ip="+addresses,
		"--node-labels=topology.kubernetes.io/zone="+n.Zone)
	return err
}

//go:embed containerd.toml
var containerdConfig string

// files writes the node's configuration.
func (n *Node) files() error {
	for _, dir := range []string{n.path(""), n.path("net.d")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for name, value := range map[string]any{
		"kubelet.yaml":          n.kubeletConfig(),
		"kube-proxy.yaml":       n.proxyConfig(),
		"net.d/bridge.conflist": n.pluginConfig(),
	} {
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.path(name), text, 0o644); err != nil {
			return err
		}
	}
	config := strings.NewReplacer("NET_D", n.path("net.d"), "SANDBOX", pauseImage).Replace(containerdConfig)
	if err := os.WriteFile(n.path("containerd.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	return os.WriteFile(n.path("resolv.conf"), []byte(n.of.resolvConf()), 0o644)
}
