package netsetup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Fake is a Node in memory, for tests of this package and of its caller. It
// keeps its promises as strictly as the kernel does: nothing can be added twice,
// and an address needs its link. Tests play the stranger on the node by calling
// its methods themselves; unlike a Node it may be called from several goroutines.
type Fake struct {
	// Fail is asked before every call and may fail it; call is the method's name
	// and its argument. Nil fails nothing. It is called without the lock and may
	// block, or call other methods.
	Fail func(call string) error

	// NoDummy and NoIPv6 make the kernel one without the driver, or the protocol.
	NoDummy, NoIPv6 bool

	mu    sync.Mutex
	links []Link
	addrs []Addr
	rules []Rule // of all chains; those of one chain in its order
}

// NewFake returns a node with lo, which is up, and nothing else.
func NewFake() *Fake {
	return &Fake{links: []Link{{Name: loopback, Kind: "device", Up: true}}}
}

// PutLink adds a link of any kind, or replaces the one of that name.
func (f *Fake) PutLink(l Link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = append(slices.DeleteFunc(f.links, func(x Link) bool { return x.Name == l.Name }), l)
}

// Dump prints everything on the node, sorted except for the rules of a chain.
// Two nodes with equal dumps are alike.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, l := range f.links {
		lines = append(lines, fmt.Sprintf("link %s kind %s up %v", l.Name, l.Kind, l.Up))
	}
	for _, a := range f.addrs {
		lines = append(lines, fmt.Sprintf("addr %v on %s", a.Prefix, a.Link))
	}
	slices.Sort(lines)
	rules := slices.Clone(f.rules)
	slices.SortStableFunc(rules, func(a, b Rule) int {
		return strings.Compare(a.Family.String()+a.Table+a.Chain, b.Family.String()+b.Table+b.Chain)
	})
	for _, r := range rules {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

// enter asks Fail and takes the lock. With an error the lock is not held.
func (f *Fake) enter(method string, arg any) error {
	if f.Fail != nil {
		if err := f.Fail(fmt.Sprintf("%s %v", method, arg)); err != nil {
			return err
		}
	}
	f.mu.Lock()
	return nil
}

func (f *Fake) find(name string) int {
	return slices.IndexFunc(f.links, func(l Link) bool { return l.Name == name })
}

// Link implements Node.
func (f *Fake) Link(name string) (Link, error) {
	if err := f.enter("Link", name); err != nil {
		return Link{}, err
	}
	defer f.mu.Unlock()
	if i := f.find(name); i >= 0 {
		return f.links[i], nil
	}
	return Link{}, ErrNotFound
}

// AddLink implements Node.
func (f *Fake) AddLink(name string) error {
	if err := f.enter("AddLink", name); err != nil {
		return err
	}
	defer f.mu.Unlock()
	switch {
	case f.NoDummy:
		return ErrNoDummy
	case f.find(name) >= 0:
		return ErrExists
	}
	f.links = append(f.links, Link{Name: name, Kind: kindDummy})
	return nil
}

// SetUp implements Node.
func (f *Fake) SetUp(link string) error {
	if err := f.enter("SetUp", link); err != nil {
		return err
	}
	defer f.mu.Unlock()
	i := f.find(link)
	if i < 0 {
		return ErrNotFound
	}
	f.links[i].Up = true
	return nil
}

// DeleteLink implements Node. Like the kernel it refuses to delete lo.
func (f *Fake) DeleteLink(link string) error {
	if err := f.enter("DeleteLink", link); err != nil {
		return err
	}
	defer f.mu.Unlock()
	i := f.find(link)
	switch {
	case i < 0:
		return ErrNotFound
	case link == loopback:
		return errors.New("operation not supported")
	}
	f.links = slices.Delete(f.links, i, i+1)
	f.addrs = slices.DeleteFunc(f.addrs, func(a Addr) bool { return a.Link == link })
	return nil
}

// Addrs implements Node.
func (f *Fake) Addrs() ([]Addr, error) {
	if err := f.enter("Addrs", ""); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return slices.Clone(f.addrs), nil
}

// AddAddr implements Node.
func (f *Fake) AddAddr(a Addr) error {
	if err := f.enter("AddAddr", a); err != nil {
		return err
	}
	defer f.mu.Unlock()
	switch {
	case f.find(a.Link) < 0:
		return ErrNotFound
	case slices.Contains(f.addrs, a):
		return ErrExists
	case f.NoIPv6 && a.Prefix.Addr().Is6():
		return ErrNoIPv6
	}
	f.addrs = append(f.addrs, a)
	return nil
}

// DeleteAddr implements Node.
func (f *Fake) DeleteAddr(a Addr) error {
	if err := f.enter("DeleteAddr", a); err != nil {
		return err
	}
	defer f.mu.Unlock()
	i := slices.Index(f.addrs, a)
	if i < 0 {
		return ErrNotFound
	}
	f.addrs = slices.Delete(f.addrs, i, i+1)
	return nil
}

func (r Rule) equal(o Rule) bool {
	return r.Family == o.Family && r.Table == o.Table && r.Chain == o.Chain && slices.Equal(r.Spec, o.Spec)
}

// HasRule implements Node.
func (f *Fake) HasRule(r Rule) (bool, error) {
	if err := f.enter("HasRule", r); err != nil {
		return false, err
	}
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.rules, r.equal), nil
}

// InsertRule implements Node.
func (f *Fake) InsertRule(r Rule) error {
	if err := f.enter("InsertRule", r); err != nil {
		return err
	}
	defer f.mu.Unlock()
	f.rules = slices.Insert(f.rules, 0, r)
	return nil
}

// DeleteRule implements Node.
func (f *Fake) DeleteRule(r Rule) (bool, error) {
	if err := f.enter("DeleteRule", r); err != nil {
		return false, err
	}
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.rules, r.equal)
	if i < 0 {
		return false, nil
	}
	f.rules = slices.Delete(f.rules, i, i+1)
	return true, nil
}

// ListRules implements Node.
func (f *Fake) ListRules(family Family, table, chain string) ([]string, error) {
	if err := f.enter("ListRules", family.String()+" "+table+" "+chain); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	lines := []string{"-P " + chain + " ACCEPT"}
	for _, r := range f.rules {
		if r.Family == family && r.Table == table && r.Chain == chain {
			_, spec, _ := strings.Cut(r.String(), " -I "+chain+" 1 ")
			lines = append(lines, "-A "+chain+" "+spec)
		}
	}
	return lines, nil
}
