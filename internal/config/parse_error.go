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
	if len(f.Allowed) > 0 {
		b.WriteString("; allowed: " + strings.Join(f.Allowed, ", "))
	}
	return oneLine.Replace(b.String())
}

// oneLine escapes line breaks in a quoted word.
var oneLine = strings.NewReplacer("\n", `\n`, "\r", `\r`)

// maxErrors bounds the errors that are reported. A file with more is probably not a Corefile.
const maxErrors = 25

// joinErrors joins faults, sorted by file and line and without duplicates; nil if there are
// none.
func joinErrors(file string, faults []*ParseError) error {
	slices.SortStableFunc(faults, func(a, b *ParseError) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	var errs []error
	seen := make(map[string]bool)
	for _, f := range faults {
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

// closestMatch returns the word of allowed that text is probably a typing error for, or "".
func closestMatch(text string, allowed []string) string {
	// One wrong letter in three: "lop" is loop, but "dns64" is not "ready".
	best, limit := "", max(1, len(text)/3)
	if len(text) > 64 { // no directive or option is a third as long
		return ""
	}
	for _, word := range allowed {
		if d := editDistance(strings.ToLower(text), word); d <= limit {
			best, limit = word, d-1
		}
	}
	return best
}

// editDistance returns the number of letters to add, drop, change or swap with their
// neighbour to turn a into b (optimal string alignment distance).
func editDistance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, above, twice := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], twice[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
