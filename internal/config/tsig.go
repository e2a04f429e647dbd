package config

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/wire"
)

// TSIG is `tsig [ZONES…] { secret NAME KEY; secrets FILE; require QTYPES…|all|none }`: the keys with which queries are
// signed, and the queries that must be (RFC 8945).
type TSIG struct {
	// Zones are those whose queries are verified; the block's by default.
	Zones []wire.Name
	// Keys are the secrets. No text for users has them.
	Keys wire.TSIGKeys
	// All says that all queries must be signed, else those of Types must.
	All   bool
	Types []uint16
}

func (*TSIG) needsAgent() bool { return true }

const (
	// maxTSIGKeys bounds the keys of a block.
	maxTSIGKeys = 1000
	// maxTSIGSecret is the longest secret, in bytes. An HMAC hashes a longer one than its block, of at most 128 bytes.
	maxTSIGSecret = 512
)

func (t *TSIG) parse(p *parser, s statement) {
	*t = TSIG{Zones: p.zonesOr(s.args()), Keys: make(wire.TSIGKeys)}
	before := len(p.errs)
	p.body(s,
		opt("secret NAME KEY", func(args []token) { t.addKey(p, args[0], args[0].text, args[1].text) }),
		opt("secrets FILE", func(args []token) { t.addFile(p, args[0]) }),
		opt("require QTYPES…|all|none", func(args []token) { t.require(p, args) }),
		replacedBy("require_opcode", "take it out; the agent answers no opcodes but QUERY, which require all is for, and NOTIFY, "+
			"which it takes only from the primary servers of secondary"),
	)
	if len(t.Keys) == 0 && len(p.errs) == before && len(p.notRead) == 0 {
		p.suspect(s.name(), "there is no key, so that every signed query gets NOTAUTH; add `secret NAME KEY`")
	}
}

// require reads the types of queries that must be signed. As in CoreDNS the last line counts, but `all` stays.
func (t *TSIG) require(p *parser, args []token) {
	t.Types = nil
	switch {
	case args[0].text == "all" && len(args) == 1:
		t.All = true
	case args[0].text == "none" && len(args) == 1:
	case slices.ContainsFunc(args, func(w token) bool { return w.text == "all" || w.text == "none" || w.text == wildcard }):
		p.errorf(args[0], "write types such as AXFR IXFR, or `all` or `none` alone")
	default:
		t.Types = p.qtypes(nil, args)
	}
}

// addKey adds a key. Errors are about at and don't show the secret.
func (t *TSIG) addKey(p *parser, at token, name, secret string) {
	key, err := wire.ParseName(name)
	decoded, bad := base64.StdEncoding.DecodeString(secret)
	_, twice := t.Keys[key]
	switch {
	case err != nil:
		p.errorf(at, "the name of a key is a domain name: %v", err)
	case twice:
		p.errorf(at, "the key %s is defined twice; keep one", key)
	case bad != nil || len(decoded) == 0:
		p.errorf(at, "the secret of the key %s is not valid base64; `tsig-keygen` and `keymgr -t` print valid ones", key)
	case len(decoded) > maxTSIGSecret:
		p.errorf(at, "the secret of the key %s has %d bytes; allowed: up to %d", key, len(decoded), maxTSIGSecret)
	case len(t.Keys) >= maxTSIGKeys:
		p.errorf(at, "more than %d keys; write a server block for some of the zones", maxTSIGKeys)
	default:
		t.Keys[key] = decoded
	}
}

// addFile adds the keys of a file.
func (t *TSIG) addFile(p *parser, w token) {
	path := p.filePath(w, w)
	if path == "" || p.offNode(path) {
		return
	}
	text, err := ReadFile(path)
	if err != nil {
		p.recordPath(path)
		p.errorf(w, "%v; mount the file, or name another one", err)
		return
	}
	p.recordFile(path, text)
	keys, err := readKeys(string(text))
	if err != nil {
		p.errorf(w, "%s: %v; write: key \"NAME\" { secret \"KEY\"; };", path, err)
		return
	}
	for _, k := range keys {
		t.addKey(p, w, k.name, k.secret)
	}
}

// tsigKey is a key as it is written in a file.
type tsigKey struct{ name, secret string }

// readKeys reads the statements `key NAME { algorithm ALGORITHM; secret KEY; };` of BIND's named.conf. The algorithm is ignored. No error shows a
// secret.
func readKeys(text string) (keys []tsigKey, err error) {
	words := namedWords(text)
	for len(words) > 0 {
		w := words.next()
		if w.text == ";" {
			continue
		}
		if w.text != "key" {
			return nil, fmt.Errorf("line %d: a statement that is not `key`", w.line)
		}
		k := tsigKey{name: words.next().text}
		if words.next().text != "{" {
			return nil, fmt.Errorf("line %d: no name and opening brace after `key`", w.line)
		}
		if err := k.read(&words); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// read reads the statements of k after its opening brace, and the closing one.
func (k *tsigKey) read(words *namedList) error {
	w := words.next()
	for ; w.text == "algorithm" || w.text == "secret"; w = words.next() {
		value, end := words.next(), words.next()
		if end.text != ";" {
			return fmt.Errorf("line %d: no value and semicolon after `%s`", w.line, w.text)
		}
		if w.text == "secret" {
			k.secret = value.text
		}
	}
	if w.text != "}" || k.secret == "" {
		return fmt.Errorf("the key %q has no secret, or something else than algorithm and secret", k.name)
	}
	return nil
}

// namedList are the words of a file that have not been read.
type namedList []namedWord

// next removes the first word; the zero value after the last one.
func (l *namedList) next() (w namedWord) {
	if len(*l) > 0 {
		w, *l = (*l)[0], (*l)[1:]
	}
	return w
}

// namedWord is a word, a brace or a semicolon of a file.
type namedWord struct {
	text string
	line int
}

// namedWords splits a file into words. Comments begin with # or // and end with the line.
func namedWords(text string) (words namedList) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		for line = strings.TrimSpace(line); line != "" && line[0] != '#' && !strings.HasPrefix(line, "//"); line = strings.TrimSpace(line) {
			end := 1
			if strings.IndexByte(namedMarks, line[0]) < 0 {
				if end = strings.IndexAny(line, namedMarks+" \t"); end < 0 {
					end = len(line)
				}
			}
			word := line[:end]
			if line[0] == '"' {
				word, _, _ = strings.Cut(line[1:], `"`)
				end = min(len(word)+2, len(line))
			}
			words, line = append(words, namedWord{word, n}), line[end:]
		}
	}
	return words
}

// namedMarks are the characters that end a word.
const namedMarks = `{};"`
