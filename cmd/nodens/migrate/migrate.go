// Package migrate turns the objects by which a cluster runs NodeLocal DNSCache into
// those by which it runs nodens.
//
// The objects come from files or from an API server, as trees without types, and are
// edited in place: whatever stands in them and is not known here is printed as it came.
// What comes out is decoded by the API's own types, and its Corefile read by nodens' own
// parser, before anybody sees it. Every change, and everything that nodens does in
// another way, is a [Note] that names the setting.
//
// It takes two steps, and which one is next is read off the DaemonSet. In the first the
// container gets the other image, and what it takes to hand over to its successor, which
// comes from nodens' own manifest. That rollout replaces pods the old way, because
// NodeLocal DNSCache shares no port; and the Corefile stays as it is, because pods of
// both kinds read it meanwhile. In the second, when all pods are nodens, the Corefile gets
// the `kubernetes` directive in the blocks that forward to the cluster's DNS, the service
// account the rights for it, and the DaemonSet the update strategy in which a new pod
// starts beside the old one.
package migrate

import (
	"errors"
	"fmt"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Request says what is wanted. Objects, Manifest, Flags and Known must be set.
type Request struct {
	// Objects are those of the cluster. They are not changed.
	Objects *Objects
	// Namespace and Name tell which DaemonSet it is, where several run NodeLocal
	// DNSCache; "" is any.
	Namespace, Name string
	// Image is nodens' image, in the registry of the cluster's nodes. "" leaves that of
	// a DaemonSet that runs nodens already.
	Image string
	// Domain is the cluster's domain; "" finds it in the Corefile.
	Domain string
	// Minimal replaces the image, and what would keep it from starting, and no more.
	Minimal bool
	// Manifest is nodens' own manifest, from which additions are taken.
	Manifest []byte
	// Flags reads arguments of the agent; its error names the one at fault.
	Flags func(args []string) (*Flags, error)
	// Known reports whether the agent has the flag of that name, and whether that takes
	// a value.
	Known func(name string) (known, value bool)
}

// Flags are what the agent's arguments say, as far as it matters here.
type Flags struct {
	// Conf, Base and KubeDNS are paths in the container; BaseGiven says that Base was
	// set and is read whether there is a Conf or not.
	Conf, Base, KubeDNS string
	BaseGiven           bool
	// HandoverDir is "" where the agent does not hand over.
	HandoverDir string
	// Config has the options of reading a Corefile that come from flags.
	Config config.Options
}

// Kind says what a note asks of its reader.
type Kind string

// The kinds of notes, in the order in which they are printed.
const (
	// Todo is something to do, or to decide, before or after the manifest is applied.
	Todo Kind = "to do"
	// Differs is something that nodens does in another way.
	Differs Kind = "differs"
	// Changed is what the manifest changes.
	Changed Kind = "changed"
)

// Note is one thing to know. Where names the object and the setting.
type Note struct {
	Kind        Kind
	Where, Text string
}

func (n Note) String() string { return fmt.Sprintf("%s: %s: %s", n.Kind, n.Where, n.Text) }

// Result is what to apply and what to know.
type Result struct {
	// Manifest is YAML, one document for each object.
	Manifest []byte
	Notes    []Note
}

// Run makes the manifest. On an error there is none; a Corefile that nodens would
// refuse is one, with all its faults.
func Run(r Request) (*Result, error) {
	if _, err := wire.ParseName(r.Domain); r.Domain != "" && err != nil {
		return nil, fmt.Errorf("-domain %q is no domain name: %w", r.Domain, err)
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
	return &Result{Manifest: text, Notes: m.sortedNotes()}, nil
}

// migration is one run of Make.
type migration struct {
	Request
	reference *reference
	pod       *agentPod
	flags     *Flags
	// secondStep says that it is the second step, and waits that it will be when the first
	// one's rollout is done.
	secondStep, rolloutPending bool
	// out are the objects to print besides the DaemonSet, in their order.
	out   []object
	notes []Note
}

// convertContainer has the container run nodens.
func (m *migration) convertContainer() error {
	if err := m.convertCommand(); err != nil {
		return err
	}
	if err := m.setImage(); err != nil {
		return err
	}
	return m.convertArgs()
}

// applyChanges makes all changes but those that every image needs.
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

// determineStep tells which step it is.
func (m *migration) determineStep() {
	already := m.handsOver() || !m.hostNetwork() && m.hasEnv(nodeNameVar)
	m.rolloutPending = already && m.isRollingOut()
	m.secondStep = already && !m.rolloutPending
	switch {
	case m.rolloutPending:
		m.note(Todo, "status", "the rollout is not done yet, so this is the first step still. Wait for `kubectl rollout status`, and run `nodens migrate` again")
	case !already:
		m.note(Todo, "the rollout", "this is the first step: pods are replaced the old way, and forward all that is not in their cache, as before. When `kubectl rollout status` says that it is done, run `nodens migrate` again and apply what it prints: then the cluster's names are answered on the node, and a new pod takes over from the old one")
	case !m.Objects.live:
		m.note(Todo, "the rollout", "this is the second step: apply it when `kubectl rollout status` says that the first is done")
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

// sortedNotes are the notes by kind, each once, otherwise in the order in which they came.
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

// errNoObjects is what is wrong where no object came.
var errNoObjects = errors.New("there is no object to migrate; name the files of NodeLocal DNSCache's DaemonSet and ConfigMap")
