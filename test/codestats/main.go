// Command codestats measures how the source is organized, and prints a Markdown table:
//
//	go run ./test/codestats [-before COMMIT]
//
// It counts lines, files, function names and uses, types whose methods are spread over files, and
// duplicate code. With -before, the table has a column for that commit, too.
//
// Product code is every Go file outside of test/ that is not a _test.go file, also in nested
// modules. Generated files are left out.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	before := flag.String("before", "", "`commit` to compare with")
	list := flag.Bool("list", false, "print the types with methods in three or more files, and end")
	flag.Bool("static", true, "read the source only, which is all that is left; for scripts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *list {
		err = printSpreadTypes(os.Stdout)
	} else {
		err = run(ctx, os.Stdout, *before)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "codestats:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, before string) error {
	root, err := peer.Root()
	if err != nil {
		return err
	}
	trees := []string{root}
	if before != "" {
		earlier, err := os.MkdirTemp("", "nodens-codestats-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(earlier)
		if err := peer.Checkout(ctx, root, before, earlier); err != nil {
			return err
		}
		trees = []string{earlier, root}
	}
	var columns [][]row
	for _, tree := range trees {
		source, err := readSource(tree)
		if err != nil {
			return err
		}
		columns = append(columns, source.rows())
	}
	write(out, columns)
	return nil
}

func printSpreadTypes(out io.Writer) error {
	root, err := peer.Root()
	if err != nil {
		return err
	}
	s, err := readSource(root)
	if err != nil {
		return err
	}
	for _, name := range s.spreadTypes() {
		fmt.Fprintln(out, name)
	}
	return nil
}

// row is one figure of the table.
type row struct{ name, value string }

// write prints the columns side by side. All have the same rows.
func write(out io.Writer, columns [][]row) {
	head, rule := "| |", "|---|"
	if len(columns) == 2 {
		head, rule = head+" before | after |", rule+"---|---|"
	} else {
		head, rule = head+" now |", rule+"---|"
	}
	fmt.Fprintf(out, "%s\n%s\n", head, rule)
	for i, r := range columns[0] {
		fmt.Fprintf(out, "| %s |", r.name)
		for _, c := range columns {
			fmt.Fprintf(out, " %s |", c[i].value)
		}
		fmt.Fprintln(out)
	}
}
