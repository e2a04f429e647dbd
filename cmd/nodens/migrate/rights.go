package migrate

// nodeName is the variable that tells the agent its node.
const nodeName = "NODE_NAME"

// identity gives the pods what they need to ask the API server, once they may: an
// account, its token, and their node's name.
func (m *migration) identity() {
	if account := m.account(); account == "" || account == "default" {
		obj := m.own.account.clone()
		obj.need("metadata")["namespace"] = m.pod.set.namespace()
		m.pod.spec["serviceAccountName"] = obj.name()
		delete(m.pod.spec, "serviceAccount") // the field's old name
		m.out = append(m.out, obj)
		m.note(Changed, "serviceAccountName", "%s, in place of the one that all pods of the namespace share", obj.name())
	}
	if off, ok := m.pod.spec["automountServiceAccountToken"].(bool); ok && !off {
		m.pod.spec["automountServiceAccountToken"] = true
		m.note(Changed, "automountServiceAccountToken", "true: the agent asks the API server")
	}
	for _, e := range m.own.pod.box.subs("env") {
		if e.text("name") == nodeName && m.environ(e.clone()) {
			m.note(Changed, "env", "%s: the agent watches the pods of its own node", nodeName)
		}
	}
}

// account is the pods' service account.
func (m *migration) account() string {
	if account := m.pod.spec.text("serviceAccountName"); account != "" {
		return account
	}
	return m.pod.spec.text("serviceAccount")
}

// rights lets the pods' service account watch what the cluster's names are made of.
func (m *migration) rights() {
	binding := m.own.binding.clone()
	for _, s := range binding.subs("subjects") {
		s["name"], s["namespace"] = m.account(), m.pod.set.namespace()
	}
	m.out = append(m.out, m.own.role.clone(), binding)
	m.about(Changed, m.own.role.where(), "the service account %s may list and watch what the cluster's names are made of; NodeLocal DNSCache asks the API server nothing", m.account())
}
