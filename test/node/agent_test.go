package node

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestEnds: what an agent leaves that is killed, or told so by -skipteardown, is what it had: the next one adopts the rules
// and addresses, duplicates nothing, restores what somebody removes, and leaves nothing after its stop.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*peer.Process){"killed": (*peer.Process).Kill, "-skipteardown": (*peer.Process).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newNetwork(t)
			l.in(l.node, "ip6tables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "5353", "-j", "NOTRACK")
			state := func() string { return l.ruleList() + l.addresses() }
			before := state()
			var flags []string
			if name != "killed" {
				flags = []string{name}
			}
			p := l.startAgent(flags...)
			during := state()
			if !strings.Contains(during, local4+"/32") || !strings.Contains(during, local6+"/128") {
				t.Errorf("the node lacks an address:\n%s", during)
			}
			end(p)
			if err := p.Err(); err != nil && name != "killed" {
				t.Errorf("the agent ended with %v", err)
			}
			check.Equal(t, during, state(), "something went with the agent")
			p = l.startAgent()
			if diff := cmp.Diff(during, state()); diff != "" {
				t.Errorf("the second agent's rules differ from the first's (-first +second):\n%s", diff)
			}
			if got, err := l.dig(l.pod, "@"+local4, "web.shop.svc.cluster.local"); err != nil || got != "10.96.7.1" {
				t.Errorf("after the restart: %q, %v", got, err)
			}
			l.in(l.node, "iptables", "-t", "raw", "-F", "PREROUTING")
			p.Must(t, "the removed rules to come back", func(context.Context) error {
				if got := state(); got != during {
					return errors.New(cmp.Diff(during, got))
				}
				return nil
			})
			p.Stop()
			if err := p.Err(); err != nil {
				t.Errorf("the agent ended with %v", err)
			}
			check.Equal(t, before, state(), "the stop leaves something behind")
		})
	}
}

// TestReadiness: /ready returns 200 while the agent serves, and 503 in its lame-duck time, in which it
// still answers.
func TestReadiness(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	args := l.agentArgs()
	conf := args[1]
	text, err := os.ReadFile(conf)
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(conf, []byte(strings.Replace(string(text), "lameduck 0s", "lameduck 2s", 1)), 0o644))
	p := l.start(l.node, nil, args...)
	ready := func() string {
		out, _ := exec.Command("ip", "netns", "exec", l.node, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://"+local4+":8181/ready").Output()
		return string(out)
	}
	p.Must(t, "/ready to be 200", func(context.Context) error {
		if got := ready(); got != "200" {
			return errors.New(got)
		}
		return nil
	})
	check.NoError(t, p.Signal(syscall.SIGTERM))
	p.Must(t, "/ready to be 503", func(context.Context) error {
		if got := ready(); got != "503" {
			return errors.New(got)
		}
		return nil
	})
	if got, err := l.dig(l.pod, "@"+local4, "web.shop.svc.cluster.local"); err != nil || got != "10.96.7.1" {
		t.Errorf("in the lame-duck time: %q, %v", got, err)
	}
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// TestStartErrors: the error of a failed start names the flag that turns the failed part off, the exit
// code is 1, and nothing is left behind.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	noTools := filepath.Join(l.dir, "empty")
	check.NoError(t, os.Mkdir(noTools, 0o755))
	args := l.agentArgs()
	for _, c := range []struct {
		name string
		cmd  []string
		want string
	}{
		{"no NET_ADMIN", []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", l.nodens}, "-setupinterface=false"},
		{"no iptables", []string{"env", "PATH=" + noTools, l.nodens, "--netfilter", "iptables"}, "-setupiptables=false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, addrs := l.ruleList(), l.addresses()
			cmd := slices.Concat([]string{"netns", "exec", l.node}, c.cmd, args)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it would serve until then
			defer cancel()
			out, err := exec.CommandContext(ctx, "ip", cmd...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v, want exit code 1\n%s", err, out)
			}
			// The log quotes the error.
			if text := strings.ReplaceAll(string(out), `\"`, `"`); !strings.Contains(text, c.want) {
				t.Errorf("the error does not say %q:\n%s", c.want, out)
			}
			check.Equal(t, rules+addrs, l.ruleList()+l.addresses(), "something is left behind")
		})
	}
}

// TestOfficial: the agent runs with NodeLocal DNSCache's unchanged Corefile and arguments, and forwards
// cluster names to the upstream service over TCP.
func TestOfficial(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	root, err := peer.Root()
	check.NoError(t, err)
	fixture := filepath.Join(root, "daemonset", "testdata", "iptables")
	text, err := os.ReadFile(filepath.Join(fixture, "args"))
	check.NoError(t, err)
	// Only the mount point of the ConfigMap differs.
	args := append(strings.Fields(string(text)), "-basecorefile", filepath.Join(fixture, "Corefile.base"))
	p := l.start(l.node, []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + upstreamIP}, args...)
	p.Must(t, "the agent to log that it serves", testbed.LogContains(p, "msg=serving"))
	for _, server := range []string{local4, "10.96.0.10"} {
		got, err := l.dig(l.node, "@"+server, "web.shop.svc.cluster.local")
		if err != nil || got != "192.0.2.90" {
			t.Errorf("a cluster name at %s: %q, %v", server, got, err)
		}
		got, err = l.dig(l.pod, "@"+server, "+tcp", "web.shop.svc.cluster.local")
		if err != nil || got != "192.0.2.90" {
			t.Errorf("a pod's question at %s: %q, %v", server, got, err)
		}
	}
	for url, want := range map[string]string{
		"http://" + local4 + ":8080/health": "OK",
		"http://127.0.0.1:9253/metrics":     `coredns_proxy_conn_cache_misses_total{proto="tcp",proxy_name="forward",to="` + upstreamIP + `:53"} `,
		"http://127.0.0.1:9353/metrics":     `coredns_nodecache_setup_errors_total{errortype="iptables"} 0`,
	} {
		if out := l.in(l.node, "curl", "-sf", url); !strings.Contains(out, want) {
			t.Errorf("%s does not say %q:\n%.3000s", url, want, out)
		}
	}
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}
