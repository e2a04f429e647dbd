// These tests use defaultInterface, backendChoice and loopback, which are not exported.

package netsetup

// Inside the package: Node has unexported methods.

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

// fakeNode is a Node in memory, for tests of this package and of its caller. It
// keeps its promises as strictly as the kernel does: nothing can be added twice,
// and an address needs its link. Tests play the stranger on the node by calling
// its methods themselves; unlike a Node it may be called from several goroutines.
type fakeNode struct {
	// fail is asked before every call and may fail it; call is the name of the method,
	// or of the program of iptables, and its arguments. Nil fails nothing. It is called without the lock and may
	// block, or call other methods.
	fail func(call string) error

	// noDummy makes the kernel one without the driver.
	noDummy bool

	mu         sync.Mutex
	interfaces []Interface
	addrs      []Addr
	// ownerTables counts those who keep queries of the machine itself untracked.
	ownerTables    int
	conntrackAddrs [][]netip.Addr // of each call
	// conntrackTargets are the servers of each call of forget.
	conntrackTargets [][]netip.AddrPort
	tables           fakeTables
	removals         chan struct{}
	// defaultRoutes are what default routes lead over; rerouted tells of a change.
	defaultRoutes []defaultInterface
}

// newFakeNode returns a node with lo, which is up, and nothing else.
func newFakeNode() *fakeNode {
	return &fakeNode{
		interfaces: []Interface{{Name: loopback, Kind: "device", Up: true}},
		tables:     newFakeTables(),
		removals:   make(chan struct{}),
	}
}

// putInterface adds a link of any kind, or replaces the one of that name.
func (f *fakeNode) putInterface(l Interface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interfaces = append(slices.DeleteFunc(f.interfaces, func(x Interface) bool { return x.Name == l.Name }), l)
}

// dump prints everything on the node, sorted except for the rules of a chain, as iptables prints them.
// Two nodes with equal dumps are alike.
func (f *fakeNode) dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, l := range f.interfaces {
		lines = append(lines, fmt.Sprintf("link %s kind %s up %v", l.Name, l.Kind, l.Up))
	}
	for _, a := range f.addrs {
		lines = append(lines, fmt.Sprintf("addr %v on %s", a.Prefix, a.Interface))
	}
	slices.Sort(lines)
	if f.ownerTables > 0 {
		lines = append(lines, fmt.Sprintf("owner tables %d", f.ownerTables))
	}
	return strings.Join(append(lines, f.tables.dump()...), "\n")
}

// begin asks Fail and takes the lock. With an error the lock is not held.
func (f *fakeNode) begin(method string, arg any) error {
	if f.fail != nil {
		if err := f.fail(fmt.Sprintf("%s %v", method, arg)); err != nil {
			return err
		}
	}
	f.mu.Lock()
	return nil
}

func (f *fakeNode) find(name string) int {
	return slices.IndexFunc(f.interfaces, func(l Interface) bool { return l.Name == name })
}

// Interface implements Node.
func (f *fakeNode) Interface(name string) (Interface, error) {
	if err := f.begin("Interface", name); err != nil {
		return Interface{}, err
	}
	defer f.mu.Unlock()
	if i := f.find(name); i >= 0 {
		return f.interfaces[i], nil
	}
	return Interface{}, ErrNotFound
}

// AddDummy implements Node.
func (f *fakeNode) AddDummy(name string) error {
	if err := f.begin("AddDummy", name); err != nil {
		return err
	}
	defer f.mu.Unlock()
	switch {
	case f.noDummy:
		return ErrNoDummy
	case f.find(name) >= 0:
		return ErrExists
	}
	f.interfaces = append(f.interfaces, Interface{Name: name, Kind: kindDummy})
	return nil
}

// SetUp implements Node.
func (f *fakeNode) SetUp(link string) error {
	if err := f.begin("SetUp", link); err != nil {
		return err
	}
	defer f.mu.Unlock()
	i := f.find(link)
	if i < 0 {
		return ErrNotFound
	}
	f.interfaces[i].Up = true
	return nil
}

// DeleteInterface implements Node. Like the kernel it refuses to delete lo.
func (f *fakeNode) DeleteInterface(link string) error {
	if err := f.begin("DeleteInterface", link); err != nil {
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
	f.interfaces = slices.Delete(f.interfaces, i, i+1)
	f.addrs = slices.DeleteFunc(f.addrs, func(a Addr) bool { return a.Interface == link })
	return nil
}

// Addrs implements Node.
func (f *fakeNode) Addrs() ([]Addr, error) {
	if err := f.begin("Addrs", ""); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return slices.Clone(f.addrs), nil
}

// AddAddr implements Node.
func (f *fakeNode) AddAddr(a Addr) error {
	if err := f.begin("AddAddr", a); err != nil {
		return err
	}
	defer f.mu.Unlock()
	switch {
	case f.find(a.Interface) < 0:
		return ErrNotFound
	case slices.ContainsFunc(f.addrs, func(o Addr) bool { return sameAddr(o, a) }):
		return ErrExists
	}
	f.addrs = append(f.addrs, a)
	return nil
}

// DeleteAddr implements Node.
func (f *fakeNode) DeleteAddr(a Addr) error {
	if err := f.begin("DeleteAddr", a); err != nil {
		return err
	}
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.addrs, func(o Addr) bool { return sameAddr(o, a) })
	if i < 0 {
		return ErrNotFound
	}
	f.addrs = slices.Delete(f.addrs, i, i+1)
	return nil
}

// chooseBackend implements Node: iptables, run by the model.
func (f *fakeNode) chooseBackend(_ context.Context, _ Netfilter, locals []netip.Addr) (backendChoice, error) {
	return backendChoice{backend: &iptablesBackend{
		mode:        "model",
		programs:    [2]ruleProgram{fakeProgram{f, "iptables"}, fakeProgram{f, "ip6tables"}},
		addrs:       locals,
		tableLoaded: func(Family, string) bool { return true },
	}}, nil
}

// openOwnerTable implements Node.
func (f *fakeNode) openOwnerTable(locals []netip.Addr, dns uint16) (io.Closer, error) {
	if err := f.begin("openOwnerTable", locals); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	f.ownerTables++
	return fakeOwnerTable{f}, nil
}

// cleanEgressSets implements Node.
func (f *fakeNode) cleanEgressSets() (removed, used int, err error) { return 0, 0, nil }

// deleteConntrack implements Node.
func (f *fakeNode) deleteConntrack(addrs []netip.Addr, _ uint16, servers []netip.AddrPort) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conntrackAddrs = append(f.conntrackAddrs, addrs)
	f.conntrackTargets = append(f.conntrackTargets, servers)
	return 0, nil
}

type fakeOwnerTable struct{ f *fakeNode }

// Close implements io.Closer.
func (o fakeOwnerTable) Close() error {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	o.f.ownerTables--
	return nil
}

// watchRemovals implements Node: Loss is what tells of one.
func (f *fakeNode) watchRemovals(ctx context.Context, _ Plan) (addresses, rules <-chan struct{}) {
	both := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	go func() {
		defer close(both[0])
		for {
			select {
			case <-ctx.Done():
				return
			case _, open := <-f.removals:
				if !open {
					close(both[1])
					<-ctx.Done()
					return
				}
				both[0] <- struct{}{}
				both[1] <- struct{}{}
			}
		}
	}()
	return both[0], both[1]
}

// defaultInterfaces implements Node.
func (f *fakeNode) defaultInterfaces() ([]defaultInterface, error) {
	if err := f.begin("defaultInterfaces", ""); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return slices.Clone(f.defaultRoutes), nil
}

// setDefaults has default routes lead over these interfaces, and nobody told.
func (f *fakeNode) setDefaults(over ...defaultInterface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.defaultRoutes = over
}

// changeDefaults is setDefaults, of which the node tells; it returns when somebody has heard it.
func (f *fakeNode) changeDefaults(over ...defaultInterface) {
	f.setDefaults(over...)
	f.signalRemoval()
}

// signalRemoval has the node tell of a loss, and returns when somebody has heard it.
func (f *fakeNode) signalRemoval() { f.removals <- struct{}{} }

// fakeProgram implements ruleProgram on the tables of a fakeNode.
type fakeProgram struct {
	node *fakeNode
	name string
}

// run runs a command line, unless fail refuses it.
func (p fakeProgram) run(ctx context.Context, input, program string, args ...string) (output string, err error) {
	err = retryLocked(ctx, func() error {
		if err := p.node.begin(program, strings.Join(args, " ")+" "+input); err != nil {
			return err
		}
		defer p.node.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		output, err = p.node.tables.runCommand(input, program, args)
		return err
	})
	return output, err
}

// list implements ruleProgram.
func (p fakeProgram) list(ctx context.Context, table, chain string) ([]string, error) {
	output, err := p.run(ctx, "", p.name, "-t", table, "-S", chain)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(output, "\n"), "\n"), nil
}

// remove implements ruleProgram.
func (p fakeProgram) remove(ctx context.Context, table string, rules, chains []string) error {
	script, deletions := "*"+table+"\n", ""
	for _, line := range rules {
		script += "-D " + strings.TrimPrefix(line, "-A ") + "\n"
	}
	for _, chain := range chains {
		script += ":" + chain + " - [0:0]\n"
		deletions += "-X " + chain + "\n"
	}
	return p.restore(ctx, script+deletions+"COMMIT\n")
}

// restore implements ruleProgram.
func (p fakeProgram) restore(ctx context.Context, script string) error {
	_, err := p.run(ctx, script, p.name+"-restore", "--noflush")
	return err
}

// runIptables plays a stranger's command, such as "ip6tables -t raw -F OUTPUT", or the
// input of iptables-restore behind "iptables-restore".
func (f *fakeNode) runIptables(command string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	line, input, _ := strings.Cut(command, "\n")
	words := strings.Fields(line)
	_, err := f.tables.runCommand(input, words[0], words[1:])
	return err
}

// sameAddr reports whether a and b are the same address on the same interface.
func sameAddr(a, b Addr) bool { return a.Interface == b.Interface && a.Prefix == b.Prefix }
