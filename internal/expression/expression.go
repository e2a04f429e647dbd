// Package expression is the conditions under which a view takes a query, in the
// language and with the functions that CoreDNS has for them. An [Expression] is checked
// and compiled once, when the Corefile is read, and asked for each query; what it wants
// to know of the query it asks [Env]. The language has no loops but over lists that
// the expression itself makes, and the memory of one run is bounded.
package expression

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
)

// Env are what expressions ask of a query. The methods are called by one goroutine,
// and only while [Expression.Eval] runs.
type Env interface {
	Type() string  // A, AAAA, TYPE123
	Name() string  // in lower case, with the last dot
	Class() string // IN
	Proto() string // udp or tcp
	Size() int     // of the query, in bytes
	Bufsize() int  // of the reply that the client takes
	ID() int
	Opcode() int
	DO() bool
	Client() netip.AddrPort
	Server() netip.AddrPort
}

// Expression is a condition. It is immutable and safe for concurrent use.
type Expression struct {
	text string
	prog *vm.Program
}

// maxText bounds an expression, in bytes: a list of two hundred networks. Ten times as
// much belongs into an acl.
const maxText = 8 << 10

// maxMemory bounds what one run allocates, in the language's units of about one value.
// The longest expression names some thousand; the default of the language is a million,
// which is 16 MiB for each query.
const maxMemory = 10_000

// Parse reads an expression whose value is true or false. The error is one line.
func Parse(text string) (*Expression, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("it is longer than %d bytes", maxText)
	}
	r := newEvaluation()
	prog, err := expr.Compile(text, expr.Env(r.env), expr.DisableBuiltin("type"), expr.AsBool())
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // a drawing follows
		return nil, errors.New(first)
	}
	return &Expression{text: text, prog: prog}, nil
}

// String is the text it was read from.
func (e *Expression) String() string { return e.text }

// Eval reports whether e is true of f. What fails is not.
func (e *Expression) Eval(f Env) bool {
	r := evaluations.Get().(*evaluation)
	r.facts = f
	value, err := r.vm.Run(e.prog, r.env)
	r.facts = nil
	evaluations.Put(r)
	holds, ok := value.(bool)
	return err == nil && ok && holds
}

var evaluations = sync.Pool{New: func() any { return newEvaluation() }}

// evaluation is what one evaluation takes.
type evaluation struct {
	facts Env
	env   map[string]any
	vm    vm.VM
}

// newEvaluation makes a run with the functions that CoreDNS's expressions have. The addresses
// are without brackets and zones, those of IPv4 in their own form.
func newEvaluation() *evaluation {
	r := &evaluation{vm: vm.VM{MemoryBudget: maxMemory}}
	r.env = map[string]any{
		"type":        func() string { return r.facts.Type() },
		"name":        func() string { return r.facts.Name() },
		"class":       func() string { return r.facts.Class() },
		"proto":       func() string { return r.facts.Proto() },
		"size":        func() int { return r.facts.Size() },
		"bufsize":     func() int { return r.facts.Bufsize() },
		"id":          func() int { return r.facts.ID() },
		"opcode":      func() int { return r.facts.Opcode() },
		"do":          func() bool { return r.facts.DO() },
		"client_ip":   func() string { return host(r.facts.Client()) },
		"port":        func() string { return port(r.facts.Client()) },
		"server_ip":   func() string { return host(r.facts.Server()) },
		"server_port": func() string { return port(r.facts.Server()) },
		"incidr":      inCIDR,
		"metadata":    func(string) string { return "" }, // there is no plugin that gives any
	}
	return r
}

func host(a netip.AddrPort) string { return a.Addr().Unmap().WithZone("").String() }

func port(a netip.AddrPort) string { return fmt.Sprint(a.Port()) }

// inCIDR reports whether an address is in a net.
func inCIDR(addr, cidr string) (bool, error) {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return false, err
	}
	net, err := netip.ParsePrefix(cidr)
	if err != nil {
		return false, err
	}
	return net.Contains(a.Unmap().WithZone("")), nil
}
