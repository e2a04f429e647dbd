package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/test/peer"
)

// ciliumClang is the compiler of the version that Cilium's own images have.
const ciliumClang = "/usr/bin/clang-19"

// ciliumNetwork has Cilium's agent on each node, in place of kube-proxy, with the settings that its chart makes
// of ciliumValues. The agent compiles its programs on the node.
func ciliumNetwork() PodNetwork {
	missing := ""
	for _, path := range []string{ciliumClang, filepath.Join(cgroupRoot, "unified")} {
		if _, err := os.Stat(path); err != nil {
			missing = fmt.Sprintf("%v; it needs `sh test/install.sh clang-19` and control groups of version 2 beside those of version 1", err)
		}
	}
	return PodNetwork{
		Name:        CiliumName,
		Missing:     missing,
		Programs:    []string{"cilium-agent", "cilium-operator", "helm"},
		Plugins:     []string{"cilium-cni"},
		Start:       func(ctx context.Context, n *Node) error { return n.startCilium(ctx) },
		OwnRoutes:   true,
		OwnServices: true,
		SingleStack: true,
		Policies:    true,
		Version: func(context.Context) (string, error) {
			version, err := peer.ToolVersion("cilium-agent")
			return "Cilium " + version, err
		},
	}
}

// CiliumName is the name of Cilium's network.
const CiliumName = "cilium"

// ciliumValues are values of Cilium's chart.
func (n *Node) ciliumValues() []string {
	return []string{
		"kubeProxyReplacement=true", "localRedirectPolicies.enabled=true", "ipam.mode=kubernetes",
		// No tunnels: the nodes are in one subnet.
		"routingMode=native", "autoDirectNodeRoutes=true", "ipv4NativeRoutingCIDR=" + podRange4,
		// What is not needed for DNS takes programs that are not here. The proxy for DNS is in the agent; Envoy, for other
		// protocols, would be a pod.
		"hubble.enabled=false", "healthChecking=false",
		"cni.exclusive=false", "cni.hostConfDirMountPath=" + n.path(pluginConfigDir),
		// The programs of version 2's control groups see the node's processes only.
		"cgroup.autoMount.enabled=false", "cgroup.hostRoot=" + n.unifiedCgroup(),
	}
}

// startCilium starts the agent on the node and, beside the first one, the operator.
func (n *Node) startCilium(ctx context.Context) error {
	all := []string{rbacv1.APIGroupAll}
	if err := n.cluster.grantNetwork(ctx, []rbacv1.PolicyRule{{APIGroups: all, Resources: all, Verbs: all}}); err != nil {
		return err
	}
	if err := n.writeCiliumConfig(ctx, n.path(ciliumConfigDir)); err != nil {
		return err
	}
	if n == n.cluster.nodes[0] {
		if _, err := n.cluster.Spawn("cilium-operator", "env", n.ciliumArgs("cilium-operator")...); err != nil {
			return err
		}
	}
	if err := n.startCiliumAgent(ctx); err != nil {
		return err
	}
	return n.cilium.Await(ctx, "Cilium's configuration of the CNI plugin", func(context.Context) error {
		found, err := filepath.Glob(n.path(pluginConfigDir + "/*cilium*"))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("there is none in %s", n.path(pluginConfigDir))
		}
		return err
	})
}

// ciliumConfigDir is the node's folder with Cilium's settings.
const ciliumConfigDir = "cilium"

// ciliumArgs are arguments of env(1), to run one of Cilium's programs on the node.
func (n *Node) ciliumArgs(program string) []string {
	return []string{
		"K8S_NODE_NAME=" + n.Name, "CILIUM_K8S_NAMESPACE=kube-system", "PATH=" + n.path("bin") + ":" + os.Getenv("PATH"),
		// With TMPDIR on the file system of net.d, as in no container, the configuration would be moved there, and containerd 1.6
		// does not look at files that are moved from elsewhere.
		"TMPDIR=/run", n.cluster.binaries[program], "--config-dir=" + n.path(ciliumConfigDir),
	}
}

// startCiliumAgent starts the agent, and waits until it says that it works.
func (n *Node) startCiliumAgent(ctx context.Context) (err error) {
	n.cilium, err = n.spawnInGroup("cilium-agent", "env", n.ciliumArgs("cilium-agent")...)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: n.sandbox.dial, DisableKeepAlives: true}}
	return n.cilium.Await(ctx, "Cilium's agent on "+n.Name, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9879/healthz", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Brief", "true") // as in the probes of its chart
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", resp.Status)
		}
		return nil
	})
}

// RestartCilium stops Cilium's agent as the kubelet does, and starts it again. Its programs in the kernel stay.
func (n *Node) RestartCilium(ctx context.Context) error {
	if err := signalChild(n.cilium.PID(), syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.cilium.Done():
		return n.startCiliumAgent(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeCiliumConfig writes the settings as files into dir, and gives the node the sources of Cilium's programs.
func (n *Node) writeCiliumConfig(ctx context.Context, dir string) error {
	source, err := ciliumSource(ctx)
	if err != nil {
		return err
	}
	args := []string{"template", "cilium", filepath.Join(source, "install/kubernetes/cilium"), "--namespace=kube-system", "--kube-version=1.36.0", "--show-only=templates/cilium-configmap.yaml"}
	for _, value := range n.ciliumValues() {
		args = append(args, "--set="+value)
	}
	text, err := runOutput(exec.CommandContext(ctx, n.cluster.binaries["helm"], args...))
	if err != nil {
		return fmt.Errorf("rendering Cilium's chart: %w", err)
	}
	var settings corev1.ConfigMap
	if err := yaml.Unmarshal([]byte(text), &settings); err != nil {
		return fmt.Errorf("reading Cilium's settings: %w", err)
	}
	settings.Data["k8s-kubeconfig-path"], settings.Data["procfs"] = n.cluster.kubeconfig(network), "/proc" // it is in no container
	for _, sub := range []string{dir, n.path("bin"), n.path("lib/cilium")} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
	}
	for key, value := range settings.Data {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink(ciliumClang, n.path("bin/clang")); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(source, "bpf"), n.path("lib/cilium/bpf"))
}

// ciliumSource is the folder of Cilium's module, with its chart and the sources of its programs.
func ciliumSource(ctx context.Context) (string, error) {
	root, err := peer.Root()
	if err != nil {
		return "", err
	}
	dir, err := runOutput(exec.CommandContext(ctx, "go", "-C", filepath.Join(root, "test/networks/cilium"), "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/cilium"))
	return strings.TrimSpace(dir), err
}
