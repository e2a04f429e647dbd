// Internal: uses the fixtures of internal tests.

package kubernetes

import (
	"strings"
	"testing"
)

// TestFromSearchPath: names that nothing in the cluster could have, and missing names of what is there.
func TestFromSearchPath(t *testing.T) {
	cfg := testConfig(t)
	cfg.Zonal = true
	z := NewZone(openPlaced(t, cfg, zonalObjects), cfg)
	for made, list := range map[bool]string{
		true: `www.example.com.default.svc example.com.default.svc db.hidden.default.svc
			www.example.com.svc example.com.svc com.svc www.example.com nosuch
			a.b.c.d.e.f.default.svc _a.com.default.svc _http.tcp.web.default.svc http._tcp.web.default.svc _a._tcp.com.default.svc
			10-0-0-1.com.pod www.example.com.pod www.10-0-0-1.default.pod www.example.com.default.pod com.pod
			east.pin._zone.nosuch.default.svc east.pin._area.db.default.svc web.default.svc.cluster.local`,
		false: `nosuch.default.svc db-7.db.default.svc www.web.default.svc _udp.web.default.svc _http._tcp.web.default.svc
			idle.default.svc nosuch.hidden.svc 10-0-0-1.default.pod
			west._zone.db.default.svc west.pin._zone.db.default.svc corp.example.com.pin._zone.db.default.svc`,
	} {
		for _, name := range strings.Fields(list) {
			if got := z.FromSearchPath([]byte(names(t, name+".cluster.local")[0])); got != made {
				t.Errorf("%s: %t", name, got)
			}
		}
	}
	for _, name := range names(t, "cluster.local", "www.example.com", ".", "9.9.9.10.in-addr.arpa") {
		if z.FromSearchPath([]byte(name)) {
			t.Errorf("%s: true", name)
		}
	}
	long := names(t, "a.b.default.svc.cluster.local")[0]
	if n := testing.AllocsPerRun(10, func() { z.FromSearchPath([]byte(long)) }); n > 1 { // the conversion
		t.Errorf("%v allocations", n)
	}
}
