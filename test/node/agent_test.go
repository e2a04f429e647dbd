package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestPodAsks: a pod gets answers for a cluster name and a forwarded name over both transports and
// families, with and without EDNS, and none of its queries is tracked.
func TestPodAsks(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	// A rule that matches a connection's state turns tracking on.
	l.in(l.node, "iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
	l.in(l.node, "ip6tables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
	l.startAgent()
	for _, server := range []string{local4, local6} {
		for _, transport := range []string{"+notcp", "+tcp"} {
			for _, edns := range []string{"+noedns", "+edns"} {
				for _, c := range []struct{ name, qtype, want string }{
					{"web.shop.svc.cluster.local", "A", "10.96.7.1"},
					{"web.shop.svc.cluster.local", "AAAA", "fd00:96::7:1"},
					{"www.example.org", "A", "192.0.2.80"},
					{"www.example.org", "AAAA", "2001:db8::80"},
				} {
					t.Run(strings.Join([]string{server, transport[1:], edns[1:], c.name, c.qtype}, "/"), func(t *testing.T) {
						got, err := l.dig(l.pod, "@"+server, transport, edns, c.name, c.qtype)
						if err != nil {
							t.Fatal(err)
						}
						if got != c.want {
							t.Errorf("answer %q, want %q", got, c.want)
						}
					})
				}
			}
		}
	}
	if got := l.tracked(); got != "" {
		t.Errorf("port 53 is tracked:\n%s", got)
	}
	// A query that bypasses the agent is tracked: the check above can fail.
	if _, err := l.dig(l.pod, "@"+upstreamIP, "www.example.org"); err != nil {
		t.Fatal(err)
	}
	if got := l.tracked(); !strings.Contains(got, "dst="+upstreamIP) {
		t.Errorf("a query that goes around the agent is not tracked: %q", got)
	}
}

// TestRules: the agent's rules and addresses are in place while it runs, removed rules are restored, and
// a stop leaves nothing.
func TestRules(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	l.in(l.node, "iptables", "-A", "INPUT", "-p", "udp", "--dport", "53", "-j", "ACCEPT", "-m", "comment", "--comment", "somebody else's")
	l.in(l.node, "ip6tables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "5353", "-j", "NOTRACK")
	rules, addrs := l.ruleList(), l.addresses()
	p := l.startAgent()
	during := l.ruleList()
	for _, want := range wantedRules(during) {
		if n := strings.Count(during, want); n != 1 {
			t.Errorf("rule stands %d times: %s\n%s", n, want, during)
		}
	}
	for _, a := range []string{local4 + "/32", local6 + "/128"} {
		if !strings.Contains(l.addresses(), a) {
			t.Errorf("the node has no %s:\n%s", a, l.addresses())
		}
	}
	l.in(l.node, "iptables", "-t", "raw", "-F", "PREROUTING")
	p.Must(t, "the removed rules to come back", func(context.Context) error {
		if got := l.ruleList(); got != during {
			return errors.New(cmp.Diff(during, got))
		}
		return nil
	})
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if diff := cmp.Diff(rules, l.ruleList()); diff != "" {
		t.Errorf("rules differ after the stop (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(addrs, l.addresses()); diff != "" {
		t.Errorf("addresses differ after the stop (-before +after):\n%s", diff)
	}
}

// jumpMark is the mark of the desired rules in the comments of the jumps.
var jumpMark = regexp.MustCompile(`"nodens: DNS of this node (\([0-9a-f]{8}\))"`)

// wantedRules returns the agent's rules for both addresses, as iptables-save prints them. The jumps have the mark of
// the first one in saved.
func wantedRules(saved string) []string {
	var rules []string
	mark := "(none)"
	if m := jumpMark.FindStringSubmatch(saved); m != nil {
		mark = m[1]
	}
	for _, l := range []string{local4 + "/32", local6 + "/128"} {
		for _, p := range []string{"udp", "tcp"} {
			rules = append(rules,
				fmt.Sprintf("-A NODENS-PREROUTING -d %s -p %s -m %s --dport 53 -m socket --nowildcard -j NOTRACK", l, p, p),
				fmt.Sprintf("-A NODENS-OUTPUT -s %s -p %s -m %s --sport 53 -j NOTRACK", l, p, p),
				fmt.Sprintf("-A NODENS-INPUT -d %s -p %s -m %s --dport 53 -j ACCEPT", l, p, p),
				fmt.Sprintf("-A NODENS-OUTPUT -s %s -p %s -m %s --sport 53 -j ACCEPT", l, p, p))
		}
		rules = append(rules,
			fmt.Sprintf("-A NODENS-OUTPUT -d %s -p tcp -m tcp --dport 8080 -j NOTRACK", l),
			fmt.Sprintf("-A NODENS-OUTPUT -s %s -p tcp -m tcp --sport 8080 -j NOTRACK", l))
	}
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		for _, hook := range []string{"*raw -A PREROUTING", "*raw -A OUTPUT", "*filter -A INPUT", "*filter -A OUTPUT"} {
			rules = append(rules, fmt.Sprintf(`%s %s -m comment --comment "nodens: DNS of this node %s" -j NODENS-%s`,
				tool, hook, mark, hook[strings.LastIndex(hook, " ")+1:]))
		}
	}
	return rules
}

// TestKilled: after a SIGKILL the next agent adopts the rules and addresses, duplicates nothing, and
// leaves nothing after its stop.
func TestKilled(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	rules, addrs := l.ruleList(), l.addresses()
	p := l.startAgent()
	during := l.ruleList()
	p.Kill()
	if diff := cmp.Diff(during, l.ruleList()); diff != "" {
		t.Errorf("rules went with the killed agent (-before +after):\n%s", diff)
	}
	p = l.startAgent()
	if diff := cmp.Diff(during, l.ruleList()); diff != "" {
		t.Errorf("the second agent's rules differ from the first's (-first +second):\n%s", diff)
	}
	if got, err := l.dig(l.pod, "@"+local4, "web.shop.svc.cluster.local"); err != nil || got != "10.96.7.1" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	p.Stop()
	if diff := cmp.Diff(rules+addrs, l.ruleList()+l.addresses()); diff != "" {
		t.Errorf("the stop leaves something behind (-before +after):\n%s", diff)
	}
}

// TestSkipTeardown: with -skipteardown everything stays for the next agent.
func TestSkipTeardown(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	p := l.startAgent("-skipteardown")
	during := l.ruleList() + l.addresses()
	p.Stop()
	if err := p.Err(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if diff := cmp.Diff(during, l.ruleList()+l.addresses()); diff != "" {
		t.Errorf("something went in spite of -skipteardown (-before +after):\n%s", diff)
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
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(strings.Replace(string(text), "lameduck 0s", "lameduck 2s", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
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
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
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
	if err := os.Mkdir(noTools, 0o755); err != nil {
		t.Fatal(err)
	}
	args := l.agentArgs()
	for _, c := range []struct {
		name string
		cmd  []string
		want string
	}{
		{"no NET_ADMIN", []string{"setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", l.nodens}, "-setupinterface=false"},
		{"no iptables", []string{"env", "PATH=" + noTools, l.nodens, "--netfilter", "iptables"}, "-setupiptables=false"},
		{"broken Corefile", []string{l.nodens, "-conf", l.file("Corefile.broken", ".:53 {\n    forwrad . 10.0.0.1\n}\n")}, `did you mean "forward"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			rules, addrs := l.ruleList(), l.addresses()
			cmd := append([]string{"netns", "exec", l.node}, c.cmd...)
			if c.name != "broken Corefile" {
				cmd = append(cmd, args...)
			}
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
			if diff := cmp.Diff(rules+addrs, l.ruleList()+l.addresses()); diff != "" {
				t.Errorf("something is left behind (-before +after):\n%s", diff)
			}
		})
	}
}

// TestOfficial: the agent runs with NodeLocal DNSCache's unchanged Corefile and arguments, and forwards
// cluster names to the upstream service over TCP.
func TestOfficial(t *testing.T) {
	t.Parallel()
	l := newNetwork(t)
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	fixture := filepath.Join(root, "daemonset", "testdata", "iptables")
	text, err := os.ReadFile(filepath.Join(fixture, "args"))
	if err != nil {
		t.Fatal(err)
	}
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
