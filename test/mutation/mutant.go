package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of the code.
type mutant struct {
	file         string // below the root
	line, column int    // of the operator, in bytes, from 1
	kind         string // gremlins' name, such as CONDITIONALS_BOUNDARY
	from, to     string // operators
}

func (m mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s %s becomes %s", m.file, m.line, m.column, m.kind, m.from, m.to)
}

// replacements lists the operators that gremlins replaces for each kind. Longer operators
// come before their prefixes.
var replacements = map[string][][2]string{
	"ARITHMETIC_BASE":       {{"+", "-"}, {"-", "+"}, {"*", "/"}, {"/", "*"}, {"%", "*"}},
	"CONDITIONALS_BOUNDARY": {{"<=", "<"}, {">=", ">"}, {"<", "<="}, {">", ">="}},
	"CONDITIONALS_NEGATION": {{"==", "!="}, {"!=", "=="}, {"<=", ">"}, {">=", "<"}, {"<", ">="}, {">", "<="}},
	"INCREMENT_DECREMENT":   {{"++", "--"}, {"--", "++"}},
	"INVERT_ASSIGNMENTS":    {{"+=", "-="}, {"-=", "+="}, {"*=", "/="}, {"/=", "*="}},
	"INVERT_BITWISE":        {{"&^", "&"}, {"<<", ">>"}, {">>", "<<"}, {"&", "|"}, {"|", "&"}, {"^", "&"}},
	"INVERT_BWASSIGN":       {{"&^=", "&="}, {"<<=", ">>="}, {">>=", "<<="}, {"&=", "|="}, {"|=", "&="}, {"^=", "&="}},
	"INVERT_LOGICAL":        {{"&&", "||"}, {"||", "&&"}},
	"INVERT_LOOPCTRL":       {{"break", "continue"}, {"continue", "break"}},
	"INVERT_NEGATIVES":      {{"-", "+"}},
	"REMOVE_SELF_ASSIGNMENTS": {{"&^=", "="}, {"<<=", "="}, {">>=", "="}, {"+=", "="}, {"-=", "="}, {"*=", "="},
		{"/=", "="}, {"%=", "="}, {"&=", "="}, {"|=", "="}, {"^=", "="}},
}

// fill finds the operator at m's position in text, and what replaces it. ok is false if m's kind
// replaces nothing there.
func (m *mutant) fill(text []byte) (ok bool) {
	at, ok := m.offset(text)
	if !ok {
		return false
	}
	for _, r := range replacements[m.kind] {
		if bytes.HasPrefix(text[at:], []byte(r[0])) {
			m.from, m.to = r[0], r[1]
			return true
		}
	}
	return false
}

// offset returns the index of m's position in text.
func (m mutant) offset(text []byte) (at int, ok bool) {
	for range m.line - 1 {
		n := bytes.IndexByte(text[at:], '\n')
		if n < 0 {
			return 0, false
		}
		at += n + 1
	}
	at += m.column - 1
	return at, at < len(text)
}

// marked returns the line of text that m changes, with the change marked: "if a {< to <=} b {".
func (m mutant) marked(text []byte) string {
	at, _ := m.offset(text)
	start := bytes.LastIndexByte(text[:at], '\n') + 1
	rest, _, _ := bytes.Cut(text[at+len(m.from):], []byte("\n"))
	return strings.TrimSpace(fmt.Sprintf("%s{%s to %s}%s", text[start:at], m.from, m.to, rest))
}

// listing is the part of gremlins' report that is used here.
type listing struct {
	Files []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Type, Status string
			Line, Column int
		} `json:"mutations"`
	} `json:"files"`
}

// list has gremlins find the mutants of a package, without the packages below it. uncovered
// counts those that the package's tests don't reach.
func (r *run) list(pkg string) (covered []mutant, uncovered int, err error) {
	out := filepath.Join(r.dir, "gremlins.json")
	cmd := exec.Command(r.gremlins, "unleash", "--dry-run", "--output", out, "./"+pkg)
	for kind := range replacements {
		cmd.Args = append(cmd.Args, "--"+strings.ToLower(strings.ReplaceAll(kind, "_", "-")))
	}
	cmd.Dir, cmd.Env = r.root, r.env
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, 0, fmt.Errorf("gremlins: %w\n%s", err, text)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, 0, err
	}
	var l listing
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, 0, fmt.Errorf("gremlins' report: %w", err)
	}
	return r.distinct(pkg, l)
}

// distinct turns gremlins' report into mutants. Gremlins reports some changes under two kinds.
func (r *run) distinct(pkg string, l listing) (covered []mutant, uncovered int, err error) {
	seen := make(map[string]bool)
	for _, f := range l.Files {
		if strings.Contains(f.Name, "/") {
			continue
		}
		file := filepath.ToSlash(filepath.Join(pkg, f.Name))
		text, err := os.ReadFile(filepath.Join(r.root, file))
		if err != nil {
			return nil, 0, err
		}
		slices.SortFunc(f.Mutations, func(a, b struct {
			Type, Status string
			Line, Column int
		}) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Type, b.Type))
		})
		for _, mu := range f.Mutations {
			m := mutant{file: file, line: mu.Line, column: mu.Column, kind: mu.Type}
			key := fmt.Sprint(file, mu.Line, ":", mu.Column)
			if !m.fill(text) || seen[key+m.to] {
				continue
			}
			seen[key+m.to] = true
			if mu.Status == "RUNNABLE" {
				covered = append(covered, m)
			} else {
				uncovered++
			}
		}
	}
	return covered, uncovered, nil
}

// shuffle puts mutants into an order that depends on the seed, the package and the list only.
func shuffle(list []mutant, seed uint64, pkg string) {
	h := fnv.New64a()
	h.Write([]byte(pkg))
	slices.SortFunc(list, func(a, b mutant) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column), cmp.Compare(a.to, b.to))
	})
	rand.New(rand.NewPCG(seed, h.Sum64())).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}
