// Package rewrite implements rewrite rules: they change a query before it is resolved, and
// change the reply so that it answers the client's query.
//
// Each matching rule changes the name, type or class of the query for the rules after it,
// or adds an edit of the reply. A rule with `stop` ends the list. Edits are applied in
// reverse order, so that each sees the names that its own rule has produced. Rules match
// names in presentation format and lower case, as they are written in a Corefile.
//
// Rules are compiled once. A query only allocates if a regular expression matches it.
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

// ErrInvalidName means that a rule has turned a name of the query or reply into an invalid
// one.
var ErrInvalidName = errors.New("a rewrite rule produces an invalid name")

// Rules are the rules of one server block. They are immutable and safe for concurrent use.
type Rules struct {
	list    []rule
	classes bool
	// questionOnly says that the question alone decides which rules match.
	questionOnly bool
}

// rule is one rule with its compiled replacements.
type rule struct {
	config.RewriteRule
	to      replacement
	answers []answerRule
}

// answerRule edits names of the reply by a pattern.
type answerRule struct {
	value   bool
	pattern *regexp.Regexp
	to      replacement
}

// New compiles the rules of cfg.
func New(cfg *config.Rewrite) *Rules {
	r := &Rules{questionOnly: cfg.QuestionOnly()}
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

// RewritesClass reports whether a rule may change the class, so that queries of other
// classes than IN have to be tried. It is false for nil rules.
func (r *Rules) RewritesClass() bool { return r != nil && r.classes }

// QuestionOnly reports whether the question of a query alone decides whether a rule matches it.
func (r *Rules) QuestionOnly() bool { return r.questionOnly }

// replacement is a text with references to the groups of a pattern.
type replacement []segment

// segment is a text followed by a group; -1 means no group.
type segment struct {
	text  string
	group int
}

// parseReplacement parses the references to groups in text: {0}, {1} and so on.
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

// expand appends t to b, with the groups of src at the positions in at (see
// [regexp.Regexp.FindSubmatchIndex]). It stops after the segment that exceeds maxNameText.
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

// expand appends the new name of a rule with `metadata` to b. ok is false if a name of metadata has no
// value.
func (r *rule) expand(b, text []byte, env Env) (_ []byte, ok bool) {
	at := r.Match.Pattern.FindSubmatchIndex(text)
	for i := range r.Expand {
		part := &r.Expand[i]
		switch {
		case part.Label != "":
			value := env.Metadata(part.Label)
			if value == "" {
				return b, false
			}
			b = append(b, value...)
		case part.Group >= 0:
			if from := at[2*part.Group]; from >= 0 {
				b = append(b, text[from:at[2*part.Group+1]]...)
			}
		default:
			b = append(b, part.Text...)
		}
	}
	return b, true
}

// maxNameText bounds a name in presentation format, in bytes: four characters for each byte
// of the longest name. A longer text is not a valid name.
const maxNameText = 4 * wire.MaxName

// matches reports whether the rule matches the name text.
func (r *rule) matches(text []byte) bool {
	switch m := &r.Match; m.Kind {
	case config.MatchPrefix:
		return len(text) >= len(m.Text) && string(text[:len(m.Text)]) == m.Text
	case config.MatchSuffix:
		return len(text) >= len(m.Text) && string(text[len(text)-len(m.Text):]) == m.Text
	case config.MatchSubstring:
		return index(text, m.Text) >= 0
	case config.MatchRegex:
		return m.Pattern.Match(text)
	default:
		return string(text) == m.Text
	}
}

func index(b []byte, text string) int {
	for i := 0; i+len(text) <= len(b); i++ {
		if string(b[i:i+len(text)]) == text {
			return i
		}
	}
	return -1
}

// replace appends to b what the rule turns text, which it matches, into.
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

// replaceAll appends text to b with each from replaced by to. It stops soon after
// maxNameText.
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

// lowerASCII converts text to lower case in place.
func lowerASCII(text []byte) []byte {
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			text[i] = c + 'a' - 'A'
		}
	}
	return text
}

// trimSuffixFold removes suffix from the end of text, ignoring case, and reports whether it
// did.
func trimSuffixFold(text []byte, suffix string) ([]byte, bool) {
	at := len(text) - len(suffix)
	if at < 0 || !bytes.EqualFold(text[at:], []byte(suffix)) {
		return text, false
	}
	return text[:at], true
}
