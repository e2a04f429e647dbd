package expression

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// Script is what a template computes of a query: variables, and conditions that all must be true. Besides
// the functions of an [Expression] it has group(NAME), the group of a pattern by name or number. It
// is made by [Script.AddVariable] and [Script.AddCondition] and immutable afterwards; then it is safe for concurrent
// use. A nil Script has no variables and no conditions.
type Script struct {
	samples    map[string]any // a value of each variable's type
	variables  []variable
	conditions []*vm.Program
}

// variable is a name and how its value is computed.
type variable struct {
	name string
	prog *vm.Program
}

// identifier is what CoreDNS takes as a variable's name.
var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Len returns the number of variables and conditions.
func (s *Script) Len() int { return len(s.variables) + len(s.conditions) }

// AddVariable adds a variable with the value of an expression, which may use the variables before it. A name is set
// once. The error is one line.
func (s *Script) AddVariable(name, text string) error {
	env := s.env(newEvaluation(), nil)
	_, function := env[name]
	_, known := builtin.Index[name]
	switch {
	case !identifier.MatchString(name):
		return fmt.Errorf("%q is no name of a variable; write letters, digits and _", name)
	case slices.ContainsFunc(s.variables, func(v variable) bool { return v.name == name }):
		return fmt.Errorf("the variable %q is set already; give this one another name", name)
	case function || known || !isIdentifier(name):
		return fmt.Errorf("the name %q is reserved; write another one", name)
	}
	prog, err := compile(text, expr.Env(env), expr.DisableBuiltin("type"))
	if err != nil {
		return err
	}
	if s.samples == nil {
		s.samples = make(map[string]any)
	}
	s.samples[name] = new(any)
	if kind := prog.Node().Type(); kind != nil && kind.Kind() != reflect.Interface {
		s.samples[name] = reflect.Zero(kind).Interface()
	}
	s.variables = append(s.variables, variable{name, prog})
	return nil
}

// AddCondition adds an expression that must be true. It may use the variables before it. Its error is
// one line.
func (s *Script) AddCondition(text string) error {
	prog, err := compile(text, expr.Env(s.env(newEvaluation(), nil)), expr.DisableBuiltin("type"), expr.AsBool())
	if err == nil {
		s.conditions = append(s.conditions, prog)
	}
	return err
}

// compile compiles an expression.
func compile(text string, options ...expr.Option) (*vm.Program, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxText)
	}
	prog, err := expr.Compile(text, options...)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // the rest points at the error in the text
		return nil, errors.New(first)
	}
	return prog, nil
}

// isIdentifier reports whether the language reads name as an identifier, and not as a word of its own.
func isIdentifier(name string) bool {
	tree, err := parser.Parse(name)
	if err != nil {
		return false
	}
	node, ok := tree.Node.(*ast.IdentifierNode)
	return ok && node.Value == name
}

// env returns r's environment with the groups and a sample of each variable.
func (s *Script) env(r *evaluation, groups map[string]string) map[string]any {
	env := maps.Clone(r.env)
	env["group"] = func(name any) string {
		switch name := name.(type) {
		case int:
			return groups[strconv.Itoa(name)]
		case string:
			return groups[name]
		}
		return ""
	}
	maps.Copy(env, s.samples)
	return env
}

// Run computes the variables, and reports whether all conditions are true. groups are the groups of a
// pattern, by number and by name. The error says which evaluation fails.
func (s *Script) Run(f Env, groups map[string]string) (variables map[string]any, holds bool, err error) {
	if s == nil {
		return nil, true, nil
	}
	r := evaluations.Get().(*evaluation)
	r.facts = f
	defer func() {
		r.facts = nil
		evaluations.Put(r)
	}()
	env := s.env(r, groups)
	variables = make(map[string]any, len(s.variables))
	for _, v := range s.variables {
		value, err := r.vm.Run(v.prog, env)
		if err != nil {
			return nil, false, fmt.Errorf("variable %s: %w", v.name, err)
		}
		env[v.name], variables[v.name] = value, value
	}
	for _, c := range s.conditions {
		value, err := r.vm.Run(c, env)
		if err != nil {
			return nil, false, fmt.Errorf("expression: %w", err)
		}
		if holds, ok := value.(bool); !ok || !holds {
			return variables, false, nil
		}
	}
	return variables, true, nil
}
