package netsetup

import (
	"context"
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

// maxExternal bounds the external interfaces. Each is a rule or two that packets to this node
// pass; a node has a default route over one, or over a few where it has several ways out.
const maxExternal = 16

// interfaceNamePattern are the names that rules can have in them, in the words of all filters: nft
// and iptables take some characters for a pattern.
var interfaceNamePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// externalNames reads Config.ExternalInterfaces: the names, in order and each once, or that
// they are those of the default routes.
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
			return nil, false, fmt.Errorf("-external-interfaces: %q is not the name of an interface; "+
				"give auto, none, or names separated by commas, such as eth0,eth1", name)
		case name == loopback:
			return nil, false, errors.New("-external-interfaces: lo is where the node's own queries come in; leave it out")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxExternal {
		return nil, false, fmt.Errorf("-external-interfaces: %d names; give %d at most", len(names), maxExternal)
	}
	return names, false, nil
}

// splitExternal picks from the interfaces that default routes lead over those that no pod of
// this node sends by, in order. open are the others, each with its kind: what can't be named
// in rules, and what is more than maxExternal, is among them.
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

// externalHint is what to do where nobody knows the external interfaces.
const externalHint = "name them with -external-interfaces"

// readDefaultRoutes has the rules' external interfaces be those of the default routes, and reports
// whether they have changed; the rules are still to be written then. Where there is no default
// route at all, or the routes can't be read, the last known ones stay: a forged router
// advertisement, which ends a route, must not open the node.
func (s *Setup) readDefaultRoutes() (changed bool) {
	if !s.plan.followsRoutes {
		return false
	}
	found, err := s.node.defaultInterfaces()
	if err != nil {
		s.counters.fail(InterfaceCheck)
		s.log.Warn("external interfaces unknown, keeping the last ones", "interfaces", s.rules.external,
			"err", &Error{Type: InterfaceCheck, Op: "listing default routes", Hint: externalHint, Err: err})
		return false
	}
	if len(found) == 0 {
		return false
	}
	external, open := splitExternal(found)
	if len(open) > 0 && !slices.Equal(open, s.notExternal) {
		s.log.Warn("a default route leads over an interface that pods may use too, so the rules let in hosts behind it; "+
			"if no pod uses it, name it with -external-interfaces", "interfaces", open)
	}
	s.notExternal = open
	if slices.Equal(external, s.rules.external) {
		return false
	}
	s.rules.external, s.externalChanged = external, true
	return true
}

// followDefaultRoutes has the rules follow the default routes, at once.
func (s *Setup) followDefaultRoutes(ctx context.Context) {
	if s.acquire(ctx) != nil {
		return // shutting down
	}
	defer s.release()
	if !s.keepRules || !s.readDefaultRoutes() {
		return
	}
	if _, err := s.ensureRules(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("re-check of the rules failed, trying again", "in", s.interval, "err", err)
	}
}
