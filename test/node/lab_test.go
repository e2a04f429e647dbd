package node

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// Addresses of the lab. The agent's are link-local ones, as on real nodes; the
// rest are inside the namespaces.
const (
	local4, local6 = "169.254.20.10", "fd00:20::10"
	podIP4, podIP6 = "10.244.7.2", "fd00:244:7::2"
	nodeIP4        = "10.244.7.1"
	nodeIP6        = "fd00:244:7::1"
	upstreamIP     = "10.201.0.2"
	// upstreamPort keeps the agent's own queries to its upstream apart from what
	// pods send to port 53.
	upstreamPort = "5300"
)

// lab is the three namespaces and the programs to run in them.
type lab struct {
	t                   *testing.T
	pod, node, upstream string
	nodens, dir         string
}

// newLab makes a lab with an upstream that answers, or skips the test where the
// machine can't have one.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "dig", "iptables", "ip6tables", "conntrack"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing; `make test` installs it", tool)
		}
	}
	name := func(role string) string { return fmt.Sprintf("nodens-%d-%s", os.Getpid(), role) }
	l := &lab{t: t, pod: name("pod"), node: name("node"), upstream: name("up"), dir: t.TempDir()}
	l.nodens = peer.Build(t, "nodens")
	for _, ns := range []string{l.pod, l.node, l.upstream} {
		l.host("ip", "netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", ns).Run() })
		l.in(ns, "ip", "link", "set", "lo", "up")
	}
	l.join(l.pod, podIP4, podIP6, nodeIP4, nodeIP6)
	l.join(l.upstream, upstreamIP, "fd00:201::2", "10.201.0.1", "fd00:201::1")
	l.in(l.node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	l.startUpstream()
	return l
}

// join connects ns to the node by veth, with the node as its gateway.
func (l *lab) join(ns, ip4, ip6, gw4, gw6 string) {
	l.t.Helper()
	port := "v" + ns[strings.LastIndex(ns, "-")+1:] // the node's end
	l.host("ip", "link", "add", port, "netns", l.node, "type", "veth", "peer", "name", "eth0", "netns", ns)
	for _, end := range []struct{ ns, dev, ip4, ip6 string }{{ns, "eth0", ip4, ip6}, {l.node, port, gw4, gw6}} {
		l.in(end.ns, "ip", "link", "set", end.dev, "up")
		l.in(end.ns, "ip", "addr", "add", end.ip4+"/24", "dev", end.dev)
		l.in(end.ns, "ip", "addr", "add", end.ip6+"/64", "dev", end.dev, "nodad")
	}
	l.in(ns, "ip", "route", "add", "default", "via", gw4)
	l.in(ns, "ip", "-6", "route", "add", "default", "via", gw6)
}

// host runs a command outside of the lab's namespaces and fails the test if it
// fails.
func (l *lab) host(args ...string) string {
	l.t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// in is host inside a namespace.
func (l *lab) in(ns string, args ...string) string {
	l.t.Helper()
	return l.host(append([]string{"ip", "netns", "exec", ns}, args...)...)
}

// start runs nodens in a namespace.
func (l *lab) start(ns string, env []string, args ...string) *peer.Process {
	l.t.Helper()
	return peer.Start(l.t, peer.Command{
		Name: "nodens-" + ns, Path: "ip", Env: env,
		Args: append([]string{"netns", "exec", ns, l.nodens}, args...),
	})
}

func (l *lab) file(name, text string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// startUpstream runs what the agent forwards to. It answers on port 53 as well,
// for queries that go around the agent.
func (l *lab) startUpstream() {
	l.t.Helper()
	conf := l.file("Corefile.upstream", `.:`+upstreamPort+` .:53 {
    bind `+upstreamIP+`
    hosts {
        192.0.2.80 www.example.org
        2001:db8::80 www.example.org
        192.0.2.90 web.shop.svc.cluster.local
    }
}
`)
	p := l.start(l.upstream, nil, "-conf", conf, "-metrics-listen-address=")
	p.Must(l.t, "the upstream to answer", l.answers(l.upstream, "@"+upstreamIP, "-p", upstreamPort, "www.example.org"))
}

const manifests = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.7.1
  clusterIPs: [10.96.7.1, "fd00:96::7:1"]
  ports: [{name: http, port: 80, protocol: TCP}]
`

// agentArgs are the agent's arguments with its Corefile and manifests laid out.
func (l *lab) agentArgs(more ...string) []string {
	l.t.Helper()
	conf := l.file("Corefile", `.:53 {
    bind `+local4+" "+local6+`
    errors
    health `+local4+`:8080 {
        lameduck 0s
    }
    ready `+local4+`:8181
    kubernetes cluster.local {
        manifests `+l.file("shop.yaml", manifests)+`
    }
    cache 30
    forward . `+upstreamIP+":"+upstreamPort+`
}
`)
	return append([]string{"-conf", conf, "-localip", local4 + "," + local6, "-metrics-listen-address=", "-syncinterval=1s"}, more...)
}

// startAgent runs the agent in the node until it is ready: rules come after the
// sockets, so an answer alone does not say that it is.
func (l *lab) startAgent(more ...string) *peer.Process {
	l.t.Helper()
	p := l.start(l.node, nil, l.agentArgs(more...)...)
	p.Must(l.t, "the agent to log that it serves", logs(p, "msg=serving"))
	return p
}

// dig asks from a namespace and gives what +short prints.
func (l *lab) dig(ns string, args ...string) (string, error) {
	args = append([]string{"netns", "exec", ns, "dig", "+short", "+tries=1", "+time=2"}, args...)
	var stderr bytes.Buffer
	cmd := exec.Command("ip", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("dig %s: %w\n%s%s", strings.Join(args[6:], " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// saved gives the node's rules and the chains that somebody made, one a line, each
// with its table. Empty tables, which come with the first rule and stay when it
// goes, are not told from missing ones.
func (l *lab) saved() string {
	l.t.Helper()
	var lines []string
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		table := ""
		for line := range strings.Lines(l.in(l.node, tool)) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = line
			case strings.HasPrefix(line, "-A"), strings.HasPrefix(line, ":") && !strings.Contains(line, " ACCEPT "):
				lines = append(lines, tool+" "+table+" "+line)
			}
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// addresses gives the node's addresses, one a line.
func (l *lab) addresses() string {
	l.t.Helper()
	return l.in(l.node, "ip", "-o", "-br", "addr")
}
