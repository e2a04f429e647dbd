package netsetup

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Values of Config.ExternalInterfaces other than a list.
const (
	ExternalAuto = "auto"
	ExternalNone = "none"
)

// maxExternal bounds the external interfaces. Every packet to this node passes a rule or two for
// each.
const maxExternal = 16

// interfaceNamePattern matches names that rules of every backend can contain: nft and iptables
// treat some characters as wildcards.
var interfaceNamePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// externalNames parses Config.ExternalInterfaces. names are sorted, without duplicates, and nil
// for none; auto: they are the interfaces of the default routes.
func externalNames(setting string) (names []string, auto bool, err error) {
	switch setting {
	case "", ExternalAuto:
		return nil, true, nil
	case ExternalNone:
		return nil, false, nil
	}
	for name := range strings.SplitSeq(setting, ",") {
		name = strings.TrimSpace(name)
		switch {
		case !interfaceNamePattern.MatchString(name):
			return nil, false, fmt.Errorf("--external-interfaces: %q is not the name of an interface; "+
				"give auto, none, or names separated by commas, such as eth0,eth1", name)
		case name == loopback:
			return nil, false, errors.New("--external-interfaces: lo carries the node's own queries; leave it out")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxExternal {
		return nil, false, fmt.Errorf("--external-interfaces: %d names; give %d at most", len(names), maxExternal)
	}
	return names, false, nil
}

// defaultInterface is the interface of a default route of this node.
type defaultInterface struct {
	name string
	// kind is the kernel's name of the driver; "device" for hardware.
	kind string
	// mayCarryPods: pods of this node use the interface, or may do so.
	mayCarryPods bool
}

// splitExternal splits the interfaces of default routes, sorted by name. external are those that
// no pod of this node uses. open are the others, each with its kind, including those that rules
// can't name and those beyond maxExternal.
func splitExternal(found []defaultInterface) (external, open []string) {
	found = slices.SortedFunc(slices.Values(found), func(a, b defaultInterface) int { return strings.Compare(a.name, b.name) })
	for _, d := range found {
		if d.mayCarryPods || !interfaceNamePattern.MatchString(d.name) || len(external) == maxExternal {
			open = append(open, d.name+" ("+d.kind+")")
		} else {
			external = append(external, d.name)
		}
	}
	return external, open
}

// externalHint says what to do if the external interfaces are unknown.
const externalHint = "name them with --external-interfaces"

// readDefaultRoutes updates the external interfaces of the desired rules from the default routes. It
// does not write the rules. If there is no default route, or the routes can't be read, the last known
// interfaces stay: a forged router advertisement that withdraws a route must not open the node.
func (s *Setup) readDefaultRoutes() {
	if !s.plan.followsRoutes {
		return
	}
	found, err := s.node.defaultInterfaces()
	if err != nil {
		s.counters.fail(InterfaceCheck)
		s.log.Warn("external interfaces unknown, keeping the last known", "interfaces", s.rules.external,
			"err", &Error{Type: InterfaceCheck, Op: "listing default routes", Hint: externalHint, Err: err})
		return
	}
	if len(found) == 0 {
		return
	}
	external, open := splitExternal(found)
	if len(open) > 0 && !slices.Equal(open, s.notExternal) {
		s.log.Warn("default route over an interface that pods may use: hosts behind it reach the agent; "+
			"if no pod uses it, name it with --external-interfaces", "interfaces", open)
	}
	s.notExternal = open
	if !slices.Equal(external, s.rules.external) {
		s.rules.external, s.externalChanged = external, true
	}
}
