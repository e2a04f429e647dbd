package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/test/rig/check"
)

// write is the folder where TestReference writes the pages and man pages of the commands.
var write = flag.String("write", "", "folder for the pages and man pages of the commands")

// TestReference: the page about commands names each of them, and no other. With -write it writes a
// page and a man page for each command.
func TestReference(t *testing.T) {
	root, plugin := newRootCommand(), newPluginCommand()
	root.InitDefaultHelpCmd()
	page, err := os.ReadFile("../../docs/reference/commands.md")
	check.NoError(t, err)
	var want, got []string
	for _, c := range slices.Concat(allCommands(root), allCommands(plugin)) {
		want = append(want, c.CommandPath())
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		for file, text := range map[string]string{name + ".md": commandPage(c), name + ".1": manPage(c)} {
			if *write == "" {
				continue
			}
			check.NoError(t, os.WriteFile(filepath.Join(*write, file), []byte(text), 0o644))
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:kubectl )?nodens[a-z ]*)` \\|").FindAllSubmatch(page, -1) {
		got = append(got, string(m[1]))
	}
	check.Equal(t, want, got, "commands of docs/reference/commands.md")
}

// allCommands returns cmd and all commands below it that are not hidden.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, c := range cli.Commands(cmd) {
		list = append(list, allCommands(c)...)
	}
	return list
}

// commandPage is the page of one command.
func commandPage(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n```text\n%s\n```\n", cmd.CommandPath(), code(cli.Description(cmd)), strings.Join(cli.UsageLines(cmd), "\n"))
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```text\n%s\n```\n", unindented(cmd.Example))
	}
	for _, g := range cli.Groups(cmd.Flags()) {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | default | meaning |\n|---|---|---|\n", g.Title)
		for _, f := range g.Flags {
			value := ""
			if d := cli.Default(f); d != "" {
				value = "`" + d + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", cell(cli.Spelling(f)), value, cell(code(cli.Usage(f))))
		}
	}
	return b.String()
}

// codeWords are flags, variables and placeholders.
var codeWords = regexp.MustCompile(`(^|\s|\()(--?[a-z]([a-z.-]*[a-z])?(=[A-Za-z]+)?|__[A-Z_]+__|\$[A-Z_]+)`)

// code is text with its flags, variables and placeholders as code.
func code(text string) string { return codeWords.ReplaceAllString(text, "$1`$2`") }

// cell is text in a table's cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func unindented(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimRight(text, "\n"), "  "), "\n  ", "\n")
}

// manPage is the man page of one command.
func manPage(cmd *cobra.Command) string {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" nodens \"nodens manual\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", roff(strings.ToUpper(name)), roff(name), roff(cmd.Short))
	for _, line := range cli.UsageLines(cmd) {
		b.WriteString(roff(line) + "\n")
	}
	b.WriteString(".fi\n.SH DESCRIPTION\n" + strings.ReplaceAll(roff(cli.Description(cmd)), "\n\n", "\n.PP\n") + "\n")
	for _, g := range cli.Groups(cmd.Flags()) {
		fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(g.Title)))
		for _, f := range g.Flags {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(cli.Spelling(f)), roff(cli.Usage(f)))
			if d := cli.Default(f); d != "" {
				fmt.Fprintf(&b, "(default %s)\n", roff(d))
			}
		}
	}
	if list := cli.Commands(cmd); len(list) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range list {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(c.CommandPath()), roff(c.Short))
		}
	}
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(unindented(cmd.Example)) + "\n.fi\n")
	}
	b.WriteString(seeAlso(cmd))
	return b.String()
}

func seeAlso(cmd *cobra.Command) string {
	if cmd.HasParent() {
		return fmt.Sprintf(".SH SEE ALSO\n.BR %s (1)\n", roff(strings.ReplaceAll(cmd.Root().CommandPath(), " ", "-")))
	}
	var list []string
	for _, c := range allCommands(cmd)[1:] {
		list = append(list, fmt.Sprintf(".BR %s (1)", roff(strings.ReplaceAll(c.CommandPath(), " ", "-"))))
	}
	return ".SH SEE ALSO\n" + strings.Join(list, ",\n") + "\n"
}

var lineStart = regexp.MustCompile(`(?m)^([.'])`)

// roff is text without meaning for roff.
func roff(text string) string {
	return lineStart.ReplaceAllString(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), `\&$1`)
}
