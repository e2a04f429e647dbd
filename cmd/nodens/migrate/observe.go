package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/config"
)

// observe notes what is different with nodens, and what is odd about the settings.
func (m *migration) observe(c *corefile) {
	m.managed(m.pod.set)
	if slices.ContainsFunc(m.out, func(o object) bool { return o.text("kind") == "ConfigMap" }) {
		m.managed(c.configMap)
	}
	m.company()
	m.resources()
	m.capabilities()
	m.readers()
	m.proxy()
	m.directives(c)
}

// keepers are the labels and annotations of those who put objects back as they have
// them, and what to do about it.
var keepers = []struct{ field, key, value, who, do string }{
	{"labels", "app.kubernetes.io/managed-by", "Helm", "Helm", "its next upgrade merges its chart into it: change the chart's values, or take the release away with --keep-history and its objects kept (annotation helm.sh/resource-policy: keep)"},
	{"labels", "addonmanager.kubernetes.io/mode", "Reconcile", "the addon manager, if the cluster has one", "change its copy of the manifest, or the label to EnsureExists"},
	{"labels", "app.kubernetes.io/managed-by", "kops", "kOps", "set spec.kubeDNS.nodeLocalDNS.enabled to false in the cluster's spec, and apply the manifest under another name"},
	{"annotations", "argocd.argoproj.io/tracking-id", "", "Argo CD", "change what its repository has"},
	{"labels", "kustomize.toolkit.fluxcd.io/name", "", "Flux", "change what its repository has"},
	{"labels", "helm.toolkit.fluxcd.io/name", "", "Flux", "change the values of its HelmRelease"},
}

// managed tells who would put an object back.
func (m *migration) managed(obj object) {
	for _, k := range keepers {
		value := obj.text("metadata", k.field, k.key)
		if value == "" || k.value != "" && value != k.value {
			continue
		}
		m.about(Todo, obj.where()+", "+k.field+" "+k.key, "it is managed by %s: %s", k.who, k.do)
	}
	for _, owner := range obj.subs("metadata", "ownerReferences") {
		m.about(Todo, obj.where()+", ownerReferences", "it belongs to %s %s, which may put it back", owner.text("kind"), owner.text("name"))
	}
}

// company notes containers that are not the agent.
func (m *migration) company() {
	for _, box := range append(m.pod.spec.subs("containers"), m.pod.spec.subs("initContainers")...) {
		if box.text("name") != m.pod.box.text("name") {
			m.note(Differs, "container "+box.text("name"), "it is left as it is. If it reads /etc/Corefile of the agent's container: nodens writes no such file")
		}
	}
}

const (
	// enoughMemory is what nodens' own manifest asks for: twice what an agent has after
	// its start with a view of the cluster. One with a full cache and half of it as a
	// limit would be killed.
	enoughMemory = "64Mi"
	// safeMemory is a limit that leaves the default cache room: with half of it the
	// cache's 32 MiB, garbage until the next collection and the view don't fit.
	safeMemory = "128Mi"
)

// resources looks at what the container may take.
func (m *migration) resources() {
	box := m.pod.box
	if less(box.text("resources", "requests", "memory"), enoughMemory) {
		m.note(Todo, "resources.requests.memory", "%s is less than an agent takes; nodens' own manifest has %s", box.text("resources", "requests", "memory"), enoughMemory)
	}
	limit := box.text("resources", "limits", "memory")
	if less(limit, safeMemory) {
		m.note(Todo, "resources.limits.memory", "%s is little for the default cache of 32Mi and a view of the cluster: %s or more, or a smaller -cache-size", limit, safeMemory)
	}
	if box.at("resources", "limits", "cpu") != nil {
		m.note(Differs, "resources.limits.cpu", "an agent that has used it up waits, and so does every lookup of the node; nodens' own manifest has none")
	}
	if limit == "" || m.Minimal {
		return
	}
	if q, err := resource.ParseQuantity(limit); err == nil {
		// Four fifths: the rest is for what the Go heap doesn't count.
		soft := fmt.Sprintf("%dMiB", q.Value()/5*4>>20)
		if m.environ(object{"name": "GOMEMLIMIT", "value": soft}) {
			m.note(Changed, "env", "GOMEMLIMIT %s, below the limit of %s: garbage is collected before the kernel kills", soft, limit)
		}
	}
}

// less reports whether a quantity is there and less than another.
func less(text, than string) bool {
	q, err := resource.ParseQuantity(text)
	return text != "" && err == nil && q.Cmp(resource.MustParse(than)) < 0
}

// capabilities keeps the one that port 53 takes where all are dropped.
func (m *migration) capabilities() {
	caps := m.pod.box.sub("securityContext", "capabilities")
	all := slices.ContainsFunc(caps.texts("drop"), func(name string) bool { return strings.EqualFold(name, "ALL") })
	if privileged, _ := m.pod.box.at("securityContext", "privileged").(bool); privileged {
		m.note(Differs, "securityContext.privileged", "nodens doesn't need it: NET_ADMIN and NET_BIND_SERVICE do, with NET_RAW where kube-proxy uses legacy iptables")
		return
	}
	if all && !slices.Contains(caps.texts("add"), "NET_BIND_SERVICE") {
		caps["add"] = append(caps.list("add"), "NET_BIND_SERVICE")
		m.note(Changed, "securityContext.capabilities", "NET_BIND_SERVICE is added, for port 53")
	}
}

// readers tells whether the kubelets' pods ask the agent at all.
func (m *migration) readers() {
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
		if len(servers) > 0 && !slices.ContainsFunc(servers, m.listens) {
			m.about(Todo, "the kubelet's clusterDNS", "pods ask %s, and -localip is %v: no pod asks the agent, before as after", strings.Join(servers, ", "), m.flags.Config.LocalIPs)
		}
		return
	}
}

func (m *migration) listens(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && slices.Contains(m.flags.Config.LocalIPs, addr)
}

// proxy notes addresses that kube-proxy has on the nodes already.
func (m *migration) proxy() {
	obj := m.Objects.get("ConfigMap", "kube-system", "kube-proxy")
	var conf object
	if obj == nil || yaml.Unmarshal([]byte(obj.text("data", "config.conf")), &conf) != nil || conf.text("mode") != "ipvs" {
		return
	}
	for _, service := range m.Objects.list {
		if addr := service.text("spec", "clusterIP"); service.text("kind") == "Service" && m.listens(addr) {
			m.note(Todo, "args", "-localip has %s, the ClusterIP of %s: with kube-proxy in IPVS mode that is an address of the node already, and nodens ends with an error that says so; take it out, and set the kubelet's clusterDNS to the link-local address",
				addr, service.where())
		}
	}
}

// directives notes what nodens makes of the Corefile in another way.
func (m *migration) directives(c *corefile) {
	where := c.configMap.where() + ", " + c.key
	for _, text := range c.cfg.Warnings {
		m.about(Differs, where, "%s", strings.TrimPrefix(c.kept.Replace(text), where+":"))
	}
	for _, b := range c.cfg.Blocks {
		if b.File == c.path {
			m.block(where, b)
		}
	}
}

// block notes what nodens makes of a block in another way. where is the Corefile.
func (m *migration) block(where string, b *config.Block) {
	at := fmt.Sprintf("%s, line %d", where, b.Line)
	if b.Forward != nil && len(b.Forward.To) > 1 && b.Forward.Policy == config.PolicyFastest {
		m.about(Differs, at, "forward without `policy` asks the fastest of its servers, and another one when that is late; CoreDNS takes one at random. `policy random` is its way")
	}
	if b.Log != nil && !strings.Contains(strings.Join(m.pod.box.texts("args"), " "), "-log-format") {
		m.about(Differs, at, "the lines of `log` have fields with names; -log-format coredns writes them as CoreDNS does")
	}
	if b.Cache != nil && b.Kubernetes != nil {
		m.about(Differs, where, "names from `kubernetes` are made anew for each query and not kept in the cache, so what is made or deleted is seen at once")
	}
}
