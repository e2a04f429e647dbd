// Internal: uses the fixture of internal tests.

package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// podCIDRServer returns a server whose Node has two podCIDRs, after a failure.
func podCIDRServer(t *testing.T) *nodeServer {
	var s *nodeServer
	s = newNodeServer(t, func(w http.ResponseWriter, req *http.Request) {
		if s.asked.Load() == 1 {
			unavailable(w, req)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24","none","2001:db8::/64"]}}`)
	})
	return s
}

// listenAt returns options with an address at which clients ask; the zone is known, so that only the
// podCIDRs need the Node.
func listenAt(addr string, observe func([]netip.Prefix)) Options {
	return Options{Node: "n1", Zone: "z1", ServerAddrs: []netip.Addr{netip.MustParseAddr(addr)}, ObservePodCIDRs: observe}
}

// The podCIDRs of the Node are reported until the view ends; a server that fails is asked again.
func TestPodCIDRs(t *testing.T) {
	s := podCIDRServer(t)
	cfg := testConfig(t)
	cfg.Endpoint = s.url
	seen := make(chan []netip.Prefix, 3)
	v, err := Open(cfg, listenAt("2001:db8:1::1", func(list []netip.Prefix) { seen <- list }))
	noError(t, err)
	shortenDelays(v)
	ctx, cancel := context.WithCancel(t.Context())
	go v.Run(ctx)
	if got := fmt.Sprint(<-seen); got != "[10.1.0.0/24 2001:db8::/64]" {
		t.Errorf("reported %s", got)
	}
	cancel()
	if got := <-seen; got != nil {
		t.Errorf("after the end: %v", got)
	}
	count(t, s.asked.Load(), 2, "requests for the Node")
}

// The Node is not asked for where no client has an IPv6 address.
func TestPodCIDRsNotNeeded(t *testing.T) {
	s := podCIDRServer(t)
	for _, addr := range []string{"192.0.2.1", "::ffff:192.0.2.1", "::1"} {
		v, _, _ := openAndRunWith(t, s.url, listenAt(addr, func([]netip.Prefix) { t.Error("reported") }), nil)
		if v.podCIDRs != nil {
			t.Errorf("%s: they are asked for", addr)
		}
		poll.Until(t, "the sync", v.Synced)
	}
	count(t, s.asked.Load(), 0, "requests for the Node")
}

// An agent that may not get its Node says so once.
func TestPodCIDRsForbidden(t *testing.T) {
	s := newNodeServer(t, func(w http.ResponseWriter, _ *http.Request) {
		fakeapi.WriteStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	})
	_, _, log := openAndRunWith(t, s.url, listenAt("2001:db8:1::1", func([]netip.Prefix) { t.Error("reported") }),
		func(c *config.Kubernetes) { c.NoEndpoints = true })
	poll.Until(t, "the line", func() bool { return strings.Contains(log.String(), "podCIDRs of the node unknown") })
	count(t, s.asked.Load(), 1, "requests for the Node")
}
