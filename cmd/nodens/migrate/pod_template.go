package migrate

import (
	"fmt"
	"slices"
	"strings"
)

// handoverVolume is the volume's name in nodens' own manifest.
const handoverVolume = "handover"

// enableHandover has each agent take over from the one before it.
func (m *migration) enableHandover() error {
	if !m.hostNetwork() {
		m.note(Differs, "hostNetwork", "it is not true, so each pod has a network of its own and nothing to hand over: a pod that is replaced is away for as long as with NodeLocal DNSCache")
		return nil
	}
	if err := m.addHandoverDir(); err != nil {
		return err
	}
	m.setStartupProbe()
	m.removePorts()
	m.setGracePeriod()
	m.keepNetwork()
	m.setUpdateStrategy()
	return nil
}

// hostNetwork reports whether the pods are in their nodes' network.
func (m *migration) hostNetwork() bool {
	hosted, _ := m.pod.podSpec["hostNetwork"].(bool)
	return hosted
}

// addHandoverDir gives the agent the folder through which it hands over.
func (m *migration) addHandoverDir() error {
	mount, err := findNamed(m.reference.pod.container.children("volumeMounts"), handoverVolume)
	if err != nil {
		return err
	}
	volume, err := findNamed(m.reference.pod.podSpec.children("volumes"), handoverVolume)
	if err != nil {
		return err
	}
	dir := mount.text("mountPath")
	if !m.setArgs("-handover-dir", dir) {
		return nil // with a volume of its own
	}
	name := handoverVolume
	for slices.ContainsFunc(m.pod.podSpec.children("volumes"), func(v object) bool { return v.text("name") == name }) {
		name += "-nodens"
	}
	mount["name"], volume["name"] = name, name
	m.pod.container["volumeMounts"] = append(m.pod.container.list("volumeMounts"), map[string]any(mount))
	m.pod.podSpec["volumes"] = append(m.pod.podSpec.list("volumes"), map[string]any(volume))
	m.note(Changed, "args and volumes", "-handover-dir %s, a folder of the node: the next agent takes sockets and cache over through it, and the cache is saved there", dir)
	return nil
}

// setStartupProbe adds the probe that a rollout waits for.
func (m *migration) setStartupProbe() {
	own := m.reference.pod.container.child("startupProbe").clone()
	for i, word := range own.texts("exec", "command") {
		if word == "-handover-dir" {
			own.list("exec", "command")[i+1] = m.handoverDir()
		}
	}
	if was := m.pod.container.child("startupProbe"); was != nil {
		if slices.Equal(was.texts("exec", "command"), own.texts("exec", "command")) {
			return
		}
		m.note(Changed, "startupProbe", "it is replaced: over the network the agent of the old pod would answer for the new one")
	} else {
		m.note(Changed, "startupProbe", "nodens ready: a rollout waits until the new pod's own agent serves")
	}
	m.pod.container["startupProbe"] = map[string]any(own)
}

// handoverDir is the value of that flag.
func (m *migration) handoverDir() string {
	args := m.pod.container.texts("args")
	for i, arg := range args {
		if flagName(arg) != "handover-dir" {
			continue
		}
		if _, value, ok := strings.Cut(arg, "="); ok {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// removePorts takes the declared ports away: with hostNetwork each is a port of the host,
// and the scheduler puts no second pod beside the first.
func (m *migration) removePorts() {
	ports := m.pod.container.children("ports")
	if len(ports) == 0 {
		return
	}
	m.removeField(m.pod.container, "ports")
	var names []string
	for _, p := range ports {
		if name := p.text("name"); name != "" {
			names = append(names, name)
		}
	}
	m.note(Changed, "ports", "they are left out: with hostNetwork they keep a second pod off the node, and so the hand-over. The agent listens as before")
	m.fixServicePorts(ports)
	if len(names) > 0 {
		m.notePodMonitors(ports, names)
	}
}

// fixServicePorts has Services that name a port of the pods name its number.
func (m *migration) fixServicePorts(ports []object) {
	labels := m.pod.daemonSet.child("spec", "template", "metadata", "labels")
	for _, obj := range m.Objects.list {
		if obj.text("kind") != "Service" || !obj.inNamespace(m.pod.daemonSet.namespace()) || !selects(obj.child("spec", "selector"), labels) {
			continue
		}
		service := obj.clone()
		changed := false
		for _, p := range service.children("spec", "ports") {
			for _, to := range ports {
				if to.text("name") != "" && p.text("targetPort") == to.text("name") {
					p["targetPort"] = to["containerPort"]
					changed = true
				}
			}
		}
		if changed {
			m.out = append(m.out, service)
			m.noteFor(Changed, service.describe()+", ports", "targetPort is the number in place of the name, which the pod no longer declares")
		}
	}
}

// selects reports whether a Service's selector takes pods with the labels.
func selects(selector, labels object) bool {
	for key := range selector {
		if selector.text(key) != labels.text(key) {
			return false
		}
	}
	return len(selector) > 0
}

// notePodMonitors tells who finds the ports by their names.
func (m *migration) notePodMonitors(ports []object, names []string) {
	seen := false
	for _, obj := range m.Objects.list {
		for _, e := range obj.children("spec", "podMetricsEndpoints") {
			for _, p := range ports {
				if e.text("port") != "" && e.text("port") == p.text("name") {
					seen = true
					m.noteFor(Todo, obj.describe()+", podMetricsEndpoints", "write portNumber: %v in place of port: %s, if it is for these pods: they no longer declare ports", p["containerPort"], e.text("port"))
				}
			}
		}
	}
	if !seen {
		m.note(Todo, "ports", "a PodMonitor that names one of the pods' ports (%s) has to give its number", strings.Join(names, ", "))
	}
}

// minGracePeriod is the time that an agent which is asked to stop in the middle of handing
// over needs to see that through, and half as much again.
const minGracePeriod = 30

// setGracePeriod leaves the agent the time to hand over.
func (m *migration) setGracePeriod() {
	const field = "terminationGracePeriodSeconds"
	seconds, ok := m.pod.podSpec[field].(int64)
	if !ok || seconds >= minGracePeriod {
		return // the API's default is as long
	}
	m.pod.podSpec[field] = int64(minGracePeriod)
	m.note(Changed, field, "%d in place of %d: an agent that is stopped while it hands over sees that through, for 20 s at most, and else ends in less than 5 s", minGracePeriod, seconds)
}

// keepNetwork leaves link and rules on the node between one agent and the next.
func (m *migration) keepNetwork() {
	if m.setArgs("-skipteardown") {
		m.note(Changed, "args", "-skipteardown: link and rules stay when the agent stops, and lead to the cluster DNS. To take them away for good, run `nodens cleanup` on the nodes after deleting the DaemonSet, or daemonset/cleanup.yaml")
	}
}

// setUpdateStrategy is that of the first rollout, or the one of all others.
func (m *migration) setUpdateStrategy() {
	s := m.pod.daemonSet.ensure("spec", "updateStrategy")
	if s.text("type") == "OnDelete" {
		m.note(Differs, "updateStrategy", "with OnDelete a pod starts after the old one's end, so it takes nothing over but the saved cache; RollingUpdate with maxSurge hands over")
		return
	}
	surge, away := s.value("rollingUpdate", "maxSurge"), s.value("rollingUpdate", "maxUnavailable")
	switch {
	case !m.secondStep && !isZero(surge):
		s["rollingUpdate"] = map[string]any{"maxSurge": int64(0), "maxUnavailable": surge}
		m.note(Changed, "updateStrategy", "maxUnavailable %v in place of maxSurge, for this rollout", surge)
	case m.secondStep && isZero(surge):
		if isZero(away) {
			away = int64(1) // the API's default
		}
		s["rollingUpdate"] = map[string]any{"maxSurge": away, "maxUnavailable": int64(0)}
		m.note(Changed, "updateStrategy", "maxSurge %v in place of maxUnavailable: a new pod starts beside the old one, and takes over from it", away)
	}
}

// isZero reports whether a number of pods, or a share of them, is nothing.
func isZero(n any) bool {
	text := strings.TrimSuffix(fmt.Sprint(n), "%")
	return n == nil || text == "0"
}

// isRollingOut reports whether the cluster has not yet brought all pods up to date.
func (m *migration) isRollingOut() bool {
	status := m.pod.daemonSet.child("status")
	if !m.Objects.live {
		return false
	}
	number := func(from object, name string) int64 { n, _ := from[name].(int64); return n }
	return number(status, "observedGeneration") < number(m.pod.daemonSet.child("metadata"), "generation") ||
		number(status, "updatedNumberScheduled") < number(status, "desiredNumberScheduled")
}
