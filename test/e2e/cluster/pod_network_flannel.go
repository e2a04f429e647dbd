package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nodens-dns/nodens/test/peer"
)

// The files of flannel on a node.
const (
	flannelConfig = "net-conf.json"
	flannelSubnet = "subnet.env"
)

// flannelNetwork has flannel's daemon on each node, with the back end of this name. Pods are
// ports of the bridge cni0, as with flannel's CNI plugin. That plugin is not available as a Go module; it
// only turns the daemon's file into a configuration of the plugin bridge, which Start does instead.
func flannelNetwork(backend string) PodNetwork {
	return PodNetwork{
		Name:     "flannel-" + backend,
		Programs: []string{"flannel"},
		Start: func(ctx context.Context, n *Node) error {
			if err := n.startFlannel(ctx, backend); err != nil {
				return err
			}
			return n.writeFlannelPlugins()
		},
		OwnRoutes:   true,
		SingleStack: true,
		Version: func(ctx context.Context) (string, error) {
			version, err := peer.ToolVersion("flannel")
			if err != nil {
				return "", err
			}
			plugins, err := debianPluginsVersion(ctx)
			return "flannel " + version + ", " + plugins, err
		},
	}
}

// startFlannel starts the daemon and waits until it has written its file.
func (n *Node) startFlannel(ctx context.Context, backend string) error {
	err := n.cluster.grantNetwork(ctx, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
	})
	if err != nil {
		return err
	}
	text, err := json.Marshal(object{"Network": podRange4, "Backend": object{"Type": backend}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(n.path(flannelConfig), text, 0o644); err != nil {
		return err
	}
	daemon, err := n.spawn("flannel", "env", "NODE_NAME="+n.Name, n.cluster.binaries["flannel"],
		"--kubeconfig-file="+n.cluster.kubeconfig(network),
		"--net-config-path="+n.path(flannelConfig), "--subnet-file="+n.path(flannelSubnet))
	if err != nil {
		return err
	}
	return daemon.Await(ctx, "flannel's file", func(context.Context) error {
		_, err := os.Stat(n.path(flannelSubnet))
		return err
	})
}

// writeFlannelPlugins writes the configuration that flannel's plugin would give to the plugin bridge.
func (n *Node) writeFlannelPlugins() error {
	values, err := readVariables(n.path(flannelSubnet))
	if err != nil {
		return err
	}
	mtu, err := strconv.Atoi(values["FLANNEL_MTU"])
	if err != nil {
		return fmt.Errorf("flannel's file: %w", err)
	}
	pods, err := netip.ParsePrefix(values["FLANNEL_SUBNET"]) // it has the bridge's address
	if err != nil {
		return fmt.Errorf("flannel's file: %w", err)
	}
	return n.writePluginList([]object{
		{
			"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
			"mtu": mtu, "ipMasq": values["FLANNEL_IPMASQ"] != "true",
			"ipam": object{
				"type": "host-local", "dataDir": "/run/cni",
				"ranges": [][]object{{{"subnet": pods.Masked().String()}}},
				"routes": []object{{"dst": values["FLANNEL_NETWORK"]}},
			},
		},
		portMapping(),
	})
}

// readVariables reads a file with lines NAME=VALUE.
func readVariables(path string) (map[string]string, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	values := make(map[string]string)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			values[name] = value
		}
	}
	return values, lines.Err()
}
