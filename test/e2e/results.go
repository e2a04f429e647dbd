package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/file"
)

// writeResults writes the table as a document in Markdown that takes the place of the file, with
// the commit it is of; "+" behind that says that the tree differs from it.
func (s *suite) writeResults(ctx context.Context, path string) error {
	commit, err := s.git(ctx, "rev-parse", "--short", "HEAD")
	if err != nil {
		return err
	}
	changes, err := s.git(ctx, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return err
	}
	if changes != "" {
		commit += "+"
	}
	return file.Replace(path, func(w io.Writer) error { return s.writeMarkdown(w, commit) })
}

func (s *suite) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = s.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *suite) writeMarkdown(w io.Writer, commit string) error {
	var took time.Duration
	for _, l := range s.results {
		took += l.took
	}
	_, err := fmt.Fprintf(w, `# Checks in a real cluster

Written by `+"`go run ./test/e2e -out FILE`"+`: commit %s, %d CPUs, %.0f s in all. [README.md](README.md) says what
the parts are.
`, commit, runtime.NumCPU(), took.Seconds())
	part := ""
	for _, l := range s.results {
		if err == nil && l.part != part {
			part = l.part
			_, err = fmt.Fprintf(w, "\n## %s\n\n| check | s | result |\n|---|--:|---|\n", part)
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "| %s | %.1f | %s |\n", l.name, l.took.Seconds(), cell(l))
		}
	}
	return err
}

// cell is what was seen, on one line.
func cell(l result) string {
	text := l.seen
	if l.err != nil {
		text = "**failed**: " + l.err.Error()
	}
	return strings.NewReplacer("\n", " ", "|", "\\|", "; node-", ";<br>node-").Replace(text)
}
