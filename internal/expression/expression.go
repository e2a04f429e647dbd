// Package expression evaluates the expressions of the directives `view` and `template`, in the language and
// with the functions of CoreDNS's view plugin. An [Expression] is compiled once, when the
// Corefile is read, and evaluated for each query with the query's [Env]. The language has
// loops only over lists in the expression itself, and the memory of an evaluation is bounded.
package expression

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
)

// Env is what an expression can use of a query. Only the goroutine that calls
// [Expression.Eval] calls its methods, while Eval runs.
type Env interface {
	Type() string  // A, AAAA, TYPE123
	Name() string  // in lower case, with the trailing dot
	Class() string // IN
	Proto() string // udp or tcp
	Size() int     // of the query, in bytes
	Bufsize() int  // the largest reply that the client accepts, in bytes
	ID() int
	Opcode() int
	DO() bool
	Client() netip.AddrPort
	Server() netip.AddrPort
	Metadata(name string) string // "" is none
}

// Expression is a condition. It is immutable and safe for concurrent use.
type Expression struct {
	text string
	prog *vm.Program
}

// maxText is the maximum length of an expression, in bytes: a list of two hundred networks.
const maxText = 8 << 10

// maxMemory bounds the memory of an evaluation, in the library's units of about one value.
// The longest expression has some thousand values. The library's default is a million, or
// 16 MiB for each query.
const maxMemory = 10_000

// Parse compiles an expression whose value is a bool. Its error is one line.
func Parse(text string) (*Expression, error) {
	prog, err := compile(text, expr.Env(newEvaluation().env), expr.DisableBuiltin("type"), expr.AsBool())
	if err != nil {
		return nil, err
	}
	return &Expression{text: text, prog: prog}, nil
}

// String returns the text that was parsed.
func (e *Expression) String() string { return e.text }

// Eval reports whether e is true for f. If the evaluation fails, it is false.
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

// evaluation is the state of one evaluation; it is reused.
type evaluation struct {
	facts Env
	env   map[string]any
	vm    vm.VM
}

// newEvaluation makes an evaluation with the functions of CoreDNS's expressions. Addresses
// have no brackets and no zone, and IPv4 addresses are not mapped to IPv6.
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
		"metadata":    func(name string) string { return r.facts.Metadata(name) },
	}
	return r
}

func host(a netip.AddrPort) string { return a.Addr().Unmap().WithZone("").String() }

func port(a netip.AddrPort) string { return fmt.Sprint(a.Port()) }

// inCIDR reports whether addr is in cidr.
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
