package migrate

import "cmp"

// The environment variables with the name and the topology zone of the agent's node, and with its pod's UID.
const (
	nodeNameVar = "NODE_NAME"
	nodeZoneVar = "NODE_ZONE"
	podUIDVar   = "POD_UID"
)

// setServiceAccount gives the pods what they need to use the API server: a service account,
// its token, and the node's name.
func (m *migration) setServiceAccount() {
	if account := m.serviceAccount(); account == "" || account == "default" {
		obj := m.reference.account.clone()
		delete(obj.child("metadata"), "namespace")
		if namespace := m.pod.daemonSet.namespace(); namespace != "" {
			obj.ensure("metadata")["namespace"] = namespace
		}
		m.pod.podSpec["serviceAccountName"] = obj.name()
		delete(m.pod.podSpec, "serviceAccount") // the field's old name
		m.out = append(m.out, obj)
		m.note(Changed, "serviceAccountName", "%s, instead of the namespace's default account", obj.name())
	}
	if off, ok := m.pod.podSpec["automountServiceAccountToken"].(bool); ok && !off {
		m.pod.podSpec["automountServiceAccountToken"] = true
		m.note(Changed, "automountServiceAccountToken", "true: the agent uses the API server")
	}
	if m.copyEnv(nodeNameVar) {
		m.note(Changed, "env", "%s: the agent watches the pods of its own node", nodeNameVar)
	}
	if m.copyEnv(nodeZoneVar) {
		m.note(Changed, "env", "%s: endpoints in the agent's zone come first", nodeZoneVar)
	}
}

// copyEnv adds the variable of nodens' own manifest, and reports whether it was missing.
func (m *migration) copyEnv(name string) bool {
	e, err := findNamed(m.reference.pod.container.children("env"), name)
	return err == nil && m.addEnv(e)
}

// serviceAccount returns the name of the pods' service account.
func (m *migration) serviceAccount() string {
	if account := m.pod.podSpec.text("serviceAccountName"); account != "" {
		return account
	}
	return m.pod.podSpec.text("serviceAccount")
}

// addRBAC lets the pods' service account watch the objects that the cluster's names are
// made of.
func (m *migration) addRBAC() {
	binding := m.reference.binding.clone()
	for _, s := range binding.children("subjects") {
		s["name"], s["namespace"] = m.serviceAccount(), m.bindingNamespace(binding)
	}
	m.out = append(m.out, m.reference.role.clone(), binding)
	m.noteFor(Changed, m.reference.role.describe(), "the service account %s may list and watch the objects that the cluster's names are made of; NodeLocal DNSCache does not use the API server", m.serviceAccount())
}

// DefaultNamespace is the namespace of NodeLocal DNSCache in its own manifest.
const DefaultNamespace = "kube-system"

// bindingNamespace returns the namespace of the pods' service account. The subject of a
// ClusterRoleBinding must have one, even if the other objects get theirs from kubectl's -n.
func (m *migration) bindingNamespace(binding object) string {
	if namespace := m.pod.daemonSet.namespace(); namespace != "" {
		return namespace
	}
	namespace := cmp.Or(m.Namespace, DefaultNamespace)
	m.noteFor(Todo, binding.describe()+", subjects", "the DaemonSet's manifest has no namespace, so the service account is expected in %s: if you apply the objects to another namespace, name it with -n", namespace)
	return namespace
}
