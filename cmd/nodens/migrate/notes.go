package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// addNotes notes what is different with nodens, and unusual settings.
func (m *migration) addNotes(c *corefile) {
	m.noteManagers(m.pod.daemonSet)
	if slices.ContainsFunc(m.out, func(o object) bool { return o.text("kind") == "ConfigMap" }) {
		m.noteManagers(c.configMap)
	}
	m.otherContainers()
	m.checkResources()
	m.checkCapabilities()
	m.checkClusterDNS()
	m.checkKubeProxy()
	m.noteCorefile(c)
}

// managers are the labels and annotations of tools that revert changes to their objects,
// and what to do about it.
var managers = []struct{ field, key, value, who, do string }{
	{"annotations", "meta.helm.sh/release-name", "rke2-coredns", rke2, "set nodelocal.enabled to false in its HelmChartConfig, and apply the manifest under another name; the release has the cluster's CoreDNS, too"},
	{"labels", "app.kubernetes.io/managed-by", "Helm", "Helm", "its next upgrade reverts the changes: change the chart's values, or uninstall the release with --keep-history and keep its objects (annotation helm.sh/resource-policy: keep)"},
	{"labels", "addonmanager.kubernetes.io/mode", "Reconcile", "the addon manager, if the cluster has one", "change its copy of the manifest, or set the label to EnsureExists"},
	{"labels", "app.kubernetes.io/managed-by", "kops", "kOps", "set spec.kubeDNS.nodeLocalDNS.enabled to false in the cluster's spec, and apply the manifest under another name"},
	{"annotations", "argocd.argoproj.io/tracking-id", "", "Argo CD", "change the manifest in its repository"},
	{"labels", "kustomize.toolkit.fluxcd.io/name", "", "Flux", "change the manifest in its repository"},
	{"labels", "helm.toolkit.fluxcd.io/name", "", "Flux", "change the values of its HelmRelease"},
	{"labels", "resources.gardener.cloud/managed-by", "gardener", "Gardener", "set spec.systemComponents.nodeLocalDNS.enabled to false in the Shoot, and apply the manifest under another name"},
	{"labels", "heritage", "deckhouse", "Deckhouse", "disable its module node-local-dns, and apply the manifest under another name"},
	{"annotations", "objectset.rio.cattle.io/owner-name", "", "RKE2, k3s or Fleet", "switch NodeLocal DNSCache off in its HelmChartConfig or bundle, and apply the manifest under another name"},
	{"labels", "kapp.k14s.io/app", "", "kapp", "change the manifest in its repository"},
}

// rke2 is the manager of Helm's release of the same objects.
const rke2 = "RKE2's chart rke2-coredns"

// noteManagers notes the tools that may revert the changes to obj.
func (m *migration) noteManagers(obj object) {
	for _, k := range managers {
		value := obj.text("metadata", k.field, k.key)
		if value == "" || k.value != "" && value != k.value {
			continue
		}
		m.noteFor(Todo, obj.describe()+", "+k.field+" "+k.key, "it is managed by %s: %s", k.who, k.do)
		if k.who == rke2 {
			break // uninstalling the release would be wrong
		}
	}
	for _, owner := range obj.children("metadata", "ownerReferences") {
		m.noteFor(Todo, obj.describe()+", ownerReferences", "%s %s owns it and may revert the changes", owner.text("kind"), owner.text("name"))
	}
}

// otherContainers notes the containers that don't run the agent.
func (m *migration) otherContainers() {
	if m.HelmValues {
		return // noteNoValues names them
	}
	for _, box := range append(m.pod.podSpec.children("containers"), m.pod.podSpec.children("initContainers")...) {
		if box.text("name") != m.pod.container.text("name") {
			m.note(Differs, "container "+box.text("name"), "unchanged. If it reads /etc/Corefile of the agent's container: nodens writes no such file")
		}
	}
}

const (
	// recommendedRequest is the memory request of nodens' own manifest, twice the use after a
	// start with a view of the cluster.
	recommendedRequest = "64Mi"
	// recommendedLimit is the least memory limit for the default cache of 32 MiB, its garbage
	// and a view of the cluster.
	recommendedLimit = "128Mi"
)

// checkResources checks the container's requests and limits.
func (m *migration) checkResources() {
	box := m.pod.container
	if less(box.text("resources", "requests", "memory"), recommendedRequest) {
		m.note(Todo, "resources.requests.memory", "%s is less than an agent needs; nodens' own manifest has %s", box.text("resources", "requests", "memory"), recommendedRequest)
	}
	limit := box.text("resources", "limits", "memory")
	if less(limit, recommendedLimit) {
		m.note(Todo, "resources.limits.memory", "%s is too little for the default cache of 32Mi and a view of the cluster: set %s or more, or a smaller --cache-size", limit, recommendedLimit)
	}
	if box.value("resources", "limits", "cpu") != nil {
		m.note(Differs, "resources.limits.cpu", "an agent that reaches it is throttled, and with it all lookups of the node; nodens' own manifest has none")
	}
	if limit == "" || m.Minimal {
		return
	}
	if q, err := resource.ParseQuantity(limit); err == nil {
		// A fifth is for memory that the Go runtime doesn't count.
		soft := fmt.Sprintf("%dMiB", q.Value()/5*4>>20)
		if m.addEnv(object{"name": "GOMEMLIMIT", "value": soft}) {
			m.note(Changed, "env", "GOMEMLIMIT %s, below the limit of %s: garbage collection starts before the kernel kills the agent", soft, limit)
		}
	}
}

// less reports whether the quantity text is set and less than the quantity than.
func less(text, than string) bool {
	q, err := resource.ParseQuantity(text)
	return text != "" && err == nil && q.Cmp(resource.MustParse(than)) < 0
}

// checkCapabilities adds NET_BIND_SERVICE, for port 53, if all capabilities are dropped.
func (m *migration) checkCapabilities() {
	caps := m.pod.container.child("securityContext", "capabilities")
	all := slices.ContainsFunc(caps.texts("drop"), func(name string) bool { return strings.EqualFold(name, "ALL") })
	if privileged, _ := m.pod.container.value("securityContext", "privileged").(bool); privileged {
		m.note(Differs, "securityContext.privileged", "nodens doesn't need it: NET_ADMIN and NET_BIND_SERVICE are sufficient, with NET_RAW if kube-proxy uses legacy iptables")
		return
	}
	if all && !slices.Contains(caps.texts("add"), "NET_BIND_SERVICE") {
		caps["add"] = append(caps.list("add"), "NET_BIND_SERVICE")
		m.note(Changed, "securityContext.capabilities", "NET_BIND_SERVICE added, for port 53")
	}
}

// checkClusterDNS notes if the kubelets' clusterDNS is not the agent's address.
func (m *migration) checkClusterDNS() {
	for _, obj := range m.Objects.list {
		conf := obj
		switch {
		case obj.text("kind") == "ConfigMap" && obj.name() == "kubelet-config":
			conf = nil
			if yaml.Unmarshal([]byte(obj.text("data", "kubelet")), &conf) != nil {
				continue
			}
		case obj.text("kind") != "KubeletConfiguration":
			continue
		}
		servers := conf.texts("clusterDNS")
		if len(servers) > 0 && !slices.ContainsFunc(servers, m.isLocalIP) {
			m.noteFor(Todo, "the kubelet's clusterDNS", "pods query %s, but --localip is %v: no pod queries the agent, now or after the migration", strings.Join(servers, ", "), m.flags.Config.LocalIPs)
		}
		return
	}
}

func (m *migration) isLocalIP(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && slices.Contains(m.flags.Config.LocalIPs, addr)
}

// checkKubeProxy notes addresses that kube-proxy in IPVS mode assigns to the nodes.
func (m *migration) checkKubeProxy() {
	obj := m.Objects.get("ConfigMap", "kube-system", "kube-proxy")
	var conf object
	if obj == nil || yaml.Unmarshal([]byte(obj.text("data", "config.conf")), &conf) != nil || conf.text("mode") != "ipvs" {
		return
	}
	for _, service := range m.Objects.list {
		if addr := service.text("spec", "clusterIP"); service.text("kind") == "Service" && m.isLocalIP(addr) {
			m.note(Todo, "args", "--localip has %s, the ClusterIP of %s: with kube-proxy in IPVS mode the node already has that address, and nodens refuses to start; remove it, and set the kubelet's clusterDNS to the link-local address",
				addr, service.describe())
		}
	}
}

// noteCorefile notes what nodens treats differently in the Corefile.
func (m *migration) noteCorefile(c *corefile) {
	where := c.configMap.describe() + ", " + c.key
	for _, text := range c.cfg.Warnings {
		m.noteFor(Differs, where, "%s", strings.TrimPrefix(c.restorePaths.Replace(text), where+":"))
	}
	for _, file := range c.cfg.NotRead {
		if name := c.restorePaths.Replace(file); name != "/etc/resolv.conf" && name == file {
			m.noteFor(Todo, where, "%s is not checked: no ConfigMap among the objects has it. The agent's container needs it as the old one did", name)
		}
	}
	for _, d := range c.cfg.Differences() {
		m.noteFor(Differs, strings.TrimSuffix(where+", "+d.At(), ", "), "%s", d.Text)
	}
	if _, ok := argument(m.pod.container.texts("args"), "log-format"); ok {
		return
	}
	for _, b := range c.cfg.Blocks {
		if b.File == c.path && b.Log != nil {
			m.noteFor(Differs, fmt.Sprintf("%s, line %d", where, b.Line), "`log` writes named fields; --log-format coredns writes CoreDNS's format")
		}
	}
}
