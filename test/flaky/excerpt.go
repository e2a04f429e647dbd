package main

import (
	"fmt"
	"slices"
)

// maxExcerpt bounds each half of an excerpt, in bytes.
const maxExcerpt = 8 << 10

// excerpt keeps the beginning and the end of a text. The zero value is empty.
type excerpt struct {
	head, tail []byte
	dropped    int // bytes between them
}

func (e *excerpt) write(s string) {
	n := min(len(s), maxExcerpt-len(e.head))
	e.head = append(e.head, s[:n]...)
	e.tail = append(e.tail, s[n:]...)
	if excess := len(e.tail) - maxExcerpt; excess > 0 {
		e.tail = slices.Delete(e.tail, 0, excess)
		e.dropped += excess
	}
}

func (e *excerpt) String() string {
	if e.dropped == 0 {
		return string(e.head) + string(e.tail)
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", e.head, e.dropped, e.tail)
}
