package config

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/coredns/caddy/caddyfile"
)

const (
	// maxFile bounds one file: a ConfigMap, where Corefiles come from, holds 1 MiB.
	maxFile = 1 << 20
	// maxWord bounds one word. The longest in use are label selectors, of some
	// hundred bytes.
	maxWord = 16 << 10
	// maxWords bounds a Corefile with its imports in place. The largest in use have
	// some thousand words; snippets that import snippets may grow exponentially.
	maxWords = 200_000
)

// file is a file that was read.
type file struct {
	path string
	text []byte
}

// header is the beginning of a server block.
type header struct {
	at   token
	keys []string
}

// snippet returns NAME if the header is (NAME), and "" for a server block.
func (h header) snippet() string {
	if len(h.keys) != 1 || !strings.HasPrefix(h.keys[0], "(") || !strings.HasSuffix(h.keys[0], ")") {
		return ""
	}
	return strings.TrimSuffix(h.keys[0][1:], ")")
}

// imports walks a Corefile and its imports before the lexer does. It limits the size, rejects
// files and snippets that import themselves, and records the files and the lines on which
// blocks begin.
type imports struct {
	// main is the path of the Corefile in errors, beside the path whose directory its relative imports start from.
	main, beside string
	snippets     map[string][]token
	files        []file
	heads        []header
	empty        []string // patterns that no file matches
	words        int
}

// walk adds a file's words. open lists the files and snippets that contain it.
func (im *imports) walk(f file, open []string) error {
	im.files = append(im.files, f)
	words, err := lex(f)
	if err != nil {
		return err
	}
	if err := im.blocks(words); err != nil {
		return err
	}
	return im.follow(words, open)
}

// lex splits a file into words.
func lex(f file) ([]token, error) {
	if len(f.text) > maxFile {
		return nil, &ParseError{File: f.path, Text: fmt.Sprintf("the file is larger than %d bytes; a Corefile is not", maxFile)}
	}
	d := caddyfile.NewDispenser(f.path, bytes.NewReader(f.text))
	var words []token
	for d.Next() {
		w := token{text: d.Val(), file: f.path, line: d.Line()}
		if len(w.text) > maxWord {
			return nil, &ParseError{File: f.path, Line: w.line, Text: fmt.Sprintf("a word is longer than %d bytes; is a closing quote missing?", maxWord)}
		}
		words = append(words, w)
	}
	return words, nil
}

// blocks records the headers and snippets among words.
func (im *imports) blocks(words []token) error {
	for i := 0; i < len(words); {
		if words[i].text == "import" && i+1 < len(words) {
			i += 2
			continue
		}
		head := header{at: words[i]}
		i = keys(words, i, &head)
		if i == len(words) {
			im.heads = append(im.heads, head)
			return nil
		}
		if len(head.keys) == 0 && len(im.files) == 1 { // an imported file may be a part of a block
			return &ParseError{File: head.at.file, Line: head.at.line, Word: "{", Text: `a server block needs a zone before its "{", such as "." for all names`}
		}
		end := closing(words, i)
		if name := head.snippet(); name != "" {
			im.snippets[name] = words[i+1 : max(end, i+1)]
		} else {
			im.heads = append(im.heads, head)
		}
		i = end + 1
	}
	return nil
}

// keys reads a block's keys from words[i:] and returns the index after them.
func keys(words []token, i int, head *header) int {
	more := false // after a comma another key follows, possibly on the next line
	for start := i; i < len(words) && words[i].text != "{"; i++ {
		if i > start && !more && words[i].line != words[i-1].line {
			break
		}
		text := expand(words[i].text)
		text, more = strings.CutSuffix(text, ",")
		if text != "" || more {
			head.keys = append(head.keys, text)
		}
	}
	return i
}

// closing returns the index of the brace that closes the block starting at words[open], with or
// without an opening brace, or the last index.
func closing(words []token, open int) int {
	depth := 0
	if words[open].text != "{" {
		depth = 1
	}
	for i := open; i < len(words); i++ {
		switch words[i].text {
		case "{":
			depth++
		case "}":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(words) - 1
}

// follow counts words and follows their imports.
func (im *imports) follow(words []token, open []string) error {
	for i, w := range words {
		if im.words++; im.words > maxWords {
			return &ParseError{File: w.file, Line: w.line, Text: fmt.Sprintf("the Corefile has more than %d words with its imports in place", maxWords)}
		}
		starts := i == 0 || words[i-1].line != w.line
		if w.text != "import" || !starts || i+1 == len(words) {
			continue
		}
		if err := im.target(words[i+1], open); err != nil {
			return err
		}
	}
	return nil
}

// target follows one import.
func (im *imports) target(w token, open []string) error {
	pattern := expand(w.text)
	if body, ok := im.snippets[pattern]; ok {
		open, err := enter(w, "("+pattern+")", open)
		if err != nil {
			return err
		}
		return im.follow(body, open)
	}
	from := w.file
	if from == im.main {
		from = im.beside
	}
	pattern, paths := glob(from, pattern)
	switch {
	case len(paths) > 0:
	case !strings.ContainsAny(pattern, "*?[]"):
		return &ParseError{File: w.file, Line: w.line, Word: w.text, Text: fmt.Sprintf("can't import %q: there is no snippet of this name, and no file %s", w.text, pattern)}
	case !slices.Contains(im.empty, pattern):
		im.empty = append(im.empty, pattern)
	}
	for _, path := range paths {
		if err := im.read(w, path, open); err != nil {
			return err
		}
	}
	return nil
}

// read follows the imports of a file that w imports.
func (im *imports) read(w token, path string, open []string) error {
	open, err := enter(w, path, open)
	if err != nil {
		return err
	}
	text, err := ReadFile(path)
	if err != nil {
		return &ParseError{File: w.file, Line: w.line, Word: w.text, Text: fmt.Sprintf("can't import %q: %v", w.text, err)}
	}
	return im.walk(file{path: path, text: text}, open)
}

func enter(w token, name string, open []string) ([]string, error) {
	if slices.Contains(open, name) {
		return nil, &ParseError{File: w.file, Line: w.line, Word: w.text, Text: fmt.Sprintf("%s imports itself", name)}
	}
	// Actual nesting is two or three levels; the limit keeps the stack small.
	if len(open) > 64 {
		return nil, &ParseError{File: w.file, Line: w.line, Word: w.text, Text: "imports are nested more than 64 deep"}
	}
	return append(slices.Clone(open), name), nil
}

// glob returns the absolute pattern of an import in the file from, and the files that match. It returns none for
// patterns that the lexer rejects.
func glob(from, pattern string) (absolute string, paths []string) {
	if !filepath.IsAbs(pattern) {
		abs, err := filepath.Abs(from)
		if err != nil {
			return pattern, nil
		}
		pattern = filepath.Join(filepath.Dir(abs), pattern)
	}
	if strings.Count(pattern, "*") > 1 || strings.Count(pattern, "?") > 1 || strings.ContainsAny(pattern, "[]") {
		return pattern, nil
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return pattern, nil
	}
	return pattern, paths
}

// expand replaces {$NAME} and {%NAME%} by the environment's values, as the lexer does.
func expand(s string) string {
	for _, ref := range [][2]string{{"{%", "%}"}, {"{$", "}"}} {
		var b strings.Builder
		for rest := s; ; {
			before, after, ok := strings.Cut(rest, ref[0])
			name, tail, closed := strings.Cut(after, ref[1])
			if !ok || !closed || name == "" {
				b.WriteString(rest)
				break
			}
			b.WriteString(before + os.Getenv(name))
			rest = tail
		}
		s = b.String()
	}
	return s
}

// ReadFile reads a Corefile, or another file that a Corefile names, of at most 1 MiB. A pipe or a device, such as
// /dev/stdin, is a file, too; a directory is not, nor a pipe without a writer. Errors name the file.
func ReadFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // otherwise opening a pipe waits for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) == 0 && info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s is a pipe that no program writes to", path)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, nil
}
