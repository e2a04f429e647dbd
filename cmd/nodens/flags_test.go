package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/rig/check"
)

func TestPlace(t *testing.T) {
	host, err := os.Hostname()
	check.NoError(t, err)
	host = strings.ToLower(host)
	for _, tt := range []struct {
		name, args         string
		envNode, envZone   string
		wantNode, wantZone string
	}{
		{"nothing", "", "", "", host, ""},
		{"environment", "", "env-1", "env-zone", "env-1", "env-zone"},
		{"flags", "-node-name=flag-1 -node-zone=flag-zone", "", "", "flag-1", "flag-zone"},
		{"flags go before the environment", "-node-name flag-1 -node-zone flag-zone", "env-1", "env-zone", "flag-1", "flag-zone"},
		{"empty flags", "-node-name= -node-zone=", "env-1", "env-zone", "env-1", "env-zone"},
		{"a name is taken as it is", "-node-name=Node.Example.ORG", "", "", "Node.Example.ORG", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NODE_NAME", tt.envNode)
			t.Setenv("NODE_ZONE", tt.envZone)
			o, err := parseFlags(strings.Fields(tt.args))
			check.NoError(t, err)
			if o.NodeName != tt.wantNode || o.NodeZone != tt.wantZone {
				t.Errorf("node %q in zone %q, want %q in %q", o.NodeName, o.NodeZone, tt.wantNode, tt.wantZone)
			}
		})
	}
}

// TestFlags: NodeLocal DNSCache's flags, with its values and its ways of writing
// them, and errors that name the flag.
func TestFlags(t *testing.T) {
	o, err := parseFlags(strings.Fields("-localip 169.254.20.10,10.96.0.10,fd00::a -conf /etc/Corefile -upstreamsvc kube-dns-upstream " +
		"-basecorefile /b -kubednscm /k -setupinterface=false -interfacename x0 -setupiptables=false -syncinterval 30 -skipteardown " +
		"-health-port 8081 -metrics-listen-address 127.0.0.1:9353 -prometheus-listen-address :9254 -pidfile /p -reloadwithsignal -dns.port 1053"))
	check.NoError(t, err)
	if len(o.LocalIPs) != 3 || o.SyncInterval != 30*time.Second || o.HealthPort != 8081 || o.DNSPort != 1053 || !o.SkipTeardown ||
		o.SetupInterface || o.SetupIptables || o.InterfaceName != "x0" || !o.ReloadBySignal || o.UpstreamService != "kube-dns-upstream" {
		t.Errorf("flags are %+v", o)
	}
	for arg, want := range map[string]*config.ClientLimit{
		"": nil, "off": nil, "100": {Rate: 100, Burst: 100}, "100 200 drop": {Rate: 100, Burst: 200, Action: config.LimitDrop}, " 5  truncate ": {Rate: 5, Burst: 5, Action: config.LimitTruncate},
	} {
		o, err := parseFlags([]string{"-client-limit=" + arg, "--client-limit-except=10.1.2.3/8, fd00::1"})
		check.NoError(t, err)
		if diff := cmp.Diff(want, o.ClientLimit); diff != "" {
			t.Errorf("-client-limit=%s: %s", arg, diff)
		}
		if got := fmt.Sprint(o.ClientLimitExcept); got != "[10.0.0.0/8 fd00::1/128]" {
			t.Errorf("the exceptions are %s", got)
		}
	}
	for arg, want := range map[string]string{"": "invalid AddrPort", "off": "invalid AddrPort", "127.0.0.1:8353": "127.0.0.1:8353", "[::1]:8353": "[::1]:8353"} {
		if o, err := parseFlags([]string{"-page=" + arg}); err != nil || o.Page.String() != want {
			t.Errorf("-page=%s: %v, %v", arg, o.Page, err)
		}
	}
	for arg, want := range map[string]time.Duration{"90s": 90 * time.Second, "30": 30 * time.Second, "1ns": time.Second, "60ns": time.Minute, "0.3us": 5 * time.Minute, "1s": time.Second} {
		if o, err := parseFlags([]string{"-syncinterval", arg}); err != nil || o.SyncInterval != want {
			t.Errorf("-syncinterval=%s: %s, %v", arg, o.SyncInterval, err)
		}
	}
	if o, err := parseFlags(strings.Fields("-quiet -plugins=false -setupebtables=true -corefile /etc/Corefile -conf /c")); err != nil || o.Conf != "/c" || fmt.Sprint(o.NoEffect) != "[--quiet --plugins --setupebtables --corefile]" {
		t.Errorf("flags without an effect: %v, %v", o, err)
	}
	for _, args := range []string{"-p 1053", "-p=1053", "--dns.port 53 -p 1053", "-p 53 -dns.port 1053"} { // the last one counts, as in CoreDNS
		if o, err := parseFlags(strings.Fields(args)); err != nil || o.DNSPort != 1053 {
			t.Errorf("%s: port %d, %v", args, o.DNSPort, err)
		}
	}
	for arg, want := range map[string]int{"": 32 << 20, "1048576": 1 << 20, "2048Ki": 2 << 20, "64Mi": 64 << 20, "16Gi": 16 << 30} {
		args := []string{"-cache-size=" + arg}
		if arg == "" {
			args = nil
		}
		if o, err := parseFlags(args); err != nil || o.CacheSize != want {
			t.Errorf("%v: %v, want %d bytes", args, err, want)
		}
	}
	o, err = parseFlags([]string{"-bypass=count", "-bypass-doh=192.0.2.44, 2001:db8::44"})
	if err != nil || o.Bypass != options.BypassCount || fmt.Sprint(o.BypassDoH) != "[192.0.2.44 2001:db8::44]" {
		t.Errorf("-bypass: %v, %v, %v", o.Bypass, o.BypassDoH, err)
	}
	if _, err := parseFlags([]string{"-bypass-doh=" + strings.Repeat("192.0.2.44,", options.MaxBypassDoH+1)}); err == nil || !strings.Contains(err.Error(), "give 256 at most") {
		t.Errorf("too many DoH servers: %v", err)
	}
	for arg, want := range map[string]string{
		"-localip=169.254.20":    "-localip",
		"-page=0.0.0.0:8353":     "not loopback",
		"-page=10.0.0.1:8353":    "not loopback",
		"-page=[::]:8353":        "not loopback",
		"-page=:8353":            "-page",
		"-page=localhost:8353":   "-page",
		"-page=127.0.0.1":        "-page",
		"-page=127.0.0.1:0":      "-page",
		"-syncinterval=0":        "-syncinterval",
		"-syncinterval=banana":   "-syncinterval",
		"-syncinterval=0ns":      "-syncinterval",
		"-syncinterval=60ms":     "-syncinterval",
		"-syncinterval=-1ns":     "-syncinterval",
		"-bypass=drop":           "give off or count",
		"-bypass-doh=dns.test":   "-bypass-doh",
		"-client-limit=0":        "-client-limit",
		"-client-limit=many":     "-client-limit",
		"-client-limit-except=x": "-client-limit-except",
		"-health-port=70000":     "-health-port",
		"-dns.port=0":            "-dns.port",
		"-readers=-1":            "-readers",
		"-readers=many":          "-readers",
		"-reader-wait=thread":    "-reader-wait",
		"-cache-size=32":         "-cache-size",
		"-cache-size=0Gi":        "-cache-size",
		"-cache-size=17Gi":       "-cache-size",
		"-cache-size=32MB":       "-cache-size",
		"-cache-size=-32Mi":      "-cache-size",
		"-interfacenam=x":        "interfacenam",
		"stray":                  "unknown command",
		"-version=true stray":    "",
		"-log-format=xml -conf=": "",
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(arg), io.Discard, &stderr); code == 0 && want != "" || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, error %q, want it to name %s", arg, code, &stderr, want)
		}
	}
}
