// Command flannel is flannel's daemon with the back ends host-gw and vxlan, for nodes of a
// Kubernetes cluster. flannel's own main package has all back ends, and one of them needs a
// cloud provider's library.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"

	// Each import registers a back end.
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
)

// resyncSeconds is the interval at which flannel checks its iptables rules, as in its own program.
const resyncSeconds = 5

// settings are the flags, with the names of flannel's own.
type settings struct {
	kubeconfig, netConfig, subnetFile string
}

func main() {
	var s settings
	flag.StringVar(&s.kubeconfig, "kubeconfig-file", "", "the kubeconfig; $NODE_NAME is the node's name")
	flag.StringVar(&s.netConfig, "net-config-path", "/etc/kube-flannel/net-conf.json", "the network's configuration")
	flag.StringVar(&s.subnetFile, "subnet-file", "/run/flannel/subnet.env", "the file to write once the network is ready")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// run makes the node's part of the network, and keeps it until ctx ends.
func run(ctx context.Context, s settings) error {
	const annotations = "flannel.alpha.coreos.com"
	manager, err := kube.NewSubnetManager(ctx, "", s.kubeconfig, annotations, s.netConfig, true)
	if err != nil {
		return fmt.Errorf("reading the cluster: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("reading %s: %w", s.netConfig, err)
	}
	var wait sync.WaitGroup
	network, err := register(ctx, manager, config, &wait)
	if err != nil {
		return fmt.Errorf("registering the node: %w", err)
	}
	if err := writeRules(ctx, config, network); err != nil {
		return fmt.Errorf("writing rules: %w", err)
	}
	lease := network.Lease()
	if err := manager.HandleSubnetFile(s.subnetFile, config, true, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("writing %s: %w", s.subnetFile, err)
	}
	wait.Go(func() { network.Run(ctx) })
	err = manager.CompleteLease(ctx, lease, &wait)
	wait.Wait()
	return err
}

// register gives the node its place in the network, on the interface of the default route.
func register(ctx context.Context, manager subnet.Manager, config *subnet.Config, wait *sync.WaitGroup) (backend.Network, error) {
	families, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return nil, err
	}
	external, err := ipmatch.LookupExtIface("", "", "", families, ipmatch.PublicIPOpts{})
	if err != nil {
		return nil, err
	}
	chosen, err := backend.NewManager(ctx, manager, external).GetBackend(config.BackendType)
	if err != nil {
		return nil, err
	}
	return chosen.RegisterNetwork(ctx, wait, config)
}

// writeRules translates the addresses of packets that leave the network, and lets its own packets
// through.
func writeRules(ctx context.Context, config *subnet.Config, network backend.Network) error {
	rules := new(iptables.IPTablesManager)
	if err := rules.Init(ctx); err != nil {
		return err
	}
	var none4 ip.IP4Net
	var none6 ip.IP6Net
	err := rules.SetupAndEnsureMasqRules(ctx, config.Network, none4, none4, config.IPv6Network, none6, none6,
		network.Lease(), resyncSeconds, false)
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	return err
}
