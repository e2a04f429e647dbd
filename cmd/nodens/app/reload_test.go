// These tests use current, blocks and pools, which are not exported.

package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
	"github.com/nodens-dns/nodens/test/testlog"
)

// looked is an agent that reads its files when the test says so.
type looked struct {
	*agent
	t    *testing.T
	log  *flushedLog
	conf string
}

// flushedLog is the log of an agent with all lines until now.
type flushedLog struct {
	testlog.Buffer
	agent *agent
}

func (l *flushedLog) String() string {
	l.agent.logQueue.Flush(agenttest.Timeout)
	return l.Buffer.String()
}

// lookedAt returns an agent that serves the Corefile, without a main loop.
func lookedAt(t *testing.T, corefile string, changes ...func(*options.Agent)) *looked {
	t.Helper()
	l := &looked{t: t, log: new(flushedLog), conf: agenttest.WriteCorefile(t, corefile)}
	a, cfg, err := prepare(testOptions(l.conf, changes...), l.log)
	check.NoError(t, err)
	l.agent, l.log.agent = a, a
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		if err := l.shutdown(); err != nil {
			t.Error(err)
		}
		l.background.Wait()
	})
	check.NoError(t, l.apply(ctx, cfg))
	return l
}

// look has the agent look at its files and reports whether it took a change on.
func (l *looked) look() bool {
	before := l.current.Load()
	l.reload(context.Background(), false)
	return l.current.Load() != before
}

// TestReloadFiles: a change in any of the files that a configuration is made of is
// taken on, once.
func TestReloadFiles(t *testing.T) {
	p := peer.Ports(t, 1)
	for _, c := range []struct{ name, file, before, after, corefile string }{
		{"import", "imported", "errors\n", "errors\nloadbalance\n", "import %s"},
		{"forward's resolv.conf", "resolv.conf", "nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n", "forward . %s"},
		{"autopath's resolv.conf", "resolv.conf", "search a.test\n", "search b.test\n", "hosts\nautopath %s"},
		{"stub domains", "stubDomains", `{"a.test": ["192.0.2.1"]}`, `{"a.test": ["192.0.2.2"]}`, "hosts"},
		{"upstream name servers", "upstreamNameservers", `["192.0.2.1"]`, `["192.0.2.2"]`, "forward . __PILLAR__UPSTREAM__SERVERS__"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, c.file)
			agenttest.WriteFile(t, file, c.before)
			body := strings.Replace(c.corefile, "%s", file, 1)
			l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n %s\n}\n", p[0], body),
				withStubs(dir, p[0]))
			if l.look() {
				t.Error("nothing has changed, and it was taken on")
			}
			agenttest.WriteFile(t, file, c.after)
			if !l.look() {
				t.Errorf("the change is not taken on:\n%s", l.log)
			}
			if l.look() {
				t.Error("the change is taken on twice")
			}
		})
	}
}

// TestReloadVanished: a file that is missing for a moment does not empty the
// configuration; one that stays away is taken for gone where that has a meaning, and
// for a fault where it hasn't.
func TestReloadVanished(t *testing.T) {
	p := peer.Ports(t, 1)
	dir := t.TempDir()
	stubs, resolv := filepath.Join(dir, "stubDomains"), filepath.Join(dir, "resolv.conf")
	const domains, servers = `{"a.test": ["192.0.2.1"]}`, "nameserver 192.0.2.1\n"
	agenttest.WriteFile(t, stubs, domains)
	agenttest.WriteFile(t, resolv, servers)
	l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . %s\n}\n", p[0], resolv),
		withStubs(dir, p[0]))
	remove := func(file string) {
		t.Helper()
		check.NoError(t, os.Remove(file))
	}
	failed := func(want uint64, refused bool) {
		t.Helper()
		if got := l.reloadFailed.Load(); got != want || l.reloadState.refused.Load() != refused {
			t.Errorf("%d reloads failed, refused %v; want %d, %v:\n%s", got, l.reloadState.refused.Load(), want, refused, l.log)
		}
	}
	remove(stubs)
	if l.look() {
		t.Error("stub domains that are gone at one look are gone")
	}
	agenttest.WriteFile(t, stubs, domains)
	if l.look() {
		t.Error("stub domains that are back are new")
	}
	remove(stubs)
	if l.look() || !l.look() {
		t.Error("stub domains that stay away are kept, or dropped at once")
	}
	failed(0, false)
	agenttest.WriteFile(t, resolv, "# being written\n")
	for range 3 { // the same fault is one
		if l.look() {
			t.Error("an empty resolv.conf was taken on")
		}
		failed(1, true)
	}
	if !strings.Contains(l.log.String(), "Corefile:3: forward: "+resolv) {
		t.Errorf("the log does not say where the fault is:\n%s", l.log)
	}
	remove(resolv) // another fault
	if l.look() {
		t.Error("a missing resolv.conf was taken on")
	}
	failed(2, true)
	agenttest.WriteFile(t, resolv, servers)
	if l.look() {
		t.Error("what is in force was taken on again")
	}
	failed(2, false)
}

// TestReloadWritten: a file that is still being written when it is looked at is left
// to the next look.
func TestReloadWritten(t *testing.T) {
	p := peer.Ports(t, 1)
	corefile := func(i int) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n hosts {\n  192.0.2.%d a.test\n }\n}\n", p[0], i)
	}
	l := lookedAt(t, corefile(1))
	first, err := l.opts.LoadConfig()
	check.NoError(t, err)
	agenttest.WriteFile(t, l.conf, corefile(2))
	if first.Digest == "" || l.stable(context.Background(), first, fmt.Errorf("half a file")) {
		t.Error("what only one of two reads has found is taken for true")
	}
	if !l.look() {
		t.Errorf("what both have found is not:\n%s", l.log)
	}
}

// TestReuseOfCaches: which cache a block has after a reload.
func TestReuseOfCaches(t *testing.T) {
	p := peer.Ports(t, 2)
	dir := t.TempDir()
	resolv, stubs := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "stubDomains")
	agenttest.WriteFile(t, resolv, "nameserver 192.0.2.1\n")
	block := func(keys, bind, to string) string {
		return fmt.Sprintf("%s {\n bind %s\n cache 30\n forward . %s\n}\n", keys, bind, to)
	}
	at := func(zone string) string { return fmt.Sprintf("%s:%d", zone, p[0]) }
	one := block(at("a.test")+" "+at("b.test"), "127.0.0.1", "192.0.2.53")
	twin := block(at("a.test")+" "+at("b.test"), "127.0.0.2", "192.0.2.53")
	rest := block(at("."), "127.0.0.1", resolv)
	l := lookedAt(t, one+twin+rest, withStubs(dir, p[0]))
	caches := func() (list []any) {
		for _, p := range l.current.Load().blocks {
			list = append(list, p.cache())
		}
		return list
	}
	first := caches()
	for _, c := range []struct {
		name, corefile string
		change         func()
		want           []int // indexes of the caches of the first configuration; -1 is a new one
	}{
		{"moved", rest + twin + one, nil, []int{2, 1, 0}},
		{"zones in another order", block(at("b.test")+" "+at("a.test"), "127.0.0.1", "192.0.2.53") + twin + rest, nil, []int{0, 1, 2}},
		{"one of two of the same zones is gone", twin + rest, nil, []int{1, 2}},
		{"and comes back", one + twin + rest, nil, []int{-1, 1, 2}},
		{"another port", twin + strings.ReplaceAll(rest, fmt.Sprint(p[0]), fmt.Sprint(p[1])), nil, []int{1, 2}},
		{"a stub domain", twin + rest, func() { agenttest.WriteFile(t, stubs, `{"stub.test": ["192.0.2.1"]}`) }, []int{1, 2, -1}},
		{"another name server", twin + rest, func() { agenttest.WriteFile(t, resolv, "nameserver 192.0.2.2\n") }, []int{1, -1, -1}},
		{"another upstream", strings.Replace(twin, ".53", ".54", 1), nil, []int{-1, -1}},
	} {
		agenttest.WriteFile(t, l.conf, c.corefile)
		if c.change != nil {
			c.change()
		}
		if !l.look() {
			t.Fatalf("%s: not taken on:\n%s", c.name, l.log)
		}
		got := caches()
		if len(got) != len(c.want) {
			t.Fatalf("%s: %d caches, want %d", c.name, len(got), len(c.want))
		}
		for i, cache := range got {
			if c.want[i] >= 0 && cache != first[c.want[i]] {
				t.Errorf("%s: block %d has not the cache of block %d", c.name, i, c.want[i])
			}
			for j := range i {
				if got[j] == cache {
					t.Errorf("%s: blocks %d and %d have the same cache", c.name, i, j)
				}
			}
		}
	}
}

// TestReloadLosesNothing: while the configuration changes to and fro, and every change
// makes new pools, all queries on their way are answered, over UDP and TCP, from cache
// and from a slow upstream.
func TestReloadLosesNothing(t *testing.T) {
	const reloads = 20
	p := peer.Ports(t, 1)
	up := slowUpstream(t)
	corefile := func(i int) string {
		return fmt.Sprintf(".:%d {\n bind 127.0.0.1\n cache %d\n forward . %s {\n  max_fails %d\n }\n hosts {\n  192.0.2.9 here.test\n  fallthrough\n }\n}\n",
			p[0], 30+i%2, up, 1+i%2)
	}
	l := lookedAt(t, corefile(0))
	var asked, bad atomic.Int64
	done := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() { askOn(t, fmt.Sprintf("127.0.0.1:%d", p[0]), i, &asked, &bad, done) })
	}
	for i := range reloads {
		until := asked.Load() + 50
		for asked.Load() < until && bad.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		agenttest.WriteFile(t, l.conf, corefile(i+1))
		before := l.current.Load()
		l.reload(context.Background(), true)
		if l.current.Load() == before {
			t.Fatalf("reload %d was not taken on:\n%s", i, l.log)
		}
	}
	close(done)
	clients.Wait()
	if n := bad.Load(); n > 0 {
		t.Errorf("%d of %d queries were not answered:\n%s", n, asked.Load(), l.log)
	}
}

// askOn asks until done: names that are there, in cache, or take waiting, over UDP
// and, every odd client, TCP.
func askOn(t *testing.T, addr string, client int, asked, bad *atomic.Int64, done <-chan struct{}) {
	c := dns.Client{Net: [...]string{"udp", "tcp"}[client%2], Timeout: agenttest.Timeout}
	conn, err := c.Dial(addr)
	if err != nil {
		t.Error(err)
		bad.Add(1)
		return
	}
	defer conn.Close()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		default:
		}
		name := [...]string{"here.test.", "cached.test.", fmt.Sprintf("n%d.c%d.test.", i, client)}[i%3]
		m, _, err := c.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), conn)
		asked.Add(1)
		if err != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			bad.Add(1)
			t.Errorf("%s over %s: %v %v", name, c.Net, m, err)
			return
		}
	}
}

// slowUpstream answers every query after a while.
func slowUpstream(t *testing.T) string {
	t.Helper()
	return fakedns.Start(t, func(q *fakedns.Query) {
		q.ReplyAfter(20*time.Millisecond, fakedns.Address(q.Msg, 60, "192.0.2.1"))
	}).Addr().String()
}

// TestReuseOfServiceUpstreams: upstreams that are Services come from the block's own view, or
// from that of another block, wherever it stands; another view is another source.
func TestReuseOfServiceUpstreams(t *testing.T) {
	p := peer.Ports(t, 1)
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		agenttest.WriteFile(t, filepath.Join(dir, name+".yaml"), "")
	}
	corefile := func(manifest, more string) string {
		return fmt.Sprintf("test:%d {\n bind 127.0.0.1\n forward . k8s:kube-system/kube-dns\n}\ncluster.local:%d {\n bind 127.0.0.1\n kubernetes {\n  manifests %s\n }\n %s\n}\n",
			p[0], p[0], filepath.Join(dir, manifest), more)
	}
	l := lookedAt(t, corefile("a.yaml", ""))
	first := l.current.Load().blocks
	if first[0].endpointsView == nil || first[0].endpointsView != first[1].view {
		t.Fatal("the endpoints are of another view than the Corefile has")
	}
	agenttest.WriteFile(t, l.conf, corefile("a.yaml", "loadbalance"))
	if !l.look() || l.current.Load().blocks[0].pools()[0] != first[0].pools()[0] {
		t.Errorf("the same view makes other pools:\n%s", l.log)
	}
	agenttest.WriteFile(t, l.conf, corefile("b.yaml", "loadbalance"))
	if !l.look() || l.current.Load().blocks[0].pools()[0] == first[0].pools()[0] {
		t.Errorf("the pool goes on with a view that has ended:\n%s", l.log)
	}
}

// root is an authority's certificate in PEM, another each time.
func root(t *testing.T) string {
	t.Helper()
	return string(ca.ForTest(t).PEM())
}

// TestReloadCertificates: upstreams are asked with the certificates that are there, and
// a file that is no certificate leaves the old ones.
func TestReloadCertificates(t *testing.T) {
	p := peer.Ports(t, 1)
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	agenttest.WriteFile(t, caFile, root(t))
	l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . tls://192.0.2.1 {\n  tls %s\n }\n}\n", p[0], caFile))
	first := l.current.Load().blocks[0].pools()[0]
	agenttest.WriteFile(t, caFile, "none")
	if l.look() || l.reloadFailed.Load() != 1 {
		t.Errorf("a file that is no certificate was taken on:\n%s", l.log)
	}
	agenttest.WriteFile(t, caFile, root(t))
	if !l.look() || l.current.Load().blocks[0].pools()[0] == first {
		t.Errorf("the pool goes on with the old certificate:\n%s", l.log)
	}
}

// TestReloadLoop: a resolv.conf that comes to name the agent itself is refused, and the
// reason says both.
func TestReloadLoop(t *testing.T) {
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	agenttest.WriteFile(t, resolv, "nameserver 192.0.2.1\n")
	port := peer.Ports(t, 1)[0]
	l := lookedAt(t, fmt.Sprintf(".:%d {\n bind 127.0.0.1\n forward . %s\n}\n", port, resolv))
	before := l.current.Load()
	agenttest.WriteFile(t, resolv, "nameserver 127.0.0.1\n")
	if !l.look() {
		t.Errorf("another port of the same address is another server:\n%s", l.log)
	}
	agenttest.WriteFile(t, l.conf, fmt.Sprintf(".:53 {\n bind 127.0.0.1\n forward . %s\n}\n", resolv))
	if l.look() || l.reloadFailed.Load() != 1 || l.current.Load() == before {
		t.Error("the agent forwards to itself")
	}
	if text := l.log.String(); !strings.Contains(text, "Corefile:3: forward: the upstream 127.0.0.1:53 is an address that this block listens on") || !strings.Contains(text, resolv) {
		t.Errorf("the log does not say why:\n%s", text)
	}
}
