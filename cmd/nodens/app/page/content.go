package page

import (
	"bytes"
	"sync"
	"time"
)

// contents has what the streams of events send. Streams with the same parameters share a content, which is
// rendered once for all of them. The zero value is empty.
type contents struct {
	mu  sync.Mutex
	all map[string]*content // by the parameters
}

// open returns the content for parameters. The caller closes it.
func (x *contents) open(v parameters) *content {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = make(map[string]*content)
	}
	key := v.values().Encode()
	c := x.all[key]
	if c == nil {
		c = &content{key: key, parameters: v, index: make(map[string]int)}
		x.all[key] = c
	}
	c.streams++
	return c
}

// close ends the use of a content. The last one removes it.
func (x *contents) close(c *content) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c.streams--; c.streams == 0 {
		delete(x.all, c.key)
	}
}

// content is what a stream sends. It is safe for concurrent use.
type content struct {
	key        string
	parameters parameters
	streams    int // of [contents], whose lock guards it

	mu       sync.Mutex
	interval int64 // for which it was rendered
	sample   time.Time
	parts    []rendered
	index    map[string]int // of the part of an element
	version  uint64
	buffer   bytes.Buffer
}

// rendered is a part as text. version is the content's with which the text has changed.
type rendered struct {
	id, text string
	version  uint64
}

// since returns the parts that have changed since a version, by the ID of the element, and the version now. The
// first call in each interval renders them.
func (c *content) since(version uint64, p *Page, now time.Time) (changed map[string]string, to uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if interval := now.UnixNano() / int64(p.refresh); c.version == 0 || interval != c.interval {
		if err := c.render(p); err != nil {
			return nil, 0, err
		}
		c.interval = interval
	}
	changed = make(map[string]string)
	for i := range c.parts {
		if part := &c.parts[i]; part.version > version {
			changed[part.id] = part.text
		}
	}
	return changed, c.version, nil
}

// render renders the parts that each event may have, and the others if there is a new sample of the history.
func (c *content) render(p *Page) error {
	list := p.fastParts(c.parameters)
	if c.version == 0 || !p.source.LastSample().Equal(c.sample) {
		h := p.source.History()
		list, c.sample = append(list, p.slowParts(c.parameters, &h)...), h.End
	}
	c.version++
	for _, part := range list {
		c.buffer.Reset()
		if err := templates().ExecuteTemplate(&c.buffer, part.template, part.data); err != nil {
			return err
		}
		c.set(part.id, c.buffer.Bytes())
	}
	return nil
}

// set sets the text of a part.
func (c *content) set(id string, text []byte) {
	i, ok := c.index[id]
	if !ok {
		i = len(c.parts)
		c.index[id] = i
		c.parts = append(c.parts, rendered{id: id})
	}
	if part := &c.parts[i]; !ok || part.text != string(text) {
		part.text, part.version = string(text), c.version
	}
}
