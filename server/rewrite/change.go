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

	name   []byte // asked instead, in wire form and lower case
	text   []byte // the same in presentation form
	other  []byte // what text is made into
	edits  []edit
	turned []byte // the names that edits lead from and to, one behind the other
	out    [2][]byte
	next   int
}

// edit is what a rule does to the reply.
type edit struct {
	*rule
	// from and to bound the name that the rule made and the one that it was made of, in
	// [Change.turned]; both are empty where the rule doesn't turn names back, or does so
	// whatever the name.
	from, made, to int
}

// Take puts q through the rules; false says that none has taken it, and c means nothing.
// The error is [ErrName]. c refers to q's name no longer when it returns.
func (c *Change) Take(r *Rules, q *wire.Query) (taken bool, err error) {
	c.Type, c.Class = q.Type, q.Class
	c.edits, c.turned = c.edits[:0], c.turned[:0]
	c.name = append(c.name[:0], q.Name()...)
	c.text = wire.AppendText(c.text[:0], c.name)
	for i := range r.list {
		rule := &r.list[i]
		if !c.takes(rule) {
			continue
		}
		taken = true
		if rule.Field == config.RewriteName {
			if err := c.rename(rule); err != nil {
				return true, err
			}
		}
		if !rule.Continue {
			break
		}
	}
	return taken, nil
}

// takes puts the query through one rule, but for its name.
func (c *Change) takes(r *rule) bool {
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
		if !r.takes(c.text) {
			return false
		}
	}
	if r.Field != config.RewriteName {
		c.edits = append(c.edits, edit{rule: r})
	}
	return true
}

// rename makes the rule's name the one that is asked.
func (c *Change) rename(r *rule) error {
	c.other = lowered(r.replace(c.other[:0], c.text))
	e := edit{rule: r, from: len(c.turned)}
	var ok bool
	c.turned, ok = wire.AppendName(c.turned, c.other)
	if !ok || len(c.other) > maxText {
		return ErrName
	}
	e.made = len(c.turned)
	c.turned = append(c.turned, c.name...)
	e.to = len(c.turned)
	c.name = append(c.name[:0], c.turned[e.from:e.made]...)
	c.text = wire.AppendText(c.text[:0], c.name)
	c.edits = append(c.edits, e)
	return nil
}

// Name is what is asked instead, in wire form and lower case. It is c's own.
func (c *Change) Name() []byte { return c.name }

// Owner is what the owner of a record becomes (see [wire.Editor]).
func (c *Change) Owner(name []byte) []byte { return c.edit(name, false) }

// Value is what a name in a record's data becomes (see [wire.Editor]).
func (c *Change) Value(name []byte) []byte { return c.edit(name, true) }

// edit puts a name of the reply through the edits; nil is a name that is none.
func (c *Change) edit(name []byte, value bool) []byte {
	for i := len(c.edits) - 1; i >= 0 && name != nil; i-- {
		name = c.one(&c.edits[i], name, value)
	}
	return name
}

// one puts a name of the reply through one edit.
func (c *Change) one(e *edit, name []byte, value bool) []byte {
	if e.Field != config.RewriteName {
		return name
	}
	for i := len(e.answers) - 1; i >= 0 && name != nil; i-- {
		if a := &e.answers[i]; a.value == value {
			name = c.match(a, name)
		}
	}
	if e.Auto && name != nil {
		name = c.back(e, name)
	}
	return name
}

// buffer is one to make a name in, another one than the last.
func (c *Change) buffer() *[]byte {
	c.next = 1 - c.next
	c.out[c.next] = c.out[c.next][:0]
	return &c.out[c.next]
}

// match is name as a makes it.
func (c *Change) match(a *answer, name []byte) []byte {
	c.text = wire.AppendText(c.text[:0], name)
	at := a.pattern.FindSubmatchIndex(c.text)
	if at == nil {
		return name
	}
	c.other = a.to.expand(c.other[:0], c.text, at)
	return c.made()
}

// made is the name in c.other, nil if it is none. A second dot at its end is passed over:
// what replaces a name ends with one, and so may the group of a pattern before it.
func (c *Change) made() []byte {
	b := c.buffer()
	var ok bool
	if *b, ok = wire.AppendName(*b, c.other); ok {
		return *b
	}
	if text, double := bytes.CutSuffix(c.other, []byte("..")); double {
		if *b, ok = wire.AppendName(*b, text); ok {
			return *b
		}
	}
	return nil
}

// back turns name back to what it was before e's rule, where that made it: the name
// itself or one below it; for a suffix all names that end with what the rule puts there.
func (c *Change) back(e *edit, name []byte) []byte {
	if e.Match.Kind == config.MatchSuffix {
		c.text = wire.AppendText(c.text[:0], name)
		head, ok := cut(c.text, e.To)
		if !ok {
			return name
		}
		c.other = append(append(c.other[:0], head...), e.Match.Text...)
		return c.made()
	}
	from, to := c.turned[e.from:e.made], c.turned[e.made:e.to]
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
	b := c.buffer()
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

// Aliases reports whether a rule may take what an alias of the reply leads to.
func (c *Change) Aliases() bool {
	for i := range c.edits {
		if c.edits[i].Field == config.RewriteCNAME {
			return true
		}
	}
	return false
}

// Target says what becomes of an alias of the reply, given what it leads to in wire form:
// the name to ask instead, and what it leads to then, which rules may have turned back.
// ok is false where no rule takes it. Both are made for the caller.
func (c *Change) Target(target []byte) (ask, leads []byte, ok bool) {
	name := target
	for i := len(c.edits) - 1; i >= 0 && name != nil; i-- {
		e := &c.edits[i]
		if e.Field != config.RewriteCNAME {
			name = c.one(e, name, true)
			continue
		}
		c.text = lowered(wire.AppendText(c.text[:0], name))
		if !e.takes(c.text) {
			continue
		}
		c.other = e.replace(c.other[:0], c.text)
		name = c.made()
		ask, ok = slices.Clone(name), true
	}
	return ask, slices.Clone(name), ok && name != nil
}
