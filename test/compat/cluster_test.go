package compat

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// objects are what the API server has, by the plural in its paths: one line of JSON each,
// without kind and version.
var objects = map[string][]string{
	"namespaces": {`{"metadata":{"name":"shop"}}`, `{"metadata":{"name":"empty"}}`},
	"services": {
		`{"metadata":{"namespace":"shop","name":"web"},"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.9","clusterIPs":["10.96.0.9","fd00:96::9"],
			"externalIPs":["192.0.2.9"],"ports":[{"name":"http","protocol":"TCP","port":80},{"name":"dns","protocol":"UDP","port":53}]},
			"status":{"loadBalancer":{"ingress":[{"ip":"2001:db8::9"}]}}}`,
		`{"metadata":{"namespace":"shop","name":"db"},"spec":{"clusterIP":"None","clusterIPs":["None"],"selector":{"app":"db"},"trafficDistribution":"PreferClose",
			"ports":[{"name":"pg","port":5432}]}}`,
		`{"metadata":{"namespace":"shop","name":"alias"},"spec":{"type":"ExternalName","externalName":"Web.shop.svc.cluster.local"}}`,
		`{"metadata":{"namespace":"shop","name":"named"},"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"],"ports":[{"name":"http","port":80}]},
			"status":{"loadBalancer":{"ingress":[{"hostname":"lb.example.net"}]}}}`,
	},
	"endpointslices": {
		`{"metadata":{"namespace":"shop","name":"db-1","labels":{"kubernetes.io/service-name":"db","service.kubernetes.io/headless":""}},"addressType":"IPv4",
			"ports":[{"name":"pg","protocol":"TCP","port":5432}],
			"endpoints":[{"addresses":["10.1.0.1"],"hostname":"db-0","zone":"z1","nodeName":"n1"},{"addresses":["10.1.0.2"],"zone":"z2.example"}]}`,
		`{"metadata":{"namespace":"shop","name":"db-2","labels":{"kubernetes.io/service-name":"db","service.kubernetes.io/headless":""}},"addressType":"IPv6",
			"ports":[{"name":"pg","protocol":"TCP","port":5432}],"endpoints":[{"addresses":["fd00:1::1"],"hostname":"db-0","zone":"z1"}]}`,
		`{"metadata":{"namespace":"shop","name":"web-1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
			"ports":[{"name":"http","protocol":"TCP","port":8080}],"endpoints":[{"addresses":["10.1.0.3"]}]}`,
		`{"metadata":{"namespace":"shop","name":"imported","labels":{"multicluster.kubernetes.io/service-name":"db","multicluster.kubernetes.io/source-cluster":"East"}},
			"addressType":"IPv4","ports":[{"name":"pg","protocol":"TCP","port":5432}],"endpoints":[{"addresses":["10.9.0.1"],"hostname":"db-0"}]}`,
	},
	"pods": {
		`{"metadata":{"namespace":"shop","name":"web-0"},"spec":{"nodeName":"n1"},"status":{"phase":"Running","podIP":"10.1.0.3","podIPs":[{"ip":"10.1.0.3"},{"ip":"fd00:1::3"}]}}`,
	},
	"serviceimports": {
		`{"metadata":{"namespace":"shop","name":"db"},"spec":{"type":"Headless","ports":[{"name":"pg","port":5432}]}}`,
		`{"metadata":{"namespace":"shop","name":"web"},"spec":{"type":"ClusterSetIP","ips":["10.240.0.1","fd00:240::1"],"ports":[{"name":"http","protocol":"TCP","port":80}]}}`,
	},
}

// question is one for a name that has records of that type, or, if none, has not.
type question struct {
	name  string
	qtype uint16
	none  bool
}

// fits reports whether that is what answer says.
func (q question) fits(answer string) bool {
	has := strings.Contains(answer, "\n"+q.name+"\t0\tIN\t"+dns.TypeToString[q.qtype]+"\t") || strings.Contains(answer, "\n"+q.name+"\t0\tIN\tCNAME\t")
	return has != q.none && !strings.HasPrefix(answer, "SERVFAIL")
}

func (q question) String() string { return q.name + " " + dns.TypeToString[q.qtype] }

// questions are for a name of each kind of record that is saved.
var questions = []question{
	{"web.shop.svc.cluster.local.", dns.TypeA, false},
	{"web.shop.svc.cluster.local.", dns.TypeAAAA, false},
	{"web.shop.svc.cluster.local.", dns.TypeSRV, false},
	{"_dns._udp.web.shop.svc.cluster.local.", dns.TypeSRV, false},
	{"10-1-0-3.web.shop.svc.cluster.local.", dns.TypeA, false},
	{"db.shop.svc.cluster.local.", dns.TypeA, false},
	{"db.shop.svc.cluster.local.", dns.TypeAAAA, false},
	{"db-0.db.shop.svc.cluster.local.", dns.TypeA, false},
	{"_pg._tcp.db.shop.svc.cluster.local.", dns.TypeSRV, false},
	{"z2.example.pin._zone.db.shop.svc.cluster.local.", dns.TypeA, false},
	{"alias.shop.svc.cluster.local.", dns.TypeA, false},
	{"10-1-0-3.shop.pod.cluster.local.", dns.TypeA, false},
	{"empty.svc.cluster.local.", dns.TypeA, true},
	{"gone.shop.svc.cluster.local.", dns.TypeA, true},
	{"9.0.96.10.in-addr.arpa.", dns.TypePTR, false},
	{"1.0.1.10.in-addr.arpa.", dns.TypePTR, false},
	{"web.shop.svc.clusterset.local.", dns.TypeA, false},
	{"db-0.east.db.shop.svc.clusterset.local.", dns.TypeA, false},
	{"web.shop.example.org.", dns.TypeA, false},
	{"web.shop.example.org.", dns.TypeAAAA, false},
	{"named.shop.example.org.", dns.TypeCNAME, false},
}

// versions are the kind and the group and version of objects.
var versions = map[string][2]string{
	"namespaces": {"Namespace", "v1"}, "services": {"Service", "v1"}, "pods": {"Pod", "v1"},
	"endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"}, "serviceimports": {"ServiceImport", "multicluster.x-k8s.io/v1alpha1"},
}

// newCluster is as much of an API server as an agent needs to see objects, which don't
// change: lists, streamed ones too, and watches in which nothing happens.
func newCluster(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(s.Close)
	// A watch ends with its client, which ends first.
	return s
}

func serve(w http.ResponseWriter, req *http.Request) {
	plural, query := path.Base(req.URL.Path), req.URL.Query()
	version := versions[plural]
	if version[0] == "" {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	var selected []map[string]any
	for i, text := range objects[plural] {
		if selects(text, query.Get("labelSelector")) {
			selected = append(selected, object(version, i, text))
		}
	}
	encoder := json.NewEncoder(w)
	if query.Get("watch") == "" {
		_ = encoder.Encode(map[string]any{ // who has gone needs none
			"kind": version[0] + "List", "apiVersion": version[1], "metadata": map[string]string{"resourceVersion": "1"}, "items": selected,
		})
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range selected {
			_ = encoder.Encode(map[string]any{"type": "ADDED", "object": o})
		}
		end := object(version, len(objects[plural]), `{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}`)
		_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": end})
	}
	_ = http.NewResponseController(w).Flush()
	<-req.Context().Done()
}

// selects knows selectors that ask for a label to be there.
func selects(object, selector string) bool {
	return selector == "" || strings.Contains(object, fmt.Sprintf("%q:", selector))
}

// object returns an object of the list with the number i.
func object(version [2]string, i int, text string) (o map[string]any) {
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	o["kind"], o["apiVersion"] = version[0], version[1]
	meta, _ := o["metadata"].(map[string]any)
	meta["resourceVersion"] = fmt.Sprint(i + 1)
	return o
}
