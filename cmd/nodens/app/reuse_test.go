// These tests use partKey, cancels and hosts, which are not exported.

package app

// In the package, because no one outside sees which part a block has.

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// blockText returns a server block.
func blockText(zone string, port uint16, lines ...string) string {
	return fmt.Sprintf("%s:%d {\n%s\n}\n", zone, port, strings.Join(lines, "\n"))
}

// TestReuse: after a reload each block has the parts of the previous configuration that are
// made of the same, and new ones otherwise.
func TestReuse(t *testing.T) {
	const bind, cache, forward = "bind 127.0.0.1", "cache 30", "forward . 192.0.2.1"
	port := peer.Ports(t, 1)[0]
	dir := t.TempDir()
	names, caFile := filepath.Join(dir, "hosts"), filepath.Join(dir, "ca.pem")
	hosts := "hosts " + names + " {\n reload 0\n fallthrough\n}"
	overTLS := "forward . tls://192.0.2.2 {\n tls " + caFile + "\n}"
	view := func(name string) string { return "view " + name + " {\n expr type() == 'A'\n}" }
	a := blockText("a.test", port, bind, hosts, cache, forward)
	b := blockText("b.test", port, bind, cache, overTLS)
	twin := blockText("a.test", port, "bind 127.0.0.2", hosts, cache, forward)
	type parts = [3]int // indexes of the old blocks whose hosts table, pools and cache it is; -1: new or none
	for _, tt := range []struct {
		name, before, after string
		change              func(*testing.T)
		want                []parts
	}{
		{"another directive", a + b, a + blockText("b.test", port, bind, cache, overTLS, "loadbalance"), nil, []parts{{0, 0, 0}, {-1, 1, 1}}},
		{"reordered", a + b, b + a, nil, []parts{{-1, 1, 1}, {0, 0, 0}}},
		{"two equal blocks, reordered", a + twin, twin + a, nil, []parts{{1, 1, 1}, {0, 0, 0}}},
		{"two equal blocks, the first removed", a + twin, twin, nil, []parts{{1, 1, 1}}},
		{"two equal blocks, both moved", a + twin, strings.NewReplacer("127.0.0.1", "127.0.0.3", "127.0.0.2", "127.0.0.4").Replace(a + twin), nil, []parts{{0, 0, 0}, {1, 1, 1}}},
		{"a second equal block", a, twin + a, nil, []parts{{-1, -1, -1}, {0, 0, 0}}},
		{"changed listen", a + b, strings.Replace(a, "127.0.0.1", "127.0.0.2", 1) + b, nil, []parts{{0, 0, 0}, {-1, 1, 1}}},
		{"changed view", blockText("a.test", port, bind, view("x"), hosts, cache, forward), blockText("a.test", port, bind, view("y"), hosts, cache, forward), nil, []parts{{0, 0, 0}}},
		{"views swapped", blockText("a.test", port, bind, view("x"), cache, forward) + blockText("a.test", port, bind, view("y"), cache, forward),
			blockText("a.test", port, bind, view("y"), cache, forward) + blockText("a.test", port, bind, view("x"), cache, forward), nil, []parts{{-1, 1, 1}, {-1, 0, 0}}},
		{"changed forward", a, blockText("a.test", port, bind, hosts, cache, "forward . 192.0.2.9"), nil, []parts{{0, -1, -1}}},
		{"changed option of forward", a, blockText("a.test", port, bind, hosts, cache, forward+" {\n max_fails 3\n}"), nil, []parts{{0, -1, -1}}},
		// The cache bounds the TTLs of the hosts table.
		{"changed cache", a, blockText("a.test", port, bind, hosts, "cache 60", forward), nil, []parts{{-1, 0, -1}}},
		{"changed zone", a, blockText("z.test", port, bind, hosts, cache, forward), nil, []parts{{-1, 0, -1}}},
		{"another block takes the forward", a + b, blockText("a.test", port, bind, cache, overTLS), nil, []parts{{-1, 1, -1}}},
		{"changed certificate", a + b, a + b, func(t *testing.T) { agenttest.WriteFile(t, caFile, root(t)) }, []parts{{0, 0, 0}, {-1, -1, -1}}},
		{"changed hosts", a, strings.Replace(a, "reload 0", "reload 1h", 1), nil, []parts{{-1, 0, 0}}},
		{"names to look up, changed listen", blockText("a.test", port, bind, cache, "forward . dns.test"),
			blockText("a.test", port, "bind 127.0.0.2", cache, "forward . dns.test"), nil, []parts{{-1, -1, -1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			agenttest.WriteFile(t, names, "192.0.2.9 h.a.test\n")
			agenttest.WriteFile(t, caFile, root(t))
			l := lookedAt(t, tt.before)
			before := l.current.Load()
			agenttest.WriteFile(t, l.conf, tt.after)
			if tt.change != nil {
				tt.change(t)
			}
			if !l.look() {
				t.Fatalf("no reload; log:\n%s", l.log)
			}
			check.Equal(t, tt.want, reusedFrom(before, l.current.Load()), "old blocks of the hosts tables, pools and caches")
		})
	}
}

// reusedFrom returns for each block of g the indexes of the blocks of old that had its hosts
// table, its pools and its cache.
func reusedFrom(old, g *generation) (list [][3]int) {
	for _, p := range g.blocks {
		found := [3]int{-1, -1, -1}
		for i, was := range old.blocks {
			for kind, same := range [3]bool{
				p.hosts() != nil && p.hosts() == was.hosts(),
				len(p.pools()) > 0 && len(was.pools()) > 0 && p.pools()[0] == was.pools()[0],
				p.cache() != nil && p.cache() == was.cache(),
			} {
				if same {
					found[kind] = i
				}
			}
		}
		list = append(list, found)
	}
	return list
}

// TestReuseLimiter: a limit keeps its state in a reload that leaves its rate, burst and exceptions as they are.
func TestReuseLimiter(t *testing.T) {
	port := peer.Ports(t, 1)[0]
	block := func(limit string) string { return blockText("a.test", port, "bind 127.0.0.1", limit, "whoami") }
	before := block("client_limit 100 200 {\n except 10.0.0.0/8\n}")
	for _, tt := range []struct {
		name, after string
		want        bool
	}{
		{"another directive", block("client_limit 100 200 {\n except 10.0.0.0/8\n}\nminimal"), true},
		{"another action", block("client_limit 100 200 drop {\n except 10.0.0.0/8\n}"), true},
		{"another rate", block("client_limit 101 200 {\n except 10.0.0.0/8\n}"), false},
		{"another burst", block("client_limit 100 201 {\n except 10.0.0.0/8\n}"), false},
		{"other exceptions", block("client_limit 100 200 {\n except 10.0.0.0/9\n}"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := lookedAt(t, before)
			old := l.current.Load().blocks[0].parts["client_limit"]
			agenttest.WriteFile(t, l.conf, tt.after)
			if !l.look() {
				t.Fatalf("no reload; log:\n%s", l.log)
			}
			now := l.current.Load()
			if limiter := now.blocks[0].parts["client_limit"]; limiter == nil || (limiter == old) != tt.want {
				t.Errorf("the limiter is %p, was %p; want the same: %t", limiter, old, tt.want)
			}
			for _, listener := range now.listeners {
				for z := range listener.Routes.Zones() {
					if z.Limit == nil || z.Limit.Limiter != now.blocks[0].parts["client_limit"] || z.Limit.Action != now.blocks[0].block.ClientLimit.Action {
						t.Errorf("the zone %v has the limit %+v", z.Name, z.Limit)
					}
				}
			}
		})
	}
	l := lookedAt(t, before)
	agenttest.WriteFile(t, l.conf, block(""))
	if !l.look() || l.current.Load().blocks[0].parts["client_limit"] != nil {
		t.Error("there is a limiter without client_limit")
	}
}

// TestMatchParts: a part is given once, and parts without content match nothing.
func TestMatchParts(t *testing.T) {
	key := func(content any, place string) partKey { return partKey{content, place} }
	for _, tt := range []struct {
		name       string
		have, want []partKey
		match      []int
	}{
		{"nothing", nil, []partKey{key(1, "a")}, []int{-1}},
		{"no content", []partKey{key(nil, "a")}, []partKey{key(nil, "a")}, []int{-1}},
		{"file order", []partKey{key(1, "a"), key(1, "b")}, []partKey{key(1, "c"), key(1, "d"), key(1, "e")}, []int{0, 1, -1}},
		{"same place first", []partKey{key(1, "a"), key(1, "b")}, []partKey{key(1, "c"), key(1, "a")}, []int{1, 0}},
		{"other content", []partKey{key(1, "a")}, []partKey{key(2, "a"), key(1, "z")}, []int{-1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check.Equal(t, tt.match, matchParts(tt.have, tt.want), "matches")
		})
	}
}

// TestReloadReleases: parts that a reload replaces are closed, and only those run that are
// in use.
func TestReloadReleases(t *testing.T) {
	port := peer.Ports(t, 1)[0]
	dir := t.TempDir()
	corefile := func(i int) string {
		return blockText("a.test", port, "bind 127.0.0.1", fmt.Sprintf("cache %d", 30+i),
			fmt.Sprintf("hosts %s {\n 192.0.2.9 h.a.test\n reload 0\n ttl %d\n fallthrough\n}", filepath.Join(dir, "none"), 60+i), fmt.Sprintf("forward . 127.0.0.1:1 {\n max_fails %d\n}", i),
			"dnstap tcp://127.0.0.1:1")
	}
	before := runtime.NumGoroutine()
	t.Run("reloads", func(t *testing.T) {
		l := lookedAt(t, corefile(0))
		running := len(l.cancels)
		for i := range 20 {
			old := l.current.Load()
			agenttest.WriteFile(t, l.conf, corefile(i+1))
			if !l.look() {
				t.Fatalf("no reload; log:\n%s", l.log)
			}
			if len(l.cancels) != running {
				t.Fatalf("reload %d: %d parts run, want %d", i, len(l.cancels), running)
			}
			for _, p := range old.blocks {
				if _, found := l.cancels[p.hosts()]; found {
					t.Fatalf("reload %d: the old hosts table still runs", i)
				}
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), agenttest.Timeout)
	defer cancel()
	for runtime.NumGoroutine() > before {
		select {
		case <-ctx.Done():
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		case <-time.After(5 * time.Millisecond):
		}
	}
}
