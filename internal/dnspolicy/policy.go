// Package dnspolicy decides which names the clients of an agent may ask for.
//
// A [Policy] is one object, compiled: a map of the names in its lists. A [Class] is the policies that bind a
// client; clients that the same policies bind share one. A [Table] has the class of each client, by address.
// Policies and classes are immutable: when an object or the labels of a pod change, the client gets another
// class. So what a class may ask for never changes, and a copy of an answer that is right for a class stays
// right for it.
//
// The policies of a class add up like NetworkPolicies:
//
//  1. A name that a deny list has is denied, whatever other policies say.
//  2. Otherwise a name that an allow list has is allowed, and each name if a policy allows what its lists do not have.
//  3. Otherwise the name is denied.
//
// Policies in audit mode deny nothing: [Class.Judge] only says what they would deny.
package dnspolicy

import (
	"github.com/nodens-dns/nodens/internal/wire"
)

// Policy is a policy for DNS names. It does not change after [Policy.Add] and [Policy.AddService], and is then
// safe for concurrent use.
type Policy struct {
	// Namespace and Name identify the object.
	Namespace, Name string
	// Audit says that the policy denies nothing.
	Audit bool
	// AllowOthers says that names which are in neither list may be asked for.
	AllowOthers bool
	// NXDomain says that a denied name gets NXDOMAIN, otherwise REFUSED.
	NXDomain bool
	// Counts are the queries that the policy denied. They outlive the Policy. nil counts nothing.
	Counts *Counts
	// Set gets the addresses of the names that the policy allows; nil: there is none.
	Set *Set

	names   map[wire.Name]listed
	lengths [4]uint64 // a bit for each length of a name in bytes: most look-ups end with it
	// services has the Services that may be asked for in the cluster's zones: the labels of a Service and its
	// namespace, or that of a namespace for all of its Services. They end without the root.
	services map[string]struct{}
}

// listed are the lists that have a name.
type listed uint8

const (
	allowExact listed = 1 << iota
	allowBelow        // the names below it
	denyExact
	denyBelow
)

// Add adds a name to the allow list, or with deny to the deny list. below says that the entry is *.name: all names below
// name, at any depth, and not name itself.
func (p *Policy) Add(name wire.Name, below, deny bool) {
	bit := allowExact
	switch {
	case deny && below:
		bit = denyBelow
	case deny:
		bit = denyExact
	case below:
		bit = allowBelow
	}
	if p.names == nil {
		p.names = make(map[wire.Name]listed)
	}
	p.names[name] |= bit
	p.lengths[len(name)>>6] |= 1 << (len(name) & 63)
}

// AddService allows the names of a Service in the cluster's zones: its own and those below it. labels are the labels of
// the Service and its namespace in wire form, lower case and without the root. With the label of a namespace alone, all of
// its Services are allowed.
func (p *Policy) AddService(labels string) {
	if p.services == nil {
		p.services = make(map[string]struct{})
	}
	p.services[labels] = struct{}{}
}

// Len returns the number of names and Services in the lists.
func (p *Policy) Len() int { return len(p.names) + len(p.services) }

// match returns the lists that have name, and for the deny list the offset of the entry's name in it. Entries that differ in
// allow and deny both count. It takes at most a look-up for each label and does not allocate.
func (p *Policy) match(name []byte, service Service) (found listed, at int) {
	rest := name
	for len(rest) > 0 {
		if p.lengths[len(rest)>>6]&(1<<(len(rest)&63)) != 0 {
			bits := p.names[wire.Name(rest)]
			if len(rest) == len(name) {
				bits &= allowExact | denyExact
			} else {
				bits &= allowBelow | denyBelow
			}
			if denied := bits & (denyExact | denyBelow); denied != 0 && found&(denyExact|denyBelow) == 0 {
				at = len(name) - len(rest)
			}
			found |= bits
		}
		if len(rest) == 1 {
			break
		}
		rest = rest[1+int(rest[0]):]
	}
	if p.allowsService(service) {
		found |= allowExact
	}
	return found, at
}

// Allows reports whether p by itself allows name, as [Class.Judge] takes it.
func (p *Policy) Allows(name []byte, service Service) bool {
	found, _ := p.match(name, service)
	return found&(denyExact|denyBelow) == 0 && (p.AllowOthers || found != 0)
}

// Service is the part of a name in a zone of the cluster that says whose it is: the labels of the Service and of its namespace in
// wire form, or of the namespace alone, without the root. The zero Service is for other names.
type Service []byte

// allowsService reports whether s is one of p's Services, or of one of its namespaces.
func (p *Policy) allowsService(s Service) bool {
	if len(s) == 0 || len(p.services) == 0 {
		return false
	}
	if _, ok := p.services[string(s)]; ok {
		return true
	}
	namespace := s[1+int(s[0]):]
	if len(namespace) == 0 { // s is one
		return false
	}
	_, ok := p.services[string(namespace)]
	return ok
}

// Denial says which policy denies a name. The zero Denial is none.
type Denial struct {
	// Policy is nil if the name may be asked for.
	Policy *Policy
	// Listed says that the deny list of Policy has the name. Otherwise no list allows it.
	Listed bool
	// Audit says that Policy is in audit mode, and the name may be asked for.
	Audit bool

	at uint8 // the offset of the entry's name in the one that is denied; not 0 for an entry *.name
}

// Entry returns the entry of the deny list that has name, as it is in the object, "" for none. name is the one that was denied.
func (d *Denial) Entry(name []byte) string {
	if !d.Listed || int(d.at) >= len(name) {
		return ""
	}
	text := wire.Name(name[d.at:]).String()
	if d.at > 0 {
		return "*." + text
	}
	return text
}

// Count counts a query that d is about.
func (d *Denial) Count() {
	if d.Policy == nil || d.Policy.Counts == nil {
		return
	}
	if d.Audit {
		d.Policy.Counts.audited.Add(1)
	} else {
		d.Policy.Counts.denied.Add(1)
	}
}

// Class is the policies that bind a client. It is immutable and safe for concurrent use. The nil Class is bound by none.
type Class struct {
	// ID is another number for each class of a [Table], and not 0.
	ID uint32
	// Unknown says that it is not known yet which policies bind the client, and that it gets no answers until then.
	Unknown bool

	enforced, audited []*Policy // each in the order of their names
	filtered          []*Policy // with a Set
}

// NewClass returns the class of the clients that these policies bind. id is at least [FirstID].
func NewClass(id uint32, policies []*Policy) *Class {
	c := &Class{ID: id}
	for _, p := range policies {
		if p.Audit {
			c.audited = append(c.audited, p)
		} else {
			c.enforced = append(c.enforced, p)
		}
		if p.Set != nil {
			c.filtered = append(c.filtered, p)
		}
	}
	return c
}

// Policies returns the policies that bind c, first the enforced ones.
func (c *Class) Policies() []*Policy {
	if c == nil {
		return nil
	}
	return append(c.enforced[:len(c.enforced):len(c.enforced)], c.audited...)
}

// Filtered returns the policies of c that have a Set. The caller must not change them.
func (c *Class) Filtered() []*Policy {
	if c == nil {
		return nil
	}
	return c.filtered
}

// Judge returns what denies name, which is lower case and in wire form, to the clients of c. service is the one that it
// belongs to. It does not allocate.
func (c *Class) Judge(name []byte, service Service) (d Denial) {
	if c == nil {
		return Denial{}
	}
	d, allowed := judge(c.enforced, name, service)
	if d.Policy != nil && (d.Listed || !allowed) {
		return d
	}
	if len(c.audited) == 0 {
		return Denial{}
	}
	// What would be if they were enforced, together with the others.
	d, more := judge(c.audited, name, service)
	if d.Policy == nil || !d.Listed && (more || allowed) {
		return Denial{}
	}
	d.Audit = true
	return d
}

// judge returns the first denial by a list of policies, or else the first by the lack of an entry. allowed reports whether one
// allows name.
func judge(list []*Policy, name []byte, service Service) (d Denial, allowed bool) {
	for _, p := range list {
		found, at := p.match(name, service)
		if found&(denyExact|denyBelow) != 0 {
			return Denial{Policy: p, Listed: true, at: uint8(at)}, false //nolint:gosec // at most 254
		}
		if p.AllowOthers || found != 0 {
			allowed = true
		} else if d.Policy == nil {
			d.Policy = p
		}
	}
	return d, allowed
}
