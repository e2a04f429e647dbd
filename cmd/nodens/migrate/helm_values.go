package migrate

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/config"
)

// The ports of nodens' chart for health and readiness.
const (
	healthPort = 8080
	readyPort  = 8181
)

// helmValues returns the values of nodens' chart for the pods and the Corefile of this migration. What the chart has by
// itself, such as the volume for hand-overs, and what it has no value for is left out.
func (m *migration) helmValues(c *corefile) ([]byte, error) {
	if !m.HelmValues {
		return nil, nil
	}
	settings := map[string]any{"customConfig": m.withReady(c)}
	values := object{"config": settings}
	m.addAddresses(settings)
	for flag, key := range chartTexts {
		if value := m.argument(flag); value != "" {
			settings[key] = value
		}
	}
	addPorts(c.cfg, settings)
	if !m.hostNetwork() {
		values["cilium"] = map[string]any{"localRedirect": true}
		m.note(Todo, "hostNetwork", "not true, so the values have cilium.localRedirect: the chart makes a CiliumLocalRedirectPolicy for the Service kube-dns, and has no other mode with the network of a pod")
	}
	if m.Image != "" {
		values["image"] = imageValues(m.Image)
	}
	m.addFromPod(values)
	m.addVolumes(c, values)
	m.addArgs(values, settings)
	m.notes = slices.DeleteFunc(m.notes, func(n Note) bool { return n.Kind == Changed && strings.HasPrefix(n.Where, "DaemonSet") })
	m.note(Todo, "the chart", "replace NodeLocal DNSCache by it as docs/how-to/install.md#install-with-helm says")
	m.noteNoValues(c)
	return yaml.Marshal(values)
}

// addFromPod adds fields of the pod, its labels and annotations, and the resources and variables of the container.
func (m *migration) addFromPod(values object) {
	for _, key := range []string{"nodeSelector", "affinity", "tolerations", "priorityClassName", "imagePullSecrets", "initContainers"} {
		if value := m.pod.podSpec[key]; value != nil {
			values[key] = value
		}
	}
	if value := m.pod.container["resources"]; value != nil {
		values["resources"] = value
	}
	if kept := keptSecurityContext(m.pod.container.child("securityContext")); len(kept) > 0 {
		values["securityContext"] = kept
	}
	for _, key := range []string{"labels", "annotations"} {
		more := m.pod.daemonSet.child("spec", "template", "metadata", key).clone()
		for _, own := range []string{"k8s-app", "prometheus.io/scrape", "prometheus.io/port"} {
			delete(more, own)
		}
		if len(more) > 0 {
			values["pod"+strings.ToUpper(key[:1])+key[1:]] = more
		}
	}
	m.addVariables(values)
}

// addVariables adds the variables of the container that the chart does not have itself.
func (m *migration) addVariables(values object) {
	var env []any
	for _, e := range m.pod.container.children("env") {
		if !slices.Contains(chartEnv, e.text("name")) {
			env = append(env, map[string]any(e))
		}
	}
	if len(env) > 0 {
		values["extraEnv"] = env
	}
}

// keptSecurityContext returns what of a container's security context the chart does not set itself.
func keptSecurityContext(given object) map[string]any {
	kept := make(map[string]any)
	for _, key := range []string{"seLinuxOptions", "seccompProfile", "appArmorProfile"} {
		if value := given[key]; value != nil {
			kept[key] = value
		}
	}
	more := given.child("capabilities").texts("add")
	more = slices.DeleteFunc(more, func(name string) bool {
		return slices.Contains([]string{"NET_ADMIN", "NET_BIND_SERVICE"}, strings.TrimPrefix(name, "CAP_"))
	})
	if len(more) > 0 {
		kept["capabilities"] = map[string]any{"add": more}
	}
	return kept
}

// addPorts adds the ports of HTTP and the cluster's domain.
func addPorts(cfg *config.Config, values map[string]any) {
	for _, b := range cfg.Blocks {
		if b.Health != nil {
			setPort(values, "healthPort", b.Health.Addr)
		}
		if b.Ready != nil {
			setPort(values, "readyPort", b.Ready.Addr)
		}
		if b.Prometheus != nil {
			setPort(values, "metricsPort", b.Prometheus.Addr)
		}
		if b.Kubernetes != nil {
			values["dnsDomain"] = zoneText(b.Kubernetes.Zones[0])
		}
	}
}

// addAddresses adds --localip: link-local addresses are the node's own, others are Services'.
func (m *migration) addAddresses(values map[string]any) {
	var local, services []any
	for _, a := range m.flags.Config.LocalIPs {
		if a.IsLinkLocalUnicast() || a.IsLoopback() {
			local = append(local, a.String())
		} else {
			services = append(services, a.String())
		}
	}
	for key, list := range map[string][]any{"localDns": local, "dnsServer": services} {
		if len(list) == 1 {
			values[key] = list[0]
		} else if len(list) > 1 {
			values[key] = list
		}
	}
}

// withReady returns the Corefile with the directives that the chart's probes ask.
func (m *migration) withReady(c *corefile) string {
	lines := strings.Split(c.text, "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return slices.Contains(lineWords(line), "health") })
	if at < 0 && len(c.cfg.Blocks) > 0 {
		at = blockBodyStart(lines, c.cfg.Blocks[0].Line)
	}
	if at < 0 {
		return c.text
	}
	var added []string
	for _, d := range []struct {
		name  string
		port  uint16
		given bool
	}{
		{"health", healthPort, slices.ContainsFunc(c.cfg.Blocks, func(b *config.Block) bool { return b.Health != nil })},
		{"ready", readyPort, slices.ContainsFunc(c.cfg.Blocks, func(b *config.Block) bool { return b.Ready != nil })},
	} {
		if d.given {
			continue
		}
		listen := fmt.Sprintf("%s :%d", d.name, d.port)
		if m.hostNetwork() && len(m.flags.Config.LocalIPs) > 0 {
			listen = d.name + " " + netip.AddrPortFrom(m.flags.Config.LocalIPs[0], d.port).String()
		}
		m.noteFor(Changed, c.configMap.describe()+", "+c.key, "%s: the chart's probes ask it", listen)
		added = append(added, indentation(lines, at)+listen)
	}
	return strings.Join(slices.Insert(lines, at, added...), "\n")
}

// setPort sets a value to the port of host:port, if it is a number.
func setPort(values map[string]any, key, addr string) {
	if port, err := strconv.Atoi(addr[strings.LastIndexByte(addr, ':')+1:]); err == nil {
		values[key] = port
	}
}

// imageValues returns an image as the chart has it.
func imageValues(image string) map[string]any {
	name, digest, pinned := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	values := map[string]any{"repository": name}
	switch {
	case pinned:
		values["digest"] = digest
	case tag != "":
		values["tag"] = tag
	}
	return values
}

// chartVolumes are the names of the chart's volumes.
var chartVolumes = []string{"config-volume", "kube-dns-config", "xtables-lock", "handover"}

// addVolumes adds the mounts other than those that the chart has.
func (m *migration) addVolumes(c *corefile, values object) {
	own := []string{m.flags.KubeDNS, m.argument("handover-dir"), "/run/xtables.lock"}
	var mounts, volumes []any
	for _, mount := range m.pod.container.children("volumeMounts") {
		volume, err := findNamed(m.pod.podSpec.children("volumes"), mount.text("name"))
		if err != nil || slices.Contains(own, path.Clean(mount.text("mountPath"))) || volume.text("configMap", "name") == c.configMap.name() {
			continue
		}
		mount, volume = mount.clone(), volume.clone()
		if name := mount.text("name"); slices.Contains(chartVolumes, name) {
			mount["name"], volume["name"] = "old-"+name, "old-"+name
		}
		mounts = append(mounts, map[string]any(mount))
		if !slices.ContainsFunc(volumes, func(v any) bool { return fmt.Sprint(v) == fmt.Sprint(map[string]any(volume)) }) {
			volumes = append(volumes, map[string]any(volume))
		}
	}
	if len(mounts) > 0 {
		values["extraVolumeMounts"], values["extraVolumes"] = mounts, volumes
	}
}

// chartTexts are the flags that are values of `config` in the chart, and chartSwitches those of them without a value. chartFlags are the
// flags that it sets from other values, and chartEnv its variables.
var (
	chartTexts    = map[string]string{"interfacename": "interfaceName", "netfilter": "netfilter", "upstreamsvc": "customUpstreamsvc", "kernel-path": "kernelPath"}
	chartSwitches = map[string]string{"setupinterface": "setupInterface", "setupiptables": "setupIptables", "skipteardown": "skipTeardown"}
	chartFlags    = []string{"localip", "conf", "basecorefile", "kubednscm", "health-port", "handover-dir"}
	chartEnv      = []string{"NODE_NAME", "NODE_ZONE", "POD_UID", "GOMEMLIMIT"}
)

// addArgs adds the other arguments of the container.
func (m *migration) addArgs(values, settings object) {
	args := m.pod.container.texts("args")
	var more []any
	for i := 0; i < len(args); {
		n, _ := m.splitFlag(args[i:])
		name, arg := flagName(args[i]), strings.Join(args[i:i+n], "=")
		_, value, given := strings.Cut(arg, "=")
		switch on, err := strconv.ParseBool(value); {
		case chartTexts[name] != "" || slices.Contains(chartFlags, name):
		case chartSwitches[name] != "" && (err == nil || !given):
			settings[chartSwitches[name]] = on || !given
		default:
			more = append(more, arg)
		}
		i += n
	}
	if len(more) > 0 {
		values["extraArgs"] = more
	}
}

// The fields of a pod and of a container that are in the values, that the chart sets itself, or that have notes.
var (
	chartPodFields = []string{
		"containers", "volumes", "nodeSelector", "affinity", "tolerations", "priorityClassName", "priority", "imagePullSecrets", "initContainers", "hostNetwork", "dnsPolicy",
		"enableServiceLinks", "terminationGracePeriodSeconds", "restartPolicy", "schedulerName", "serviceAccount", "serviceAccountName",
	}
	chartContainerFields = []string{
		"name", "image", "imagePullPolicy", "args", "command", "env", "volumeMounts", "resources", "ports", "livenessProbe", "readinessProbe", "startupProbe", "securityContext",
		"lifecycle", "terminationMessagePath", "terminationMessagePolicy",
	}
)

// noteNoValues notes what the values lack: other files of the Corefile's ConfigMap, containers, fields.
func (m *migration) noteNoValues(c *corefile) {
	for _, f := range c.mounted {
		if f.path != c.file && strings.Contains(c.text, f.path) {
			m.noteFor(Todo, f.Name, "%s, which the Corefile names, is not in the values: the chart's ConfigMap has the Corefile only. Mount this ConfigMap at another path with extraVolumes and extraVolumeMounts, and change the path in config.customConfig", f.path)
		}
	}
	var lost []string
	for _, box := range m.pod.podSpec.children("containers") {
		if box.text("name") != m.pod.container.text("name") {
			lost = append(lost, "container "+box.text("name"))
		}
	}
	lost = append(lost, otherFields(m.pod.podSpec, chartPodFields)...)
	lost = append(lost, otherFields(m.pod.container, chartContainerFields)...)
	if len(lost) > 0 {
		slices.Sort(lost)
		m.note(Todo, "the chart", "it has no values for: %s", strings.Join(lost, ", "))
	}
}

// otherFields returns the fields of o that are not known and say something.
func otherFields(o object, known []string) (fields []string) {
	for key, value := range o {
		if text := fmt.Sprint(value); !slices.Contains(known, key) && !slices.Contains([]string{"<nil>", "map[]", "[]"}, text) {
			fields = append(fields, key)
		}
	}
	return fields
}
