// These tests use checkTakeover, which is not exported: an agent that passes the check changes
// the node's network.

package app

import (
	"bytes"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/rig/check"
)

func TestCheckTakeover(t *testing.T) {
	const variable = "KUBE_DNS_SERVICE_HOST"
	tests := []struct {
		name, service, env, localIPs string
		setup                        bool
		want, warns                  string // parts of the error and of the log; "": none
	}{
		{"the ClusterIP", "kube-dns", "10.96.0.10", "169.254.20.10,10.96.0.10", true, "", ""},
		{"among several", "kube-dns", "fd00::a", "169.254.20.10,10.96.0.10,fd00:0::a", true, "", ""},
		{"another ClusterIP", "kube-dns", "172.20.0.10", "169.254.20.10,10.96.0.10", true,
			"--localip 169.254.20.10,10.96.0.10 does not contain 172.20.0.10, the ClusterIP of the Service kube-dns: add it to --localip", ""},
		{"no ClusterIP given", "kube-dns", "172.20.0.10", "169.254.20.10", true, "does not contain 172.20.0.10", ""},
		{"a headless Service", "kube-dns", "None", "169.254.20.10,10.96.0.10", true, `--takeover-service kube-dns: the Service needs a ClusterIP, but KUBE_DNS_SERVICE_HOST is "None"`, ""},
		{"a Service of another name", "coredns", "10.96.0.10", "169.254.20.10,10.96.0.3", true, "", "variable=COREDNS_SERVICE_HOST"},
		{"no Service named", "", "172.20.0.10", "169.254.20.10,10.96.0.10", true, "", ""},
		{"no network to set up", "kube-dns", "172.20.0.10", "169.254.20.10", false, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(variable, tt.env)
			t.Setenv("COREDNS_SERVICE_HOST", "")
			o := testOptions("", func(o *options.Agent) {
				o.TakeoverService, o.SetupInterface = tt.service, tt.setup
				for s := range strings.SplitSeq(tt.localIPs, ",") {
					o.LocalIPs = append(o.LocalIPs, netip.MustParseAddr(s))
				}
			})
			var log bytes.Buffer
			err := checkTakeover(o, slog.New(slog.NewTextHandler(&log, nil)))
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if got := log.String(); (got == "") != (tt.warns == "") || !strings.Contains(got, tt.warns) {
				t.Errorf("log %q, want %q", got, tt.warns)
			}
		})
	}
}

// TestTakeoverMismatchFailsStart: the start ends with the error of the comparison, before it
// sets up anything. It would fail in another way without the comparison: the interface's
// name is too long for the kernel.
func TestTakeoverMismatchFailsStart(t *testing.T) {
	t.Setenv("KUBE_DNS_SERVICE_HOST", "172.20.0.10")
	conf := filepath.Join(t.TempDir(), "Corefile")
	check.NoError(t, os.WriteFile(conf, []byte(".:53 {\n bind 127.0.0.1\n whoami\n}\n"), 0o600))
	opts := testOptions(conf, func(o *options.Agent) {
		o.LocalIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		o.TakeoverService, o.SetupInterface, o.InterfaceName = "kube-dns", true, "no-such-interface-name"
	})
	err := Serve(t.Context(), *opts, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "172.20.0.10, the ClusterIP of the Service kube-dns") {
		t.Errorf("%v, want the error of the comparison", err)
	}
}
