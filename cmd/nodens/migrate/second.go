package migrate

import (
	"path"
	"slices"
	"strings"
)

// secondSuffix ends the name of the DaemonSet that Kubespray adds with enable_nodelocaldns_secondary: it runs a second
// agent at the same addresses, so that a node keeps DNS while the first one is replaced.
const secondSuffix = "-second"

// siblings returns the other DaemonSets that run an agent at one of the same addresses.
func (m *migration) siblings() (names []string) {
	for _, obj := range m.Objects.list {
		if obj.text("kind") != "DaemonSet" || obj.name() == m.pod.daemonSet.name() && obj.namespace() == m.pod.daemonSet.namespace() {
			continue
		}
		if p := newAgentPod(obj.clone()); p.container != nil && m.sharesAddress(p) {
			names = append(names, obj.describe())
		}
	}
	return names
}

// sharesAddress reports whether the agents of p have one of the addresses of this migration's.
func (m *migration) sharesAddress(p *agentPod) bool {
	args, _ := p.expandedArgs()
	value, _ := argument(args, "localip")
	return slices.ContainsFunc(strings.Split(value, ","), m.isLocalIP)
}

// ownHandoverDir returns the hand-over directory for the DaemonSet, dir or one beside it. Agents of two DaemonSets with
// one directory would take the node from each other for ever.
func (m *migration) ownHandoverDir(dir string) string {
	name, others := m.pod.daemonSet.name(), m.siblings()
	if len(others) > 0 {
		m.note(Todo, "the other DaemonSet", "%s has an agent at the same addresses: each of the two gets a part of the queries, and reports the other one. nodens hands over to the next agent without a second one: delete one DaemonSet, with its ConfigMap, when the rollout is complete", strings.Join(others, ", "))
	}
	if !strings.HasSuffix(name, secondSuffix) && !slices.ContainsFunc(others, func(o string) bool { return o < m.pod.daemonSet.describe() }) {
		return dir
	}
	return dir + "-" + name
}

// removeHooks removes hooks that run a program of NodeLocal DNSCache's image. The kubelet would report each as failed, and
// kill a container whose postStart fails.
func (m *migration) removeHooks() {
	hooks := m.pod.container.child("lifecycle")
	for _, hook := range []string{"postStart", "preStop"} {
		if words := hooks.texts(hook, "exec", "command"); len(words) > 0 && path.Base(words[0]) != "nodens" {
			m.removeField(hooks, hook)
			m.note(Changed, "lifecycle."+hook, "removed: it runs %s, and the image has neither a shell nor other programs. An agent that is stopped hands over, or leaves the queries to the cluster DNS, by itself", words[0])
		}
	}
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		if words := m.pod.container.texts(probe, "exec", "command"); len(words) > 0 && path.Base(words[0]) != "nodens" {
			m.note(Todo, probe, "it runs %s, and the image has neither a shell nor other programs: ask over HTTP", words[0])
		}
	}
}
