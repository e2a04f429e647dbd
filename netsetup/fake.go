package netsetup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// Fake is a Node in memory, for tests of this package and of its caller. It
// keeps its promises as strictly as the kernel does: nothing can be added twice,
// and an address needs its link. Tests play the stranger on the node by calling
// its methods themselves; unlike a Node it may be called from several goroutines.
type Fake struct {
	// Fail is asked before every call and may fail it; call is the name of the method,
	// or of the program of iptables, and its arguments. Nil fails nothing. It is called without the lock and may
	// block, or call other methods.
	Fail func(call string) error

	// NoDummy and NoIPv6 make the kernel one without the driver, or the protocol.
	NoDummy, NoIPv6 bool

	mu    sync.Mutex
	links []Link
	addrs []Addr
	// owners counts those who keep queries of the machine itself untracked.
	owners int
	// kept are the servers of each call of forget.
	kept   [][]netip.AddrPort
	tables model
	losses chan struct{}
	// defaults are what default routes lead over; rerouted tells of a change.
	defaults []defaultInterface
	rerouted chan struct{}
}

// NewFake returns a node with lo, which is up, and nothing else.
func NewFake() *Fake {
	return &Fake{
		links:  []Link{{Name: loopback, Kind: "device", Up: true}},
		tables: newModel(),
		losses: make(chan struct{}),

		rerouted: make(chan struct{}),
	}
}

// PutLink adds a link of any kind, or replaces the one of that name.
func (f *Fake) PutLink(l Link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links = append(slices.DeleteFunc(f.links, func(x Link) bool { return x.Name == l.Name }), l)
}

// Dump prints everything on the node, sorted except for the rules of a chain, as iptables prints them.
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
	if f.owners > 0 {
		lines = append(lines, fmt.Sprintf("owners %d", f.owners))
	}
	return strings.Join(append(lines, f.tables.dump()...), "\n")
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

// choose implements Node: iptables, run by the model.
func (f *Fake) choose(_ context.Context, _ Netfilter, locals []netip.Addr) (choice, error) {
	return choice{filter: &iptables{
		flavour:  "model",
		programs: [2]string{"iptables", "ip6tables"},
		locals:   locals,
		run:      f.run,
		loaded:   func(Family, string) bool { return true },
	}}, nil
}

// own implements Node.
func (f *Fake) own(locals []netip.Addr, dns uint16) (io.Closer, error) {
	if err := f.enter("own", locals); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	f.owners++
	return owner{f}, nil
}

// forget implements Node.
func (f *Fake) forget(_ []netip.Addr, _ uint16, servers []netip.AddrPort) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = append(f.kept, servers)
	return 0, nil
}

type owner struct{ f *Fake }

// Close implements io.Closer.
func (o owner) Close() error {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	o.f.owners--
	return nil
}

// events implements Node: Loss is what tells of one.
func (f *Fake) events(context.Context, Plan) <-chan struct{} { return f.losses }

// defaultInterfaces implements Node.
func (f *Fake) defaultInterfaces() ([]defaultInterface, error) {
	if err := f.enter("defaultInterfaces", ""); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return slices.Clone(f.defaults), nil
}

// routes implements Node: reroute is what tells of a change.
func (f *Fake) routes(context.Context) <-chan struct{} { return f.rerouted }

// setDefaults has default routes lead over these interfaces, and nobody told.
func (f *Fake) setDefaults(over ...defaultInterface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.defaults = over
}

// reroute is setDefaults, of which the node tells; it returns when somebody has heard it.
func (f *Fake) reroute(over ...defaultInterface) {
	f.setDefaults(over...)
	f.rerouted <- struct{}{}
}

// Loss has the node tell of a loss, and returns when somebody has heard it.
func (f *Fake) Loss() { f.losses <- struct{}{} }

// run is the runner: it plays the programs of iptables.
func (f *Fake) run(ctx context.Context, input, program string, args ...string) (string, error) {
	if err := f.enter(program, strings.Join(args, " ")+" "+input); err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return f.tables.play(input, program, args)
}

// Iptables plays a stranger's command, such as "ip6tables -t raw -F OUTPUT", or the
// input of iptables-restore behind "iptables-restore".
func (f *Fake) Iptables(command string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line, input, _ := strings.Cut(command, "\n")
	words := strings.Fields(line)
	_, err := f.tables.play(input, words[0], words[1:])
	return err
}
