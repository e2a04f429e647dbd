package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ParseError is an error in a Corefile or in a file it names. It says where the error is and
// what to write instead. It is immutable.
type ParseError struct {
	// File and Line are the place of Word; Line is 0 if the error is about the whole file.
	File string
	Line int
	// Directive and Option are the directive and the option with the error, or "".
	Directive, Option string
	// Word is the wrong word as written in the file, or "".
	Word string
	// Text says what is wrong and what to do.
	Text string
	// Nearest is the allowed word that Word probably means, or "".
	Nearest string
	// Allowed are the words that are allowed there; nil if they can't be listed.
	Allowed []string
	// listed says that an error before lists them.
	listed bool
}

// Error is "FILE:LINE: DIRECTIVE OPTION: TEXT (did you mean …?); allowed: …", in one
// line.
func (f *ParseError) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Directive != "" {
		b.WriteString(strings.TrimSpace(f.Directive+" "+f.Option) + ": ")
	}
	b.WriteString(f.Text)
	if f.Nearest != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", f.Nearest)
	}
	if len(f.Allowed) > 0 && !f.listed {
		b.WriteString("; allowed: " + strings.Join(f.Allowed, ", "))
	}
	return oneLine.Replace(b.String())
}

// oneLine escapes line breaks in a quoted word.
var oneLine = strings.NewReplacer("\n", `\n`, "\r", `\r`)

// ParseErrors returns the errors that err joins, an error of another type as one without a place.
// It returns nil if err is nil.
func ParseErrors(err error) (list []*ParseError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the joined errors, not one of them
		for _, e := range joined.Unwrap() {
			list = append(list, ParseErrors(e)...)
		}
		return list
	}
	var f *ParseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return []*ParseError{f}
	}
	return []*ParseError{{Text: err.Error()}}
}

// maxErrors bounds the errors that are reported. A file with more is probably not a Corefile.
const maxErrors = 25

// joinErrors joins faults, sorted by file and line and without duplicates; nil if there are
// none.
func joinErrors(file string, faults []*ParseError) error {
	slices.SortStableFunc(faults, func(a, b *ParseError) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	var errs []error
	seen, listed := make(map[string]bool), make(map[string]bool)
	for _, f := range faults {
		if list := strings.Join(f.Allowed, " "); listed[list] {
			f.listed = true
		} else if list != "" {
			listed[list] = true
		}
		text := f.Error()
		if seen[text] {
			continue
		}
		seen[text] = true
		if len(errs) == maxErrors {
			more := &ParseError{File: file, Text: "there are more errors; fix these first"}
			return errors.Join(append(errs, more)...)
		}
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}
