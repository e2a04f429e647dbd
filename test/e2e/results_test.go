package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestWriteMarkdown: each line is a row of its part's table, and a failed one says so.
func TestWriteMarkdown(t *testing.T) {
	s := suite{results: []result{
		{part: "one", name: "first", seen: "a | b", took: time.Second},
		{part: "one", name: "second", err: errors.New("broken\ntwice"), took: 500 * time.Millisecond},
		{part: "two", name: "third", seen: "node-a: 1; node-b: 2"},
	}}
	var b strings.Builder
	if err := s.writeMarkdown(&b, "abc"); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "the parts are.\n")
	const want = `
## one

| check | s | result |
|---|--:|---|
| first | 1.0 | a \| b |
| second | 0.5 | **failed**: broken twice |

## two

| check | s | result |
|---|--:|---|
| third | 0.0 | node-a: 1;<br>node-b: 2 |
`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if !strings.Contains(b.String(), "commit abc, ") || !strings.Contains(b.String(), " 2 s in all") {
		t.Errorf("the head is %q", b.String())
	}
}
