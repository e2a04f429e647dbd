// Internal: tests nodeLocation.

package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/poll"
	"github.com/nodens-dns/nodens/test/rig/fakeapi"
)

// nodeServer is a fakeapi.Server that also has Nodes.
type nodeServer struct {
	*fakeapi.Server
	url   string
	asked atomic.Int32
	// node answers requests for a Node.
	node atomic.Pointer[http.HandlerFunc]
}

func newNodeServer(t *testing.T, node http.HandlerFunc) *nodeServer {
	s := &nodeServer{Server: fakeapi.Start(t)}
	s.node.Store(&node)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/api/v1/nodes/") {
			s.asked.Add(1)
			(*s.node.Load())(w, req)
			return
		}
		s.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		s.Disconnect()
		front.CloseClientConnections()
		front.Close()
	})
	s.url = front.URL
	return s
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	fakeapi.WriteStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
}

// inZ1 says that the node is in the zone z1.
func inZ1(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"n1","labels":{%q:"z1"}}}`, zoneLabelKey)
}

// spreadOut is a slice of db with one endpoint in z1, the last by address, and four in z2.
func spreadOut(ns string) *discoveryv1.EndpointSlice {
	es := makeSlice(ns, "db", "db-"+ns, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.9")
	for i := range es.Endpoints {
		zone := "z2"
		if i == 4 {
			zone = "z1"
		}
		es.Endpoints[i].Zone = &zone
	}
	return es
}

// firsts returns the addresses that come first in several answers for name.
func firsts(t *testing.T, z *Zone, name string) map[string]bool {
	seen := map[string]bool{}
	for range 40 {
		m, _, _ := ask(t, z, name, dns.TypeA)
		if len(m.Answer) != 5 {
			return nil
		}
		a, _ := m.Answer[0].(*dns.A)
		seen[a.A.String()] = true
	}
	return seen
}

// An API server that doesn't return the Node delays nothing at either scope: headless names
// are answered, the log has one line about it, and when the server returns the Node the
// order is right and each source has listed once more.
func TestNodeZoneUnavailable(t *testing.T) {
	for name, scope := range map[string]config.Scope{"node": config.ScopeNode, "cluster": config.ScopeCluster} {
		t.Run(name, func(t *testing.T) {
			s := newNodeServer(t, unavailable)
			for _, ns := range []string{"a", "b"} {
				svc := makeService(ns, "db", "None")
				svc.Spec.Selector = map[string]string{"app": "db"}
				s.Put(svc)
				es := spreadOut(ns)
				es.Labels["service.kubernetes.io/headless"] = ""
				s.Put(es)
			}
			s.Put(makePod("a", "p", "10.1.0.1"))
			v, z, log := openAndRunWith(t, s.url, Options{Node: "n1"}, func(c *config.Kubernetes) { c.Scope = scope })
			poll.Until(t, "the sync", v.Synced)
			for _, ns := range []string{"a", "b"} {
				poll.Until(t, "names of "+ns, func() bool { return len(firsts(t, z, "db."+ns+".svc.cluster.local")) > 1 })
			}
			poll.Until(t, "five questions for the node", func() bool { return s.asked.Load() >= 5 })
			if n := strings.Count(log.String(), "topology zone"); n != 1 || !strings.Contains(log.String(), "not found yet") {
				t.Errorf("%d lines about the zone, want one:\n%s", n, log)
			}
			before := s.Requests("/endpointslices?", "watch=true")
			node := http.HandlerFunc(inZ1)
			s.node.Store(&node)
			for _, ns := range []string{"a", "b"} {
				poll.Until(t, "the order of "+ns, func() bool {
					f := firsts(t, z, "db."+ns+".svc.cluster.local")
					return len(f) == 1 && f["10.1.0.9"]
				})
			}
			again := s.Requests("/endpointslices?", "watch=true") - before
			if want := max(v.Stats().Sources, len(wideSources)); again > want {
				t.Errorf("%d more lists of slices, want at most %d, one for each source", again, want)
			}
			poll.Until(t, "the line for the end", func() bool { return strings.Contains(log.String(), "node found") })
			if n := strings.Count(log.String(), "topology zone"); n != 2 {
				t.Errorf("%d lines about the zone, want one more for the end:\n%s", n, log)
			}
			asked := s.asked.Load()
			s.Put(makeService("a", "last", "10.0.0.1"))
			poll.Until(t, "a later change", func() bool { return resolves(t, z, "last.a.svc.cluster.local", "10.0.0.1") })
			if n := s.asked.Load(); n != asked {
				t.Errorf("the node is asked for %d times more, though it is known", n-asked)
			}
		})
	}
}

// A server that never replies for the Node delays nothing.
func TestNodeZoneTimeout(t *testing.T) {
	s := newNodeServer(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	s.Put(makeService("a", "db", "None"))
	s.Put(spreadOut("a"))
	s.Put(makePod("a", "p", "10.1.0.1"))
	_, z, _ := openAndRunWith(t, s.url, Options{Node: "n1"}, nil)
	poll.Until(t, "the names", func() bool { return len(firsts(t, z, "db.a.svc.cluster.local")) > 1 })
}

// The wait ends with the first reply, at its limit, or with the context. reflect runs once
// more if the zone becomes known while it runs, otherwise once.
func TestRunWithZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newNodeLocation()
		start := time.Now()
		l.waitFirstReply(ctx, time.Second)
		if took := time.Since(start); took != time.Second {
			t.Errorf("without an answer it takes %v", took)
		}
		runs := 0
		follow := func(ctx context.Context) { runs++; <-ctx.Done() }
		go l.runWithZone(ctx, time.Second, follow)
		synctest.Wait()
		close(l.firstReply)
		start = time.Now()
		l.waitFirstReply(ctx, time.Second)
		if took := time.Since(start); took != 0 || runs != 1 {
			t.Errorf("after an answer it takes %v, %d runs", took, runs)
		}
		l.setZoneKnown()
		time.Sleep(time.Second)
		synctest.Wait()
		if runs != 2 {
			t.Errorf("%d runs when the zone is known, want one more", runs)
		}
		go l.runWithZone(ctx, time.Second, follow)
		synctest.Wait()
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		if runs != 3 {
			t.Errorf("%d runs, want one more of what was begun with the zone known", runs)
		}
		l = newNodeLocation()
		start = time.Now()
		l.waitFirstReply(ctx, time.Second)
		l.runWithZone(ctx, time.Second, follow)
		if took := time.Since(start); took != 0 || runs != 4 {
			t.Errorf("after the end it takes %v, %d runs", took, runs)
		}
	})
}
