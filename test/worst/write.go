package worst

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Write writes the files that [Corefile] names to dir.
func Write(dir string) error {
	for name, text := range map[string]string{
		"cluster.yaml": cluster(), "acl": accessList(), "rewrite": rewriteRules(), "hosts": hostsTable(), "resolv.conf": searchPath(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("writing the files of the cases: %w", err)
		}
	}
	return nil
}

// accessList blocks networks that no client is in.
func accessList() string {
	var b strings.Builder
	for i := range networks {
		fmt.Fprintf(&b, "block net 10.%d.%d.0/24\n", i/250, i%250)
	}
	return b.String()
}

func rewriteRules() string {
	var b strings.Builder
	for i := range rules {
		fmt.Fprintf(&b, "rewrite name regex (.*)-%04d\\.%s www.%s\n", i, strings.ReplaceAll(changed, ".", `\.`), changed)
	}
	return b.String()
}

func hostsTable() string {
	var b strings.Builder
	for i := range addresses {
		fmt.Fprintf(&b, "192.0.%d.%d www.%s\n", 2+i/250, 1+i%250, listed)
	}
	return b.String()
}

func searchPath() string {
	list := make([]string, domains)
	for i := range list {
		list[i] = domain(i)
	}
	return "search " + strings.Join(list, " ") + "\n"
}

// objects are manifests under construction.
type objects struct{ bytes.Buffer }

func (o *objects) add(format string, args ...any) {
	fmt.Fprintf(o, "---\n"+format+"\n", args...)
}

// headless adds a headless Service of the tenant's.
func (o *objects) headless(name, ports string) {
	o.add("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: tenant}\nspec: {clusterIP: None, selector: {app: a}, ports: [%s]}", name, ports)
}

// slice adds an EndpointSlice of a Service of the tenant's, of n addresses from the
// first-th on in 10.second.0.0/16.
func (o *objects) slice(service string, number int, ports string, second, first, n int) {
	list := make([]string, n)
	for i := range list {
		at := first + i
		list[i] = fmt.Sprintf("{addresses: [10.%d.%d.%d], conditions: {ready: true}}", second, at/250, 1+at%250)
	}
	o.add("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s-%d, namespace: tenant, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nendpoints: [%s]\nports: [%s]",
		service, number, service, strings.Join(list, ", "), ports)
}

// portList is n named ports.
func portList(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("{name: p%d, port: %d, protocol: TCP}", i, i+1)
	}
	return strings.Join(list, ", ")
}

// cluster is the manifests of what tenants make.
func cluster() string {
	o := new(objects)
	for _, namespace := range []string{"default", "tenant"} {
		o.add("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}", namespace)
	}
	o.add("apiVersion: v1\nkind: Service\nmetadata: {name: victim, namespace: default}\n" +
		"spec: {clusterIP: 10.96.1.1, clusterIPs: [10.96.1.1], ports: [{port: 80, protocol: TCP}]}")
	for i := range owners {
		name := fmt.Sprintf("s%04d", i)
		o.headless(name, portList(1))
		o.add("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
			"metadata: {name: %s-x, namespace: tenant, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\n"+
			"endpoints: [{addresses: [10.1.2.3], conditions: {ready: true}}]\nports: [%s]", name, name, portList(1))
	}
	o.headless("ports", portList(ports))
	o.slice("ports", 0, portList(ports), 2, 0, fewPorts)
	o.headless("members", portList(fewPorts))
	for i := range endpoints / perSlice {
		o.slice("members", i, portList(fewPorts), 3, i*perSlice, perSlice)
	}
	o.headless("scattered", portList(1))
	for i := range slices {
		o.slice("scattered", i, portList(1), 4, i, 1)
	}
	for i := range chain {
		target := fmt.Sprintf("alias-%02d.tenant.svc.cluster.local", i+1)
		if i == chain-1 {
			target = "victim.default.svc.cluster.local"
		}
		o.add("apiVersion: v1\nkind: Service\nmetadata: {name: alias-%02d, namespace: tenant}\nspec: {type: ExternalName, externalName: %s}", i, target)
	}
	outside := make([]string, externalIPs)
	for i := range outside {
		outside[i] = fmt.Sprintf("198.51.%d.%d", i/250, 1+i%250)
	}
	o.add("apiVersion: v1\nkind: Service\nmetadata: {name: outside, namespace: tenant}\n"+
		"spec: {clusterIP: 10.96.1.2, clusterIPs: [10.96.1.2], externalIPs: [%s], ports: [{port: 80, protocol: TCP}]}", strings.Join(outside, ", "))
	long := make([]string, longList)
	for i := range long {
		long[i] = fmt.Sprintf("11.%d.%d.1", i/250, i%250)
	}
	o.add("apiVersion: v1\nkind: Service\nmetadata: {name: lists, namespace: tenant}\n"+
		"spec: {clusterIP: 10.96.1.3, clusterIPs: [10.96.1.3], externalIPs: [%s], ports: [%s]}", strings.Join(long, ", "), portList(longList))
	o.headless("crowded", portList(1))
	o.crowdedSlice("crowded")
	return o.String()
}

// crowdedSlice adds an EndpointSlice of a Service of the tenant's whose endpoints have many addresses.
func (o *objects) crowdedSlice(service string) {
	list := make([]string, crowded)
	for i := range list {
		addrs := make([]string, perEndpoint)
		for j := range addrs {
			addrs[j] = fmt.Sprintf("12.%d.%d.%d", i/250, i%250, 1+j)
		}
		list[i] = fmt.Sprintf("{addresses: [%s]}", strings.Join(addrs, ", "))
	}
	o.add("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s-0, namespace: tenant, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nendpoints: [%s]\nports: [%s]",
		service, service, strings.Join(list, ", "), portList(1))
}
