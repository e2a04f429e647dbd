// Command pages prints the lines and words of the README and of each page below docs. Run it in
// the tree's root: go run ./test/docs/pages. The checks of the pages are the tests of test/docs.
package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Stdout, os.DirFS(".")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes the table for the tree in root.
func run(w io.Writer, root fs.FS) error {
	names := []string{"README.md"}
	err := fs.WalkDir(root, "docs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".md") {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; run this in the root of the repository", err)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "lines\twords\t  page")
	lines, words := 0, 0
	for _, name := range names {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		l, n := strings.Count(string(text), "\n"), len(strings.Fields(string(text)))
		lines, words = lines+l, words+n
		fmt.Fprintf(out, "%d\t%d\t  %s\n", l, n, name)
	}
	fmt.Fprintf(out, "%d\t%d\t  %d pages\n", lines, words, len(names))
	return out.Flush()
}
