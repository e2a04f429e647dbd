package firewalls

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// BackEnd is how the agent writes rules.
type BackEnd struct {
	Name string
	// Netfilter is the value of the flag, Proxy the mode of kube-proxy whose rules the node has; empty: none.
	Netfilter, Proxy string
}

// BackEnds returns the columns.
func BackEnds() []BackEnd {
	return []BackEnd{
		{"auto, no kube-proxy", "auto", ""},
		{"auto, kube-proxy iptables", "auto", testbed.ProxyIptablesNft},
		{"auto, kube-proxy nftables", "auto", testbed.ProxyNftables},
		{"iptables-legacy", "iptables", testbed.ProxyIptablesLegacy},
		{"iptables-nft", "iptables", testbed.ProxyIptablesNft},
		{"nftables", "nftables", testbed.ProxyNftables},
	}
}

// Bed is a node with a firewall. Close removes it.
type Bed struct {
	*testbed.Network
	BackEnd
	Firewall
	// Agent is the path of the agent.
	Agent string
	// Client is the program that sends queries; see [testbed.Network.StartLoad].
	Client string

	views string // the folder of the views
	host  *view  // the programs of the firewall
	image *view  // those of the agent's image
	all   []*view
}

// New creates a bed in dir, whose path must be short, with the tools of a release on the node and of one in
// the agent's image. The node has kube-proxy's rules, but no firewall yet.
func New(ctx context.Context, dir, agent string, host, image Release, f Firewall, e BackEnd) (b *Bed, err error) {
	d, views := filepath.Join(dir, "d"), filepath.Join(dir, "v")
	if err := errors.Join(os.MkdirAll(views, 0o755), os.MkdirAll(filepath.Join(d, "run"), 0o755)); err != nil {
		return nil, err
	}
	n, err := testbed.New(d, agent)
	b = &Bed{Network: n, BackEnd: e, Firewall: f, Agent: agent, Client: os.Args[0], views: views}
	if err != nil {
		return b, err
	}
	b.Cleanup(b.killAll)
	if b.host, err = b.openView(ctx, host); err != nil {
		return b, err
	}
	b.image, b.all = b.host, []*view{b.host}
	if image != host {
		if b.image, err = b.openView(ctx, image); err != nil {
			return b, err
		}
		b.all = append(b.all, b.image)
	}
	return b, b.addProxy()
}

// killAll ends the processes that firewalls have started in the node.
func (b *Bed) killAll() {
	pids, err := testbed.Run("ip", "netns", "pids", b.Node)
	if err != nil {
		return
	}
	for _, pid := range strings.Fields(pids) {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// addProxy adds kube-proxy's rules.
func (b *Bed) addProxy() error {
	if b.Proxy == "" {
		return nil
	}
	return b.KubeProxy(b.Proxy)
}

// startAgent starts an agent in the node and waits until it serves. It takes over from an agent that runs.
func (b *Bed) startAgent(more ...string) (*peer.Process, error) {
	return b.startAgentIn(b.image, more...)
}

func (b *Bed) startAgentIn(v *view, more ...string) (*peer.Process, error) {
	args, err := b.AgentArgs([]string{testbed.Local4, testbed.Local6}, "-syncinterval=1s", "-netfilter="+b.Netfilter,
		"-handover-dir="+filepath.Join(b.Dir, "run", "h"), "-handover-compare=0", "-health-port=8080")
	if err != nil {
		return nil, err
	}
	command := v.command(append(append([]string{"/usr/local/bin/nodens"}, args...), more...)...)
	p, err := peer.Spawn(peer.Command{
		Name: "nodens-node", Path: command[0], Args: command[1:], Dir: b.Dir,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	})
	if err != nil {
		return nil, err
	}
	b.Cleanup(p.Stop)
	if err := p.Await(context.Background(), "the agent to log that it serves", testbed.LogContains(p, "msg=serving")); err != nil {
		return p, fmt.Errorf("the agent does not serve: %s", lastProblem(p))
	}
	return p, nil
}

// sh runs a script with the machine's programs in a namespace.
func (b *Bed) sh(ns, script string) error {
	_, err := b.In(ns, "sh", "-euc", script)
	return err
}

// cleanUp runs the agent's command cleanup.
func (b *Bed) cleanUp(ctx context.Context) error {
	_, err := b.image.sh(ctx, "/usr/local/bin/nodens cleanup -localip "+testbed.Local4+","+testbed.Local6+" -handover-dir "+filepath.Join(b.Dir, "run", "h"))
	return err
}

// rate is that of one client, in queries a second.
const rate = 200

// How long an answer may take. Tests count what is lost, and not how long things take on a machine that is busy. While
// something is known to be missing there is nothing to wait for.
const (
	answerTimeout = 10 * time.Second
	gapTimeout    = 2 * time.Second
)

// job returns a load on the agent's addresses, or on those of the servers given.
func job(d time.Duration, servers ...string) load.Job {
	if len(servers) == 0 {
		servers = []string{testbed.Local4, testbed.Local6}
	}
	j := load.Job{
		Local: testbed.FromAgent, Cluster: testbed.FromCluster, Names: 20, Zone: testbed.Zone + ".",
		Rate: rate, Sockets: 32, QueriesPerSocket: 8, OneShots: rate / 10, Timeout: answerTimeout, Duration: d,
	}
	for _, s := range servers {
		j.Servers = append(j.Servers, netip.AddrPortFrom(netip.MustParseAddr(s), 53))
	}
	return j
}

// gapJob is job for the time in which the agent has something to repair.
func gapJob() load.Job {
	j := job(burst)
	j.Timeout = gapTimeout
	return j
}

// clients starts a client in the pod and one in the node.
func (b *Bed) clients(j load.Job) (clients []*load.Client, err error) {
	for _, ns := range []string{b.Pod, b.Node} {
		c, startErr := load.Start(j, "ip", "netns", "exec", ns, b.Client, "load")
		if startErr != nil {
			return clients, errors.Join(err, startErr)
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// ask sends queries from the pod and the node for d, and returns their outcomes.
func (b *Bed) ask(d time.Duration, servers ...string) (load.Counts, error) {
	return b.during(job(d, servers...), nil)
}

// during runs the job in the pod and in the node while do does something, and for the job's duration afterwards.
func (b *Bed) during(j load.Job, do func() error) (sum load.Counts, err error) {
	after := j.Duration
	if do != nil {
		j.Duration = time.Minute
	}
	clients, err := b.clients(j)
	if do != nil {
		err = errors.Join(err, do())
		time.Sleep(after)
	}
	for _, c := range clients {
		if do != nil {
			c.EndLoad()
		}
		r, waitErr := c.Wait()
		if waitErr != nil {
			err = errors.Join(err, waitErr)
			continue
		}
		sum.Add(r.All())
	}
	return sum, err
}

// listScript prints all rules and addresses of a node. Asking the legacy programs would add tables.
const listScript = `
nft -s list ruleset
for t in $(cat /proc/net/ip_tables_names 2>/dev/null); do echo "legacy $t"; iptables-legacy-save -t $t; done
for t in $(cat /proc/net/ip6_tables_names 2>/dev/null); do echo "legacy ip6 $t"; ip6tables-legacy-save -t $t; done
`

// objects returns all rules, tables, interfaces, addresses and routing rules of the node as text, without
// counters, what iptables makes when it is asked, and the agent's own.
func (b *Bed) objects(ctx context.Context, own bool) (string, error) {
	rules, err := b.host.sh(ctx, listScript)
	if err != nil {
		return "", err
	}
	// ip complains if a namespace of another test goes meanwhile.
	addrs, err := b.In(b.Node, "sh", "-c", "(ip -o link show; ip -o addr show; ip rule; ip -6 rule) 2>/dev/null")
	if err != nil {
		return "", err
	}
	text := rules + details.ReplaceAllString(addrs, "")
	if !own {
		text = withoutOwn(text)
	}
	return withoutEmpty(text), nil
}

var (
	details   = regexp.MustCompile(`( tentative)? *\\ .*`) // of interfaces and addresses: statistics, lifetimes, the state of detection
	remarks   = regexp.MustCompile(`(?m)^#.*\n|^(:\S+ \S+) \[\d+:\d+\]$`)
	warnings  = regexp.MustCompile(`(?m)^# Warning: .*\n`)
	baseChain = regexp.MustCompile(`(?m)^\tchain (INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) \{\n\t\ttype [^\n]*policy accept;\n\t\}\n\n?`)
	noTable   = regexp.MustCompile(`(?m)^table ip6? (raw|mangle|nat|filter|security) \{\n\}\n`)
	noLegacy  = regexp.MustCompile(`(?m)^legacy .*\n\*\w+\n(:[A-Z]+ ACCEPT\n)+COMMIT\n`)
	blankEnd  = regexp.MustCompile(`\n\n\}`)

	ownTable   = regexp.MustCompile(`(?m)^table \w+ nodens[^\n]*\{[^\n]*\n(.*\n)*?\}\n`)
	ownChain   = regexp.MustCompile(`(?m)^\tchain NODENS-[^\n]*\{\n(.*\n)*?\t\}\n\n?`)
	ownLine    = regexp.MustCompile(`(?m)^.*(nodens: |NODENS-|nodelocaldns|169\.254\.20\.10|fd00:20::10).*\n`)
	ownHandler = regexp.MustCompile(`(?m)^\t\t.*comment "nodens.*\n`)
)

// withoutEmpty removes what differs without a meaning: counters, and tables and chains without rules, which
// stay when iptables was asked for them once.
func withoutEmpty(text string) string {
	text = warnings.ReplaceAllString(text, "")
	text = remarks.ReplaceAllString(text, "$1")
	text = baseChain.ReplaceAllString(text, "")
	text = blankEnd.ReplaceAllString(text, "\n}")
	text = noTable.ReplaceAllString(text, "")
	return noLegacy.ReplaceAllString(text, "")
}

// withoutOwn removes the agent's objects.
func withoutOwn(text string) string {
	for _, r := range []*regexp.Regexp{ownTable, ownChain, ownHandler, ownLine} {
		text = r.ReplaceAllString(text, "")
	}
	return text
}

// ownLeft returns the lines of text that are the agent's.
func ownLeft(text string) string {
	var left []string
	for line := range strings.Lines(text) {
		if ownLine.MatchString(line) || strings.Contains(line, " nodens") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return strings.Join(left, "; ")
}

// listErrors has the nft of every release list the rules, and returns the failures by the release's number.
func (b *Bed) listErrors(ctx context.Context) map[string]error {
	failed := make(map[string]error)
	for _, r := range Releases() {
		root, err := r.Root(ctx)
		if err == nil {
			var out string
			if out, err = b.In(b.Node, "chroot", root, "/usr/sbin/nft", "list", "ruleset"); err != nil {
				err = fmt.Errorf("nft of Debian %s: %w: %.300s", r.Number, err, out)
			}
		}
		if err != nil {
			failed[r.Number] = err
		}
	}
	return failed
}
