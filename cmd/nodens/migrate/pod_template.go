package migrate

import (
	"fmt"
	"slices"
	"strings"
)

// handoverVolume is the name of the volume in nodens' own manifest.
const handoverVolume = "handover"

// enableHandover makes each agent take over from its predecessor.
func (m *migration) enableHandover() error {
	if !m.hostNetwork() {
		m.note(Differs, "hostNetwork", "not true, so each pod has its own network and can't hand over: replacing a pod interrupts DNS for as long as with NodeLocal DNSCache")
		return nil
	}
	if err := m.addHandoverDir(); err != nil {
		return err
	}
	m.setStartupProbe()
	m.setComparison()
	m.removePorts()
	m.setGracePeriod()
	if m.setArgs("-skipteardown") { // interface and rules stay on the node between one agent and the next
		m.note(Changed, "args", "--skipteardown: interface and rules stay when the agent stops, and lead to the cluster DNS. To remove them, run `nodens cleanup` on the nodes after deleting the DaemonSet, or apply daemonset/cleanup.yaml")
	}
	m.setUpdateStrategy()
	return nil
}

// hostNetwork reports whether the pods use their nodes' network.
func (m *migration) hostNetwork() bool {
	hosted, _ := m.pod.podSpec["hostNetwork"].(bool)
	return hosted
}

// addHandoverDir adds the flag and the volume of the hand-over directory.
func (m *migration) addHandoverDir() error {
	mount, err := findNamed(m.reference.pod.container.children("volumeMounts"), handoverVolume)
	if err != nil {
		return err
	}
	volume, err := findNamed(m.reference.pod.podSpec.children("volumes"), handoverVolume)
	if err != nil {
		return err
	}
	dir := m.ownHandoverDir(mount.text("mountPath"))
	if !m.setArgs("-handover-dir", dir) {
		return nil // it has a volume of its own
	}
	name := handoverVolume
	for slices.ContainsFunc(m.pod.podSpec.children("volumes"), func(v object) bool { return v.text("name") == name }) {
		name += "-nodens"
	}
	mount["name"], volume["name"] = name, name
	mount["mountPath"], volume.ensure("hostPath")["path"] = dir, dir
	m.pod.container["volumeMounts"] = append(m.pod.container.list("volumeMounts"), map[string]any(mount))
	m.pod.podSpec["volumes"] = append(m.pod.podSpec.list("volumes"), map[string]any(volume))
	m.note(Changed, "args and volumes", "--handover-dir %s, a directory of the node: the next agent takes over sockets and cache through it, and the cache is saved there", dir)
	return nil
}

// setStartupProbe adds the startup probe that a rollout waits for.
func (m *migration) setStartupProbe() {
	own := m.reference.pod.container.child("startupProbe").clone()
	for i, word := range own.texts("exec", "command") {
		if word == "-handover-dir" {
			own.list("exec", "command")[i+1] = m.argument("handover-dir")
		}
	}
	if was := m.pod.container.child("startupProbe"); was != nil {
		if slices.Equal(was.texts("exec", "command"), own.texts("exec", "command")) {
			return
		}
		m.note(Changed, "startupProbe", "replaced: over the network the old pod's agent would answer for the new one")
	} else {
		m.note(Changed, "startupProbe", "nodens ready: a rollout waits until the new pod's own agent serves")
	}
	m.pod.container["startupProbe"] = map[string]any(own)
}

// setComparison adds what an agent that gives the node back needs besides the startup probe.
func (m *migration) setComparison() {
	if m.copyEnv(podUIDVar) {
		m.note(Changed, "env", "%s: an agent that was worse than its predecessor is not tried again until its pod is replaced", podUIDVar)
	}
	const field = "terminationMessagePolicy"
	if policy := m.reference.pod.container.text(field); policy != "" && m.pod.container.text(field) != policy {
		m.pod.container[field] = policy
		m.note(Changed, field, "%s: kubectl describe shows why an agent has ended", policy)
	}
}

// argument returns the value of a flag among the container's arguments, "" if it is not there.
func (m *migration) argument(name string) string {
	value, _ := argument(m.pod.container.texts("args"), name)
	return value
}

// argument returns the value of a flag among arguments, and whether the flag is there.
func argument(args []string, name string) (value string, ok bool) {
	i := slices.IndexFunc(args, func(arg string) bool { return flagName(arg) == name })
	if i < 0 {
		return "", false
	}
	if _, value, ok := strings.Cut(args[i], "="); ok || i+1 == len(args) {
		return value, true
	}
	return args[i+1], true
}

// removePorts removes the declared ports: with hostNetwork each is a port of the node, so
// the scheduler would not place a second pod there.
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
	m.note(Changed, "ports", "removed: with hostNetwork they prevent a second pod on the node, and thus the hand-over. The agent listens on the same ports")
	m.fixServicePorts(ports)
	if len(names) > 0 {
		m.notePodMonitors(ports, names)
	}
}

// fixServicePorts replaces port names by numbers in the Services of the pods.
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
			m.noteFor(Changed, service.describe()+", ports", "targetPort is a number instead of a name that the pod no longer declares")
		}
	}
}

// selects reports whether a Service's selector matches the labels.
func selects(selector, labels object) bool {
	for key := range selector {
		if selector.text(key) != labels.text(key) {
			return false
		}
	}
	return len(selector) > 0
}

// notePodMonitors notes the PodMonitors that refer to ports by name.
func (m *migration) notePodMonitors(ports []object, names []string) {
	seen := false
	for _, obj := range m.Objects.list {
		for _, e := range obj.children("spec", "podMetricsEndpoints") {
			for _, p := range ports {
				if e.text("port") != "" && e.text("port") == p.text("name") {
					seen = true
					m.noteFor(Todo, obj.describe()+", podMetricsEndpoints", "if it selects these pods, set portNumber: %v instead of port: %s: they no longer declare ports", p["containerPort"], e.text("port"))
				}
			}
		}
	}
	if !seen {
		m.note(Todo, "ports", "a PodMonitor that refers to one of the pods' ports by name (%s) must use its number", strings.Join(names, ", "))
	}
}

// minGracePeriod is one and a half times what an agent needs, if it is stopped during a
// hand-over, to complete that.
const minGracePeriod = 30

// setGracePeriod leaves the agent the time to hand over.
func (m *migration) setGracePeriod() {
	const field = "terminationGracePeriodSeconds"
	seconds, ok := m.pod.podSpec[field].(int64)
	if !ok || seconds >= minGracePeriod {
		return // the API's default is as long
	}
	m.pod.podSpec[field] = int64(minGracePeriod)
	m.note(Changed, field, "%d instead of %d: an agent that is stopped during a hand-over completes it, which takes up to 20 s; otherwise it stops in less than 5 s", minGracePeriod, seconds)
}

// setUpdateStrategy sets the update strategy of the first, or of all later rollouts.
func (m *migration) setUpdateStrategy() {
	s := m.pod.daemonSet.ensure("spec", "updateStrategy")
	if s.text("type") == "OnDelete" {
		m.note(Differs, "updateStrategy", "with OnDelete a pod starts after the old one has ended and only takes over the saved cache; RollingUpdate with maxSurge hands over")
		return
	}
	surge, away := s.value("rollingUpdate", "maxSurge"), s.value("rollingUpdate", "maxUnavailable")
	switch {
	case !m.secondStep && !isZero(surge):
		s["rollingUpdate"] = map[string]any{"maxSurge": int64(0), "maxUnavailable": surge}
		m.note(Changed, "updateStrategy", "maxUnavailable %v instead of maxSurge, for this rollout", surge)
	case m.secondStep && isZero(surge):
		if isZero(away) {
			away = int64(1) // the API's default
		}
		s["rollingUpdate"] = map[string]any{"maxSurge": away, "maxUnavailable": int64(0)}
		m.note(Changed, "updateStrategy", "maxSurge %v instead of maxUnavailable: a new pod starts beside the old one and takes over from it", away)
	}
}

// isZero reports whether a number or percentage of pods is zero or not set.
func isZero(n any) bool {
	text := strings.TrimSuffix(fmt.Sprint(n), "%")
	return n == nil || text == "0"
}

// isRollingOut reports whether not all pods are up to date, as far as the object has a status.
func (m *migration) isRollingOut() bool {
	status := m.pod.daemonSet.child("status")
	if status == nil {
		return false
	}
	number := func(from object, name string) int64 { n, _ := from[name].(int64); return n }
	return number(status, "observedGeneration") < number(m.pod.daemonSet.child("metadata"), "generation") ||
		number(status, "updatedNumberScheduled") < number(status, "desiredNumberScheduled")
}
