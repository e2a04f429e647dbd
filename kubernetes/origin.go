package kubernetes

import (
	"slices"

	"github.com/nodens-dns/nodens/internal/wire"
)

// origin is one zone of a directive.
type origin struct {
	name    wire.Name
	svc     wire.Name // what services are below: "svc.<zone>"
	reverse bool
	imports bool // a multicluster zone
	// server and mailbox are the labels, in wire form, in front of the zone in the SOA's
	// MNAME and RNAME.
	server, mailbox string
	serial          *zoneSerial
	zonal           bool // has names by topology zone
}

// newOrigin returns the zone called name, a multicluster zone if it is among imports.
func newOrigin(v *View, name wire.Name, imports []wire.Name) origin {
	o := origin{
		name: name, svc: "\x03svc" + name,
		reverse: name.Under(arpa4) || name.Under(arpa6),
		imports: slices.Contains(imports, name),
		server:  "\x02ns\x03dns", mailbox: "\x0ahostmaster", serial: &v.serial,
	}
	if o.imports {
		o.serial = &v.importSerial
	}
	return o
}

// lacksServices reports whether o has no names of Services.
func (o *origin) lacksServices() bool { return o.reverse || o.imports }

// hasNamespace reports whether o has names in that namespace (a label in wire form).
func (o *origin) hasNamespace(v *View, ns []byte) bool {
	return v.hasNamespace(ns) || o.imports && v.importsInto(ns)
}

// absentServiceKey returns the key of the Service whose absence is the reason that name
// does not exist in o, or a stand-in for names that are below neither services nor pods and
// never exist. It returns nil if the name's existence depends on more.
func (o *origin) absentServiceKey(name []byte) []byte {
	rel := name[:len(name)-len(o.name)]
	var at [3]int // offsets of the last labels
	n := 0
	for off := 0; off < len(rel); off += 1 + int(rel[off]) {
		at[0], at[1], at[2] = at[1], at[2], off
		n++
	}
	last := string(rel[at[2]:])
	switch {
	case o.lacksServices() || last == "\x03pod" || last == "\x03svc" && n < 3:
		return nil
	case last == "\x03svc":
		return rel[at[0]:at[2]]
	}
	return rel[at[2]:]
}
