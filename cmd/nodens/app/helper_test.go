// These tests use agent, prepare and run, which are not exported.

package app

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
)

// testOptions returns the options of an agent on conf that leaves the node alone, after
// changes.
func testOptions(conf string, changes ...func(*options.Agent)) *options.Agent {
	o := options.Default()
	o.Build = options.Build{Version: "dev", Commit: "unknown"}
	o.Conf, o.KubeDNSDir, o.MetricsAddr = conf, "", ""
	o.SetupInterface, o.SetupIptables = false, false
	for _, change := range changes {
		change(&o)
	}
	return &o
}

// startAgent runs an agent on a Corefile until the test ends, and waits until it serves.
func startAgent(t *testing.T, corefile string, changes ...func(*options.Agent)) *agenttest.Agent {
	t.Helper()
	return startChanged(t, corefile, func(*agent) {}, changes...)
}

// startChanged is startAgent after change has changed the agent.
func startChanged(t *testing.T, corefile string, change func(*agent), changes ...func(*options.Agent)) *agenttest.Agent {
	t.Helper()
	return agenttest.Start(t, corefile, func(ctx context.Context, conf string, log io.Writer) error {
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGUSR1)
		defer signal.Stop(reload)
		opts := testOptions(conf, changes...)
		opts.Reload = reload
		a, cfg, err := prepare(opts, log)
		if err != nil {
			return err
		}
		change(a)
		return a.run(ctx, cfg)
	})
}

// withCache is a Corefile that forwards to port up, and caches.
func withCache(port, web, up uint16) string {
	return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n health 127.0.0.1:%d\n prometheus 127.0.0.1:%[2]d\n ready 127.0.0.1:%[2]d\n cache 300\n forward . 127.0.0.1:%d\n}\n", port, web, up)
}

// withStubs makes the agent read the kube-dns ConfigMap in dir, and serve its stub domains at
// port.
func withStubs(dir string, port uint16) func(*options.Agent) {
	return func(o *options.Agent) {
		o.KubeDNSDir, o.LocalIPs, o.DNSPort = dir, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, port
	}
}
