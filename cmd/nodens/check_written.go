package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/config"
)

const (
	// maxWrittenSteps bounds the lines of a block for directives as they are written, and maxWrittenOptions the options of
	// one of them: a block may have a thousand rules.
	maxWrittenSteps   = 40
	maxWrittenOptions = 20
)

// addWritten adds what the steps so far do not say: directives without a step, and options, as they are written.
func (s *steps) addWritten(b *config.Block) {
	left := 0
	has := func(name string) bool {
		return slices.ContainsFunc(s.list, func(step checkedStep) bool { return step.Name == name })
	}
	said := make(map[string]bool) // directives with a step that has their arguments
	for _, w := range b.Written {
		if _, seen := said[w.Name]; !seen {
			said[w.Name] = has(w.Name) || w.Name == "bind" || w.Name == "tls"
		}
	}
	shown := 0
	for _, w := range b.Written {
		text := writtenText(w, said[w.Name])
		if text == "" || config.NoEffect(w.Name) != "" {
			continue
		}
		if shown++; shown > maxWrittenSteps {
			left++
			continue
		}
		s.addAfter(w.Name, text)
	}
	if left > 0 {
		s.add("and", nil, "%d more directives", left)
	}
}

// writtenText returns a directive without its name; "" if said, that another step has its arguments, and it has no options.
func writtenText(w config.Written, said bool) string {
	options := slices.DeleteFunc(slices.Clone(w.Options), func(o string) bool {
		first, _, _ := strings.Cut(o, " ")
		_, err := netip.ParseAddr(first)
		return w.Name == "hosts" && err == nil || w.Name == "tsig" || w.Name == "log" // lines of hosts, secrets, what a step has said
	})
	if n := len(options) - maxWrittenOptions; n > 0 {
		options = append(options[:maxWrittenOptions], fmt.Sprintf("and %d more", n))
	}
	list := strings.Join(options, "; ")
	switch {
	case said && list == "":
		return ""
	case said:
		return "with " + list
	case list != "":
		return strings.TrimSpace(w.Args + " { " + list + " }")
	case w.Args == "":
		return "on"
	}
	return w.Args
}

// addAfter adds a step after the last one of its name.
func (s *steps) addAfter(name, text string) {
	s.add(name, nil, "%s", text)
	last := len(s.list) - 1
	for i := last - 1; i >= 0; i-- {
		if s.list[i].Name == name {
			s.list = slices.Insert(s.list[:last:last], i+1, s.list[last])
			return
		}
	}
}
