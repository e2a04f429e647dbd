// Package migrate turns the objects with which a cluster runs NodeLocal DNSCache into
// objects with which it runs nodens.
//
// The objects come from files or from an API server. They are edited in place, as trees
// without types, so that unknown fields are printed as they came. Before anything is
// printed, the result is decoded as API types, and nodens' own parser reads its Corefile.
// Every change, and every difference in nodens' behaviour, is a [Note] that names the
// setting.
//
// A migration takes two steps; the DaemonSet tells which one is next. The first step
// replaces the image and adds what the container needs to hand over to its successor, taken
// from nodens' own manifest. Its rollout replaces pods one after the other, since NodeLocal
// DNSCache shares no port, and the Corefile stays unchanged, since both kinds of pods read
// it. The second step, once all pods run nodens, adds the `kubernetes` directive to the
// blocks that forward to the cluster's DNS, the RBAC rules for it, and the update strategy
// with which a new pod starts beside the old one.
package migrate

import (
	"errors"
	"fmt"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Request is the input of [Run]. Objects, Manifest, Flags and Known must be set.
type Request struct {
	// Objects are the cluster's. They are not changed.
	Objects *Objects
	// Namespace and Name select the DaemonSet if several run NodeLocal DNSCache; "" is any.
	Namespace, Name string
	// Image is nodens' image in a registry that the nodes can pull from. "" keeps the image
	// of a DaemonSet that already runs nodens.
	Image string
	// Domain is the cluster's domain; "" takes it from the Corefile.
	Domain string
	// Minimal replaces the image and what would prevent it from starting, nothing else.
	Minimal bool
	// HelmValues makes values for nodens' chart, which is installed in one step.
	HelmValues bool
	// ClusterDNS is the address of the cluster DNS, for [Check]; "" takes it from the Services.
	ClusterDNS string
	// Manifest is nodens' own manifest, from which additions are taken.
	Manifest []byte
	// Flags parses arguments of the agent. Its error names the one at fault.
	Flags func(args []string) (*Flags, error)
	// Known reports whether the agent has the flag of that name, and whether the flag takes a
	// value.
	Known func(name string) (known, value bool)
}

// Flags are the agent's flags that matter here.
type Flags struct {
	// Conf, Base and KubeDNS are paths in the container. BaseGiven says that Base was set and
	// is read even if there is a Conf.
	Conf, Base, KubeDNS string
	BaseGiven           bool
	// HandoverDir is "" if the agent does not hand over.
	HandoverDir string
	// Config has the Corefile options that are set by flags.
	Config config.Options
}

// Kind is what a note asks of its reader.
type Kind string

// The kinds of notes, in the order in which they are printed.
const (
	// Todo must be done, or decided, before or after the manifest is applied.
	Todo Kind = "to do"
	// Differs is a difference in nodens' behaviour.
	Differs Kind = "differs"
	// Changed is a change that the manifest makes.
	Changed Kind = "changed"
)

// Note is one thing to know. Where names the object and the setting.
type Note struct {
	Kind        Kind
	Where, Text string
}

func (n Note) String() string { return fmt.Sprintf("%s: %s: %s", n.Kind, n.Where, n.Text) }

// Result is the output of [Run].
type Result struct {
	// Manifest is YAML, one document for each object.
	Manifest []byte
	// Values are those of nodens' chart, if they are asked for.
	Values []byte
	Notes  []Note
	// Namespace and Name are the DaemonSet's.
	Namespace, Name string
}

// Run makes the manifest. It returns an error, and no manifest, if the input can't be
// migrated; the error for a Corefile that nodens would refuse lists all its errors.
func Run(r Request) (*Result, error) {
	if _, err := wire.ParseName(r.Domain); r.Domain != "" && err != nil {
		return nil, fmt.Errorf("--domain %q is no domain name: %w", r.Domain, err)
	}
	own, err := readReference(r.Manifest)
	if err != nil {
		return nil, err
	}
	p, err := r.findDaemonSet()
	if err != nil {
		return nil, err
	}
	m := &migration{Request: r, reference: own, pod: p}
	m.renewVersion()
	if err := m.convertContainer(); err != nil {
		return nil, err
	}
	c, err := m.loadCorefile()
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := m.applyChanges(c); err != nil {
		return nil, err
	}
	m.addNotes(c)
	text, err := m.printManifest()
	if err != nil {
		return nil, err
	}
	values, err := m.helmValues(c)
	if err != nil {
		return nil, err
	}
	return &Result{Manifest: text, Values: values, Notes: m.sortedNotes(), Namespace: m.pod.daemonSet.namespace(), Name: m.pod.daemonSet.name()}, nil
}

// migration is the state of one Run.
type migration struct {
	Request
	reference *reference
	pod       *agentPod
	flags     *Flags
	// secondStep says that this is the second step; rolloutPending that it will be when the
	// first rollout is complete.
	secondStep, rolloutPending bool
	// clusterDNSUnknown says that the address of the cluster DNS was looked up and not found.
	clusterDNSUnknown bool
	// out are the objects to print in addition to the DaemonSet, in order.
	out   []object
	notes []Note
}

// convertContainer makes the container run nodens.
func (m *migration) convertContainer() error {
	if err := m.convertCommand(); err != nil {
		return err
	}
	if err := m.setImage(); err != nil {
		return err
	}
	m.removeHooks()
	return m.convertArgs()
}

// applyChanges makes all changes except those that convertContainer makes.
func (m *migration) applyChanges(c *corefile) error {
	if m.Minimal {
		return nil
	}
	m.determineStep()
	m.setServiceAccount()
	if err := m.enableKubernetes(c); err != nil {
		return err
	}
	return m.enableHandover()
}

// determineStep finds out which step this is.
func (m *migration) determineStep() {
	if m.HelmValues {
		m.secondStep = true
		return
	}
	already := m.handsOver() || !m.hostNetwork() && m.hasEnv(nodeNameVar)
	m.rolloutPending = already && m.isRollingOut()
	m.secondStep = already && !m.rolloutPending
	switch {
	case m.rolloutPending:
		m.note(Todo, "status", "the rollout is not complete, so this is still the first step. Wait for `kubectl rollout status`, and run `nodens migrate` again")
	case !already:
		m.note(Todo, "the rollout", "this is the first step: pods are replaced one after the other, and forward cache misses as before. When `kubectl rollout status` reports success, run `nodens migrate` again and apply its output: then the agent answers the cluster's names on the node, and a new pod takes over from the old one")
	case m.pod.daemonSet.child("status") == nil:
		m.note(Todo, "the rollout", "this is the second step: apply it when `kubectl rollout status` reports that the first is complete")
	}
}

// note adds a note about a setting of the DaemonSet.
func (m *migration) note(kind Kind, setting, format string, args ...any) {
	m.notes = append(m.notes, Note{Kind: kind, Where: m.pod.daemonSet.describe() + ", " + setting, Text: fmt.Sprintf(format, args...)})
}

// noteFor adds a note about another object.
func (m *migration) noteFor(kind Kind, where, format string, args ...any) {
	m.notes = append(m.notes, Note{Kind: kind, Where: where, Text: fmt.Sprintf(format, args...)})
}

// sortedNotes returns the notes by kind without duplicates.
func (m *migration) sortedNotes() []Note {
	var list []Note
	seen := make(map[Note]bool)
	for _, kind := range []Kind{Todo, Differs, Changed} {
		for _, n := range m.notes {
			if n.Kind == kind && !seen[n] {
				seen[n] = true
				list = append(list, n)
			}
		}
	}
	return list
}

// errNoObjects is an empty input.
var errNoObjects = errors.New("no object to migrate; name the files of NodeLocal DNSCache's DaemonSet and ConfigMap")
