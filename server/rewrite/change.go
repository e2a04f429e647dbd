package rewrite

import (
	"bytes"
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/wire"
)

// Change is what the rules make of one query and its reply. The zero value is ready; it
// is used for query after query, and isn't safe for concurrent use.
type Change struct {
	// Type and Class are what is asked instead.
	Type, Class uint16

	name      []byte // asked instead, in wire form and lower case
	text      []byte // the same in presentation form
	scratch   []byte // what text is made into
	edits     []edit
	names     []byte // the names that edits lead from and to, one behind the other
	buffers   [2][]byte
	nextIndex int
}

// edit is what a rule does to the reply.
type edit struct {
	*rule
	// newStart and to bound the name that the rule made and the one that it was made of, in
	// [Change.names]; both are empty where the rule doesn't turn names back, or does so
	// whatever the name.
	newStart, oldStart, oldEnd int
}

// Apply puts q through the rules; false says that none has taken it, and c means nothing.
// The error is [ErrInvalidName]. c refers to q's name no longer when it returns.
func (c *Change) Apply(r *Rules, q *wire.Query) (matched bool, err error) {
	c.Type, c.Class = q.Type, q.Class
	c.edits, c.names = c.edits[:0], c.names[:0]
	c.name = append(c.name[:0], q.Name()...)
	c.text = wire.AppendText(c.text[:0], c.name)
	for i := range r.list {
		rule := &r.list[i]
		if !c.applyRule(rule) {
			continue
		}
		matched = true
		if rule.Field == config.RewriteName {
			if err := c.applyName(rule); err != nil {
				return true, err
			}
		}
		if !rule.Continue {
			break
		}
	}
	return matched, nil
}

// applyRule puts the query through one rule, but for its name.
func (c *Change) applyRule(r *rule) bool {
	switch r.Field {
	case config.RewriteType:
		if c.Type != r.FromCode {
			return false
		}
		c.Type = r.ToCode
		return true
	case config.RewriteClass:
		if c.Class != r.FromCode {
			return false
		}
		c.Class = r.ToCode
		return true
	case config.RewriteNothing:
		return true
	case config.RewriteCNAME: // takes every query; replies are what it is held against
	default:
		if !r.matches(c.text) {
			return false
		}
	}
	if r.Field != config.RewriteName {
		c.edits = append(c.edits, edit{rule: r})
	}
	return true
}

// applyName makes the rule's name the one that is asked.
func (c *Change) applyName(r *rule) error {
	c.scratch = lowerASCII(r.replace(c.scratch[:0], c.text))
	e := edit{rule: r, newStart: len(c.names)}
	var ok bool
	c.names, ok = wire.AppendName(c.names, c.scratch)
	if !ok || len(c.scratch) > maxNameText {
		return ErrInvalidName
	}
	e.oldStart = len(c.names)
	c.names = append(c.names, c.name...)
	e.oldEnd = len(c.names)
	c.name = append(c.name[:0], c.names[e.newStart:e.oldStart]...)
	c.text = wire.AppendText(c.text[:0], c.name)
	c.edits = append(c.edits, e)
	return nil
}

// Name is what is asked instead, in wire form and lower case. It is c's own.
func (c *Change) Name() []byte { return c.name }

// Owner is what the owner of a record becomes (see [wire.Editor]).
func (c *Change) Owner(name []byte) []byte { return c.applyEdits(name, false) }

// Value is what a name in a record's data becomes (see [wire.Editor]).
func (c *Change) Value(name []byte) []byte { return c.applyEdits(name, true) }

// applyEdits puts a name of the reply through the edits; nil is a name that is none.
func (c *Change) applyEdits(name []byte, value bool) []byte {
	for i := len(c.edits) - 1; i >= 0 && name != nil; i-- {
		name = c.applyEdit(&c.edits[i], name, value)
	}
	return name
}

// applyEdit puts a name of the reply through one edit.
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

// nextBuffer is one to make a name in, another one than the last.
func (c *Change) nextBuffer() *[]byte {
	c.nextIndex = 1 - c.nextIndex
	c.buffers[c.nextIndex] = c.buffers[c.nextIndex][:0]
	return &c.buffers[c.nextIndex]
}

// applyAnswerRule is name as a makes it.
func (c *Change) applyAnswerRule(a *answerRule, name []byte) []byte {
	c.text = wire.AppendText(c.text[:0], name)
	at := a.pattern.FindSubmatchIndex(c.text)
	if at == nil {
		return name
	}
	c.scratch = a.to.expand(c.scratch[:0], c.text, at)
	return c.finishName()
}

// finishName is the name in c.other, nil if it is none. A second dot at its end is passed over:
// what replaces a name ends with one, and so may the group of a pattern before it.
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

// revertName turns name back to what it was before e's rule, where that made it: the name
// itself or one below it; for a suffix all names that end with what the rule puts there.
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

// TTL is what a record's TTL becomes, in seconds.
func (c *Change) TTL(ttl uint32) uint32 {
	for i := len(c.edits) - 1; i >= 0; i-- {
		if e := &c.edits[i]; e.Field == config.RewriteTTL {
			ttl = min(max(ttl, e.MinTTL), e.MaxTTL)
		}
	}
	return ttl
}

// Rcode is what the reply's rcode becomes.
func (c *Change) Rcode(rcode wire.Rcode) wire.Rcode {
	for i := len(c.edits) - 1; i >= 0; i-- {
		if e := &c.edits[i]; e.Field == config.RewriteRcode && rcode == wire.Rcode(e.FromCode) {
			rcode = wire.Rcode(e.ToCode)
		}
	}
	return rcode
}

// RewritesCNAME reports whether a rule may take what an alias of the reply leads to.
func (c *Change) RewritesCNAME() bool {
	for i := range c.edits {
		if c.edits[i].Field == config.RewriteCNAME {
			return true
		}
	}
	return false
}

// CNAMETarget says what becomes of an alias of the reply, given what it leads to in wire form:
// the name to ask instead, and what it leads to then, which rules may have turned back.
// ok is false where no rule takes it. Both are made for the caller.
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
