package app

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
)

// checkTakeover compares o.LocalIPs with the ClusterIP of o.TakeoverService, before the agent
// changes the node's network. With another address the agent would answer where no pod
// asks, and could take the address of another Service.
//
// The kubelet sets the environment variable again at each start of the container. A
// dual-stack Service's second ClusterIP is in no variable and is not compared. If there is
// no such variable, the Service may have another name, which is a warning and no error.
func checkTakeover(o *options.Agent, log *slog.Logger) error {
	if o.TakeoverService == "" || !o.SetsUpNetwork() {
		return nil
	}
	name := config.ServiceEnv(o.TakeoverService)
	value := os.Getenv(name)
	if value == "" {
		log.Warn("the ClusterIP to take over was not compared: the environment variable of the Service is not set", "service", o.TakeoverService, "variable", name)
		return nil
	}
	actual, err := netip.ParseAddr(value)
	if err != nil {
		return fmt.Errorf("--takeover-service %s: the Service needs a ClusterIP, but %s is %q", o.TakeoverService, name, value)
	}
	if slices.Contains(o.LocalIPs, actual) {
		return nil
	}
	var given []string
	for _, a := range o.LocalIPs {
		given = append(given, a.String())
	}
	return fmt.Errorf("--localip %s does not contain %s, the ClusterIP of the Service %s: add it to --localip in place of any other ClusterIP (clusterDNS in daemonset/settings, config.dnsServer in the chart), or remove --takeover-service",
		strings.Join(given, ","), actual, o.TakeoverService)
}
