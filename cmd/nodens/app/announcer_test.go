package app

// Inside the package: it shares the in-process agent with the tests of reloads.

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/agenttest"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/fakedns"
)

// newNotified starts a server that accepts NOTIFYs, and returns what lists their zones in order.
func newNotified(t *testing.T) (addr string, list func() []string) {
	var mu sync.Mutex
	var zones []string
	s := fakedns.Start(t, fakedns.Answers(func(m *dns.Msg) *dns.Msg {
		if m.Opcode == dns.OpcodeNotify && len(m.Answer) == 1 && m.Answer[0].Header().Rrtype == dns.TypeSOA {
			mu.Lock()
			zones = append(zones, m.Question[0].Name)
			mu.Unlock()
		}
		return new(dns.Msg).SetReply(m)
	}))
	return s.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(zones))
	}
}

// TestNotifyOfCluster: servers of `to` are told of the zones of kubernetes and k8s_external when the view is loaded, and after a
// reload only those that are new.
func TestNotifyOfCluster(t *testing.T) {
	first, toldFirst := newNotified(t)
	second, toldSecond := newNotified(t)
	file := filepath.Join(t.TempDir(), "m.yaml")
	agenttest.WriteFile(t, file, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.10, externalIPs: [192.0.2.1]}\n")
	port := peer.Ports(t, 1)[0]
	text := func(servers ...string) string {
		return blockText(".", port, "bind 127.0.0.1", fmt.Sprintf("kubernetes cluster.local in-addr.arpa {\nmanifests %s\n}", file), "k8s_external out.test",
			fmt.Sprintf("transfer cluster.local in-addr.arpa out.test {\nto * %s\n}", strings.Join(servers, " ")))
	}
	want := []string{"cluster.local.", "out.test."}
	l := lookedAt(t, text(first))
	poll.Until(t, "the zones to be told; the log:\n"+l.log.String(), func() bool { return slices.Equal(toldFirst(), want) })
	agenttest.WriteFile(t, l.conf, text(second))
	if !l.look() {
		t.Fatalf("the configuration is not taken on; the log:\n%s", l.log)
	}
	poll.Until(t, "the new server to be told", func() bool { return slices.Equal(toldSecond(), want) })
	if got := toldFirst(); !slices.Equal(got, want) {
		t.Errorf("the first server was told of %q", got)
	}
}

// TestAnnouncerOnlyIfUsed: without a server that is told of a zone of the cluster there is no announcer.
func TestAnnouncerOnlyIfUsed(t *testing.T) {
	dir := t.TempDir()
	agenttest.WriteFile(t, filepath.Join(dir, "m.yaml"), "")
	for directive, want := range map[string]string{
		"":                    "",
		"transfer {\nto *\n}": "",
		"transfer example.org {\nto 127.0.0.2\n}":  "",
		"transfer in-addr.arpa {\nto 127.0.0.2\n}": "",
		"transfer {\nto 127.0.0.2\n}":              "out.test. cluster.local.",
		"transfer out.test {\nto 127.0.0.2\n}":     "out.test.",
	} {
		p := assembled(t, ".:53 {\nbind 127.0.0.1\nkubernetes cluster.local in-addr.arpa {\nmanifests "+dir+"\n}\nk8s_external out.test\n"+directive+"\n}\n")
		var got []string
		for _, r := range p.beside {
			for _, z := range r.(*clusterAnnouncer).zones {
				got = append(got, z.name.String())
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: %q is announced, want %q", directive, got, want)
		}
	}
}

// TestAnnouncer: the serial is announced every second, once the view is synced.
func TestAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		after := func(d time.Duration) bool { return time.Since(began) >= d }
		var got []string
		a := &clusterAnnouncer{
			announce: func(soa wire.RR) { got = append(got, fmt.Sprint(time.Since(began), " ", soa.TTL)) },
			synced:   func() bool { return after(2 * time.Second) },
			zones:    []announcedZone{{soa: func(wire.Name) (wire.RR, bool) { return wire.RR{TTL: 7}, !after(4 * time.Second) }}},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { a.Run(ctx); close(ended) }()
		time.Sleep(6500 * time.Millisecond)
		cancel()
		<-ended
		check.Equal(t, []string{"2s 7", "3s 7"}, got, "it differs")
	})
}
