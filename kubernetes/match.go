package kubernetes

import "bytes"

// match is the node of a name, with what its answer is made from.
type match struct {
	node nodeType
	svc  *service
	key  []byte // of svc; part of the qname
	port portMatch
	host hostnameMatch
	addr packedAddr // podName, reverseName
	pod  bool       // what is incomplete is a pod
	zone zoneName   // zonalName; the zero value is all zones
}

// isAlias reports whether m is a Service of type ExternalName.
func (m *match) isAlias() bool { return m.node == serviceName && m.svc.kind == externalName }

// matchExternal returns the node of a name of m's service, which is externally reachable. A
// single label in front of the service is ignored, as in CoreDNS, which takes it for an
// endpoint.
func (m match) matchExternal(rel []byte, at []int, b *Budget) match {
	m.node = externalService
	if len(at) != 5 {
		return m
	}
	m.port = portMatch{proto: parseProtocol(trimUnderscore(rel[at[1]+1 : at[2]])), name: trimUnderscore(rel[1:at[1]])}
	if m.port.proto == 0 || len(m.port.name) == 0 || !b.spend(m.svc.ports.steps()) || !m.svc.ports.has(m.port) {
		return match{}
	}
	return m
}

// matchInternal returns the node of a name of m's service, which has names through its
// endpoints.
func (m match) matchInternal(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 5:
		return m.matchPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
	case 4:
		if e := m.matchEndpoint(rel[1:at[1]], b); m.svc.kind == headless || e.node == endpointName {
			return e
		}
		return match{}
	}
	if !m.svc.ready { // headless: other services have no such name
		return match{}
	}
	m.node = serviceName
	return m
}

// matchBelowService returns the node of the labels, if any, in front of a service.
func (m match) matchBelowService(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchEndpoint(rel[1:at[1]], b)
	case 5:
		return m.matchPort(rel[1:at[1]], rel[at[1]+1:at[2]], b)
	}
	return m
}

// matchEndpoint returns the node of one label below a service: an endpoint, or the protocol
// above its named ports.
func (m match) matchEndpoint(label []byte, b *Budget) match {
	if m.svc.kind == externalName {
		return match{}
	}
	m.node, m.host = endpointName, newHostnameMatch(label)
	if m.svc.hasEndpoint(&m.host, b) {
		return m
	}
	proto := parseProtocol(trimUnderscore(label))
	return emptyIf(proto != 0 && m.svc.hasNamed(proto, b))
}

// matchPort returns the node of two labels below a service: a named port. An empty port
// name would be a wildcard and doesn't exist.
func (m match) matchPort(name, proto []byte, b *Budget) match {
	m.node = portName
	m.port = portMatch{proto: parseProtocol(trimUnderscore(proto)), name: trimUnderscore(name)}
	if m.port.proto == 0 || len(m.port.name) == 0 || !m.svc.hasPort(m.port, b) {
		return match{}
	}
	return m
}

// matchBelowImport returns the node of the labels, if any, in front of an import.
func (m match) matchBelowImport(rel []byte, at []int, b *Budget) match {
	switch len(at) {
	case 4:
		return m.matchCluster(rel[:at[1]], b)
	case 5:
		return m.matchClusterEndpoint(rel[:at[1]], rel[at[1]:at[2]], b)
	}
	return m
}

// matchCluster returns the node of one label, in wire form, below an import: an endpoint
// without a cluster, the protocol above named ports, or the cluster above its endpoints.
func (m match) matchCluster(label []byte, b *Budget) match {
	if e := m.matchEndpoint(label[1:], b); e.node != notFound {
		return e
	}
	for _, s := range m.svc.slices {
		if !b.spend(sliceSteps) {
			return match{}
		}
		if s.cluster == string(label) && s.addrs != "" {
			return match{node: emptyNonTerminal}
		}
	}
	return match{}
}

// matchClusterEndpoint returns the node of two labels, in wire form, below an import.
// Unlike in the cluster zone, ports need an underscore: hostnames and clusters have none.
func (m match) matchClusterEndpoint(host, cluster []byte, b *Budget) match {
	if bytes.HasPrefix(host[1:], underscore) || bytes.HasPrefix(cluster[1:], underscore) {
		return m.matchPort(host[1:], cluster[1:], b)
	}
	m.node, m.host = endpointName, newHostnameMatch(host[1:])
	m.host.cluster = uint8(len(cluster)) // it follows host in the qname
	if !m.svc.hasEndpoint(&m.host, b) {
		return match{}
	}
	return m
}

// matchDirective returns the node of a topology zone, or of none yet, below pin or prefer.
func (m match) matchDirective(v *View, directive, zone []byte, b *Budget) match {
	pin := string(directive) == pinLabel
	switch {
	case !pin && string(directive) != preferLabel:
		return match{}
	case len(zone) == 0:
		return match{node: emptyNonTerminal}
	case !v.requireSlices(m.svc, b):
		return match{node: incomplete, svc: m.svc}
	}
	var found bool
	if m.zone, found = m.svc.findZone(zone, b); !found && pin {
		m.zone = noZone
	}
	return m
}

func emptyIf(ok bool) match {
	if ok {
		return match{node: emptyNonTerminal}
	}
	return match{}
}

// trimUnderscore returns label without its underscore. RFC 2782 requires one; as in
// CoreDNS, clients may leave it out.
func trimUnderscore(label []byte) []byte { return bytes.TrimPrefix(label, []byte("_")) }
