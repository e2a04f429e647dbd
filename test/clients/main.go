package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// The tables of the page stand between these lines.
const (
	begin        = "<!-- begin: go run ./test/clients -->\n"
	beginServers = "<!-- begin: go run ./test/clients --servers -->\n"
	end          = "<!-- end -->\n"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == goLookups {
		lookUp(os.Args[2:])
		return
	}
	page := flag.String("page", "", "write the table into this `file`; by default it is printed")
	servers := flag.Bool("servers", false, "ask with two name servers, of which the first one fails")
	flag.Parse()
	if err := run(context.Background(), *page, *servers); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

// run asks with all programs and writes the table.
func run(ctx context.Context, page string, servers bool) error {
	dir, err := os.MkdirTemp("", "clients-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if servers {
		text, err := serversTable(ctx, dir)
		if err != nil {
			return err
		}
		return write(page, beginServers, text)
	}
	b, err := startBed(ctx, dir)
	defer b.close()
	if err != nil {
		return err
	}
	text, err := table(ctx, b)
	if err != nil {
		return err
	}
	return write(page, begin, text)
}

// write writes a table into the page, after the line begin; "" prints it.
func write(page, begin, text string) error {
	if page == "" {
		fmt.Print(text)
		return nil
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the line %s or %s", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(page, []byte(head+begin+text+end+tail), 0o644)
}

// table returns a row for each group of installed programs that find the same numbers.
func table(ctx context.Context, b *bed) (string, error) {
	var cells []string
	programs := map[string][]string{}
	for _, c := range Clients() {
		c, err := c.prepare(ctx, b.dir)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err != nil {
			return "", err
		}
		found, err := row(ctx, b, c)
		if err != nil {
			return "", err
		}
		if programs[found] == nil {
			cells = append(cells, found)
		}
		programs[found] = append(programs[found], c.title(ctx))
	}
	var text strings.Builder
	text.WriteString("| programs |")
	for _, s := range Situations() {
		fmt.Fprintf(&text, " %s |", s.Title)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(Situations())) + "\n")
	for _, found := range cells {
		fmt.Fprintf(&text, "| %s |%s\n", strings.Join(programs[found], "; "), found)
	}
	return text.String(), nil
}

// row returns the cells of a program.
func row(ctx context.Context, b *bed, c Client) (string, error) {
	var text strings.Builder
	for _, s := range Situations() {
		cell := ""
		if c.Asks(s) {
			var err error
			if cell, err = compare(ctx, b, c, s); err != nil {
				return "", err
			}
		}
		fmt.Fprintf(&text, " %s |", cell)
	}
	return text.String(), nil
}

// compare returns how many records the program gets, and CoreDNS's number if it differs.
func compare(ctx context.Context, b *bed, c Client, s Situation) (string, error) {
	n, err := c.Count(ctx, b.dir, b.nodens, s)
	if err != nil {
		return "", err
	}
	other, err := c.Count(ctx, b.dir, b.other, s)
	if err != nil || n == other {
		return fmt.Sprint(n), err
	}
	return fmt.Sprintf("%d (CoreDNS %d)", n, other), nil
}

// title returns the program's name with its version.
func (c Client) title(ctx context.Context) string {
	version := c.Note
	if c.Program == "" {
		version = runtime.Version()
	} else if c.Package != "" {
		out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", c.Package).Output() //nolint:gosec // the table's
		if err == nil {
			version = strings.TrimPrefix(version+", Debian "+string(out), ", ")
		}
	}
	if version == "" {
		return c.Name
	}
	return c.Name + " (" + version + ")"
}
