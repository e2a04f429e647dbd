package rewrite

import (
	"bytes"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Change is what the rules do with one query and its reply. The zero value is valid. A
// Change is reused for many queries; it is not safe for concurrent use.
type Change struct {
	// Type and Class are the type and class of the rewritten query.
	Type, Class uint16

	name      []byte // of the rewritten query, in wire format and lower case
	text      []byte // the same in presentation format
	scratch   []byte // buffer for the next text
	edits     []edit
	names     []byte // names before and after name rules, referenced by edits
	buffers   [2][]byte
	nextIndex int

	options  []byte   // see Options
	codes    []uint16 // of the options that rules were about
	uncached bool
}

// edit is what a rule does to the reply.
type edit struct {
	*rule
	// newStart, oldStart and oldEnd delimit two names in [Change.names]: the one that the
	// rule has produced, and the one it was before. They are all zero for other rules.
	newStart, oldStart, oldEnd int
}

// Apply applies the rules to q, which has env. It returns false if none matches; c is then meaningless.
// The error is [ErrInvalidName] or [ErrOptions]. c does not refer to q afterwards.
func (c *Change) Apply(r *Rules, q *wire.Query, env Env) (matched bool, err error) {
	c.Type, c.Class = q.Type, q.Class
	c.edits, c.names = c.edits[:0], c.names[:0]
	c.options, c.codes, c.uncached = c.options[:0], c.codes[:0], false
	c.name = append(c.name[:0], q.Name()...)
	c.text = wire.AppendText(c.text[:0], c.name)
	for i := range r.list {
		rule := &r.list[i]
		done, err := c.applyRule(rule, q, env)
		if err != nil {
			return true, err
		}
		if !done {
			continue
		}
		matched = true
		if !rule.Continue {
			break
		}
	}
	return matched || len(c.options) > 0, nil
}

// applyRule applies one rule and reports whether it matches.
func (c *Change) applyRule(r *rule, q *wire.Query, env Env) (matched bool, err error) {
	switch r.Field {
	case config.RewriteType:
		return replaceCode(&c.Type, r), nil
	case config.RewriteClass:
		return replaceCode(&c.Class, r), nil
	case config.RewriteEDNS0:
		return c.applyOption(&r.Option, q, env)
	case config.RewriteName:
		return c.applyName(r, env)
	case config.RewriteCNAME: // matches every query; its condition is about the reply
	default:
		if !r.matches(c.text) {
			return false, nil
		}
	}
	c.edits = append(c.edits, edit{rule: r})
	return true, nil
}

// replaceCode replaces a type or a class, and reports whether r matches it.
func replaceCode(code *uint16, r *rule) bool {
	if *code != r.FromCode {
		return false
	}
	*code = r.ToCode
	return true
}

// applyName changes the name of the query as r says, and reports whether r matches it. A rule
// with a name of metadata that has no value does not match.
func (c *Change) applyName(r *rule, env Env) (matched bool, err error) {
	if !r.matches(c.text) {
		return false, nil
	}
	if r.Expand == nil {
		c.scratch = r.replace(c.scratch[:0], c.text)
	} else if c.scratch, matched = r.expand(c.scratch[:0], c.text, env); !matched {
		return false, nil
	}
	c.scratch = lowerASCII(c.scratch)
	e := edit{rule: r, newStart: len(c.names)}
	var ok bool
	c.names, ok = wire.AppendName(c.names, c.scratch)
	if !ok || len(c.scratch) > maxNameText {
		return true, ErrInvalidName
	}
	e.oldStart = len(c.names)
	c.names = append(c.names, c.name...)
	e.oldEnd = len(c.names)
	c.name = append(c.name[:0], c.names[e.newStart:e.oldStart]...)
	c.text = wire.AppendText(c.text[:0], c.name)
	c.edits = append(c.edits, e)
	return true, nil
}

// Name returns the name of the rewritten query, in wire format and lower case. It is valid
// until the next Apply.
func (c *Change) Name() []byte { return c.name }

// Owner returns what the owner of a record of the reply becomes (see [wire.Editor]).
func (c *Change) Owner(name []byte) []byte { return c.applyEdits(name, false) }

// Value returns what a name in the data of a record becomes (see [wire.Editor]).
func (c *Change) Value(name []byte) []byte { return c.applyEdits(name, true) }

// applyEdits applies all edits to a name of the reply; nil means that the result is
// invalid.
func (c *Change) applyEdits(name []byte, value bool) []byte {
	for i := len(c.edits) - 1; i >= 0 && name != nil; i-- {
		name = c.applyEdit(&c.edits[i], name, value)
	}
	return name
}

// applyEdit applies one edit to a name of the reply.
func (c *Change) applyEdit(e *edit, name []byte, value bool) []byte {
	if e.Field != config.RewriteName {
		return name
	}
	for i := len(e.answers) - 1; i >= 0 && name != nil; i-- {
		if a := &e.answers[i]; a.value == value {
			name = c.applyAnswerRule(a, name)
		}
	}
	if e.Auto && name != nil {
		name = c.revertName(e, name)
	}
	return name
}

// nextBuffer returns an empty buffer, alternating between two, so that the last result
// stays valid.
func (c *Change) nextBuffer() *[]byte {
	c.nextIndex = 1 - c.nextIndex
	c.buffers[c.nextIndex] = c.buffers[c.nextIndex][:0]
	return &c.buffers[c.nextIndex]
}

// applyAnswerRule returns name as a changes it.
func (c *Change) applyAnswerRule(a *answerRule, name []byte) []byte {
	c.text = wire.AppendText(c.text[:0], name)
	at := a.pattern.FindSubmatchIndex(c.text)
	if at == nil {
		return name
	}
	c.scratch = a.to.expand(c.scratch[:0], c.text, at)
	return c.finishName()
}

// finishName returns the name in c.scratch in wire format, nil if it is invalid. It ignores
// a second dot at the end: both a replacement and the group of a pattern before it may end
// with one.
func (c *Change) finishName() []byte {
	b := c.nextBuffer()
	var ok bool
	if *b, ok = wire.AppendName(*b, c.scratch); ok {
		return *b
	}
	if text, double := bytes.CutSuffix(c.scratch, []byte("..")); double {
		if *b, ok = wire.AppendName(*b, text); ok {
			return *b
		}
	}
	return nil
}

// revertName undoes the name rule of e if name is the name that it has produced or one
// below it; for a suffix rule, if name ends with the rule's replacement.
func (c *Change) revertName(e *edit, name []byte) []byte {
	if e.Match.Kind == config.MatchSuffix {
		c.text = wire.AppendText(c.text[:0], name)
		head, ok := trimSuffixFold(c.text, e.To)
		if !ok {
			return name
		}
		c.scratch = append(append(c.scratch[:0], head...), e.Match.Text...)
		return c.finishName()
	}
	from, to := c.names[e.newStart:e.oldStart], c.names[e.oldStart:e.oldEnd]
	head := 0
	for len(name)-head > len(from) {
		head += 1 + int(name[head])
	}
	if !wire.EqualNames(name[head:], from) {
		return name
	}
	if head+len(to) > wire.MaxName {
		return nil
	}
	b := c.nextBuffer()
	*b = append(append(*b, name[:head]...), to...)
	return *b
}

// TTL returns what the TTL of a record becomes, in seconds.
func (c *Change) TTL(ttl uint32) uint32 {
	for i := len(c.edits) - 1; i >= 0; i-- {
		if e := &c.edits[i]; e.Field == config.RewriteTTL {
			ttl = min(max(ttl, e.MinTTL), e.MaxTTL)
		}
	}
	return ttl
}

// Rcode returns what the rcode of the reply becomes.
func (c *Change) Rcode(rcode wire.Rcode) wire.Rcode {
	for i := len(c.edits) - 1; i >= 0; i-- {
		if e := &c.edits[i]; e.Field == config.RewriteRcode && rcode == wire.Rcode(e.FromCode) {
			rcode = wire.Rcode(e.ToCode)
		}
	}
	return rcode
}

// RewritesCNAME reports whether a rule may change the target of a CNAME record in the
// reply.
func (c *Change) RewritesCNAME() bool {
	for i := range c.edits {
		if c.edits[i].Field == config.RewriteCNAME {
			return true
		}
	}
	return false
}

// CNAMETarget applies the rules to the target of a CNAME record of the reply, in wire
// format. It returns the name to query instead, and the target to put into the record, to
// which other rules may have applied. ok is false if no rule matches. The caller owns the
// results.
func (c *Change) CNAMETarget(target []byte) (ask, leads []byte, ok bool) {
	name := target
	for i := len(c.edits) - 1; i >= 0 && name != nil; i-- {
		e := &c.edits[i]
		if e.Field != config.RewriteCNAME {
			name = c.applyEdit(e, name, true)
			continue
		}
		c.text = lowerASCII(wire.AppendText(c.text[:0], name))
		if !e.matches(c.text) {
			continue
		}
		c.scratch = e.replace(c.scratch[:0], c.text)
		name = c.finishName()
		ask, ok = slices.Clone(name), true
	}
	return ask, slices.Clone(name), ok && name != nil
}
