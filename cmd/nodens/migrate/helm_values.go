package migrate

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodens-dns/nodens/internal/config"
)

// readyPort is the port of nodens' chart for readiness.
const readyPort = 8181

// healthLine is the line of a `health` directive.
var healthLine = regexp.MustCompile(`(?m)^([ \t]*)health\b.*$`)

// helmValues returns the values of nodens' chart for the pods and the Corefile of this migration. What the chart has by
// itself, such as the volume for hand-overs, and what it has no value for is left out.
func (m *migration) helmValues(c *corefile) ([]byte, error) {
	if !m.HelmValues {
		return nil, nil
	}
	settings := map[string]any{"customConfig": m.withReady(c)}
	values := object{"config": settings}
	m.addAddresses(settings)
	for flag, key := range map[string]string{"interfacename": "interfaceName", "netfilter": "netfilter", "upstreamsvc": "customUpstreamsvc", "kernel-path": "kernelPath"} {
		if value := m.argument(flag); value != "" {
			settings[key] = value
		}
	}
	addPorts(c.cfg, settings)
	if name, tag, ok := cutImage(m.Image); ok {
		values["image"] = map[string]any{"repository": name, "tag": tag}
	}
	for _, key := range []string{"nodeSelector", "affinity", "tolerations", "priorityClassName"} {
		if value := m.pod.podSpec[key]; value != nil {
			values[key] = value
		}
	}
	if value := m.pod.container["resources"]; value != nil {
		values["resources"] = value
	}
	m.addVolumes(c, values)
	m.notes = slices.DeleteFunc(m.notes, func(n Note) bool { return n.Kind == Changed && strings.HasPrefix(n.Where, "DaemonSet") })
	m.note(Todo, "the chart", "replace NodeLocal DNSCache by it as docs/how-to/install.md#install-with-helm says. What it has no value for, such as other containers of the pod, is not in the values")
	return yaml.Marshal(values)
}

// addPorts adds the ports of HTTP and the cluster's domain.
func addPorts(cfg *config.Config, values map[string]any) {
	for _, b := range cfg.Blocks {
		if b.Health != nil {
			setPort(values, "healthPort", b.Health.Addr)
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

// withReady returns the Corefile with the directive that the chart's readiness probe asks.
func (m *migration) withReady(c *corefile) string {
	at := healthLine.FindStringSubmatchIndex(c.text)
	if at == nil || slices.ContainsFunc(strings.Split(c.text, "\n"), func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "ready") }) {
		return c.text
	}
	addr := netip.AddrPort{}
	if len(m.flags.Config.LocalIPs) > 0 {
		addr = netip.AddrPortFrom(m.flags.Config.LocalIPs[0], readyPort)
	}
	m.noteFor(Changed, c.configMap.describe()+", "+c.key, "ready %s: the chart's readiness probe asks it", addr)
	return c.text[:at[0]] + c.text[at[2]:at[3]] + "ready " + addr.String() + "\n" + c.text[at[0]:]
}

// setPort sets a value to the port of host:port, if it is a number.
func setPort(values map[string]any, key, addr string) {
	if port, err := strconv.Atoi(addr[strings.LastIndexByte(addr, ':')+1:]); err == nil {
		values[key] = port
	}
}

// cutImage cuts an image before its tag.
func cutImage(image string) (name, tag string, ok bool) {
	i := strings.LastIndexByte(image, ':')
	if i < 0 || strings.ContainsAny(image[i:], "/") || strings.Contains(image, "@") {
		return "", "", false
	}
	return image[:i], image[i+1:], true
}

// addVolumes adds the mounts of ConfigMaps other than the Corefile's and kube-dns's.
func (m *migration) addVolumes(c *corefile, values object) {
	var mounts, volumes []any
	for _, mount := range m.pod.container.children("volumeMounts") {
		volume, err := findNamed(m.pod.podSpec.children("volumes"), mount.text("name"))
		if err != nil || len(configMapSources(volume)) == 0 || mount.text("mountPath") == m.flags.KubeDNS || volume.text("configMap", "name") == c.configMap.name() {
			continue
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
