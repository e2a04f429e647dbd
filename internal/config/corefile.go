package config

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// token is a token and its place.
type token struct {
	text string
	file string
	line int
}

// statement is a line of a block and its block in braces: a directive with its options, or
// an option.
type statement struct {
	words []token // never empty
	body  []statement
}

func (s statement) name() token   { return s.words[0] }
func (s statement) args() []token { return s.words[1:] }

// word returns the first argument of s, its name without one.
func (s statement) word() token { return s.words[min(1, len(s.words)-1)] }

// last returns the last of s's options called name; s itself and false if there is none.
func (s statement) last(name string) (line statement, ok bool) {
	for _, line := range slices.Backward(s.body) {
		if line.name().text == name {
			return line, true
		}
	}
	return s, false
}

// Written is a directive of a block as it is written, with its imports and variables in place.
type Written struct {
	Name string
	// Args are the words after the name, and Options the lines in braces.
	Args    string
	Options []string
}

// written returns s as it is written, with a space between two words.
func (s statement) written() Written {
	w := Written{Name: s.name().text, Args: strings.Join(texts(s.args()), " ")}
	for _, line := range s.body {
		o := line.written()
		text := strings.TrimSpace(o.Name + " " + o.Args)
		if len(o.Options) > 0 {
			text += " { " + strings.Join(o.Options, "; ") + " }"
		}
		w.Options = append(w.Options, text)
	}
	return w
}

// group is a server block of the file.
type group struct {
	keys       []token
	directives []statement
}

// groups finds the server blocks of text, the Corefile's, with imports and snippets expanded.
// [imports.walk] comes before. It uses up the headers.
func (im *imports) groups(text []byte) ([]group, error) {
	path := im.main
	raw, err := caddyfile.Parse(im.beside, bytes.NewReader(text), nil) // the tokens of text have no path
	if err != nil {
		return nil, im.syntaxError(err)
	}
	groups := make([]group, 0, len(raw))
	for _, block := range raw {
		var g group
		// The lexer does not keep the order of different directives, which is irrelevant.
		for _, name := range slices.Sorted(maps.Keys(block.Tokens)) {
			g.directives = append(g.directives, statements(path, name, block.Tokens[name])...)
		}
		g.keys = g.locate(path, block.Keys, &im.heads)
		groups = append(groups, g)
	}
	return groups, nil
}

// locate gives each key its place. The lexer's blocks don't have one: it is the first unused
// header with the same keys. heads is used up.
func (g *group) locate(path string, keys []string, heads *[]header) []token {
	at := token{file: path}
	for _, d := range g.directives {
		if w := d.name(); at.line == 0 || w.file == at.file && w.line < at.line {
			at = w
		}
	}
	i := slices.IndexFunc(*heads, func(h header) bool { return slices.Equal(h.keys, keys) })
	if i >= 0 {
		at = (*heads)[i].at
		copy((*heads)[1:i+1], (*heads)[:i]) // i is 0 but for blocks that are imported
		*heads = (*heads)[1:]
	}
	at.line = max(at.line, 1)
	words := make([]token, len(keys))
	for i, key := range keys {
		words[i] = token{text: key, file: at.file, line: at.line}
	}
	return words
}

// statements splits the tokens that the lexer has collected for a directive: one statement
// for each occurrence in the block.
func statements(path, name string, tokens []caddyfile.Token) []statement {
	words := make([]token, len(tokens))
	for i, t := range tokens {
		words[i] = token{text: t.Text, file: t.File, line: t.Line}
		if t.File == "" {
			words[i].file = path
		}
	}
	list, _ := nest(words, 0)
	for i := range list {
		// The lexer does not expand references to the environment in a directive's name.
		if w := &list[i].words[0]; strings.Contains(w.text, "{$") || strings.Contains(w.text, "{%") {
			w.text = name
		}
	}
	return list
}

// sameLine reports whether next is on the line on which w ends.
func (w token) sameLine(next token) bool {
	return w.file == next.file && w.line+strings.Count(w.text, "\n") == next.line
}

// maxNesting is one more than a valid Corefile has: directive, option.
const maxNesting = 3

// nest reads statements from words up to the closing brace of the current block, and returns
// the remaining words.
func nest(words []token, depth int) (list []statement, rest []token) {
	fresh := true // the next word starts a statement
	var last token
	for len(words) > 0 {
		w := words[0]
		switch {
		case w.text == "}" && depth > 0:
			return list, words[1:]
		case w.text == "{" && len(list) > 0 && depth < maxNesting:
			var body []statement
			body, words = nest(words[1:], depth+1)
			s := &list[len(list)-1]
			s.body, fresh = append(s.body, body...), true
			continue
		case fresh || !last.sameLine(w):
			list = append(list, statement{words: []token{w}})
		default:
			s := &list[len(list)-1]
			s.words = append(s.words, w)
		}
		last, fresh, words = w, false, words[1:]
	}
	return list, nil
}

// syntaxError converts the lexer's error ("FILE:LINE - Error during parsing: TEXT").
func (im *imports) syntaxError(err error) error {
	f := &ParseError{File: im.main, Text: err.Error()}
	var fault *ParseError
	if errors.As(err, &fault) {
		return fault
	}
	if place, text, ok := strings.Cut(err.Error(), " - "); ok {
		colon := strings.LastIndexByte(place, ':')
		if line, err := strconv.Atoi(place[colon+1:]); err == nil && colon > 0 {
			f.Line, f.Text = line, text
			if file := place[:colon]; file != im.beside {
				f.File = file
			}
		}
	}
	f.Text = strings.TrimPrefix(f.Text, "Error during parsing: ")
	f.Text = strings.TrimPrefix(f.Text, "Syntax error: ")
	if strings.HasPrefix(f.Text, "File to import not found") { // imports.target has found it
		f.Text += "; write the snippet above the blocks that import it"
	}
	if f.Text == "Unexpected EOF" || strings.HasSuffix(f.Text, "expecting '}'") {
		f.Text = "the file ends inside a block: a closing } is missing"
	}
	return f
}
