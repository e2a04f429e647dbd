// Package rewrite is the rules by which a query is asked in another form than the
// client's, and by which what comes back is turned into an answer to what the client
// asked.
//
// Each rule that takes a query changes its name, its type or its class for the rules
// behind it, or notes an edit of the reply; a rule that says stop ends it. Edits are done
// in the reverse order, so that each finds the names that its own rule made. Names are
// held against rules in presentation form and lower case, as Corefiles spell them.
//
// What a rule does is fixed when it is made, and a query allocates nothing but where a
// pattern has taken it.
package rewrite

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// ErrInvalidName is why a query or a reply can't be rewritten.
var ErrInvalidName = errors.New("a rewrite rule makes a name that is none")

// Rules are those of one server block. They are immutable and safe for concurrent use.
type Rules struct {
	list    []rule
	classes bool
}

// rule is one rule, with what can be made of its texts once.
type rule struct {
	config.RewriteRule
	to      replacement
	answers []answerRule
}

// answerRule is an edit of names in the reply by a pattern.
type answerRule struct {
	value   bool
	pattern *regexp.Regexp
	to      replacement
}

// New makes the rules of cfg.
func New(cfg *config.Rewrite) *Rules {
	r := &Rules{}
	for _, c := range cfg.Rules {
		compiled := rule{RewriteRule: c, to: parseReplacement(c.To)}
		for _, a := range c.Answers {
			compiled.answers = append(compiled.answers, answerRule{value: a.Value, pattern: a.Pattern, to: parseReplacement(a.To)})
		}
		r.list = append(r.list, compiled)
		r.classes = r.classes || c.Field == config.RewriteClass
	}
	return r
}

// RewritesClass reports whether a rule may take queries of other classes than IN. It is false
// for nil rules.
func (r *Rules) RewritesClass() bool { return r != nil && r.classes }

// replacement is a text with groups of a pattern in it.
type replacement []segment

// segment is some text and the group behind it, -1 for none.
type segment struct {
	text  string
	group int
}

// parseReplacement finds the references to groups in text: {0}, {1} ….
func parseReplacement(text string) replacement {
	var list replacement
	rest, from := text, 0
	for {
		i := strings.IndexByte(rest[from:], '{')
		if i < 0 {
			return append(list, segment{rest, -1})
		}
		i += from
		end := strings.IndexByte(rest[i:], '}')
		n := -1
		if end > 0 {
			if v, err := strconv.ParseUint(rest[i+1:i+end], 10, 16); err == nil {
				n = int(v)
			}
		}
		if n < 0 {
			from = i + 1
			continue
		}
		list = append(list, segment{rest[:i], n})
		rest, from = rest[i+end+1:], 0
	}
}

// expand appends t to b, with the groups that at says stand in src; no more than limit
// bytes and one piece.
func (t replacement) expand(b, src []byte, at []int) []byte {
	for _, p := range t {
		b = append(b, p.text...)
		if i := 2 * p.group; p.group >= 0 && i+1 < len(at) && at[i] >= 0 {
			b = append(b, src[at[i]:at[i+1]]...)
		}
		if len(b) > maxNameText {
			break
		}
	}
	return b
}

// maxNameText bounds a name while it is made: more than the longest name in presentation
// form, which has four characters for each of its bytes, is no name whatever follows.
const maxNameText = 4 * wire.MaxName

// matches reports whether the rule takes the name text.
func (r *rule) matches(text []byte) bool {
	switch m := &r.Match; m.Kind {
	case config.MatchPrefix:
		return len(text) >= len(m.Text) && string(text[:len(m.Text)]) == m.Text
	case config.MatchSuffix:
		return len(text) >= len(m.Text) && string(text[len(text)-len(m.Text):]) == m.Text
	case config.MatchSubstring:
		return contains(text, m.Text)
	case config.MatchRegex:
		return m.Pattern.Match(text)
	default:
		return string(text) == m.Text
	}
}

// contains is [bytes.Contains] for a text.
func contains(b []byte, text string) bool { return index(b, text) >= 0 }

func index(b []byte, text string) int {
	for i := 0; i+len(text) <= len(b); i++ {
		if string(b[i:i+len(text)]) == text {
			return i
		}
	}
	return -1
}

// replace appends what the rule makes of text, which it takes, to b.
func (r *rule) replace(b, text []byte) []byte {
	switch m := &r.Match; m.Kind {
	case config.MatchPrefix:
		return append(append(b, r.To...), text[len(m.Text):]...)
	case config.MatchSuffix:
		return append(append(b, text[:len(text)-len(m.Text)]...), r.To...)
	case config.MatchSubstring:
		return replaceAll(b, text, m.Text, r.To)
	case config.MatchRegex:
		return r.to.expand(b, text, m.Pattern.FindSubmatchIndex(text))
	default:
		return append(b, r.To...)
	}
}

// replaceAll appends text with to in place of each from to b; not much more than a name
// can have.
func replaceAll(b, text []byte, from, to string) []byte {
	for len(b) <= maxNameText {
		i := index(text, from)
		if i < 0 || from == "" {
			break
		}
		b = append(append(b, text[:i]...), to...)
		text = text[i+len(from):]
	}
	return append(b, text...)
}

// lowerASCII puts text in lower case, in place.
func lowerASCII(text []byte) []byte {
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			text[i] = c + 'a' - 'A'
		}
	}
	return text
}

// trimSuffixFold is text without suffix at its end, whatever the case it has there.
func trimSuffixFold(text []byte, suffix string) ([]byte, bool) {
	at := len(text) - len(suffix)
	if at < 0 || !bytes.EqualFold(text[at:], []byte(suffix)) {
		return text, false
	}
	return text[:at], true
}
