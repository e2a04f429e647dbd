package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	helpWidth   = 100 // columns of the help text
	helpColumns = 26  // columns of a flag's name and value; longer ones take a line of their own
)

// Help returns the help of cmd: what it does, how it is called, examples, its commands, and
// its flags by group.
func Help(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n", Description(cmd))
	for _, line := range UsageLines(cmd) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if commands := Commands(cmd); len(commands) > 0 {
		b.WriteString("\nCommands:\n")
		for _, c := range commands {
			fmt.Fprintf(&b, "  %-12s %s\n", c.Name(), c.Short)
		}
	}
	for _, g := range Groups(cmd.Flags()) {
		fmt.Fprintf(&b, "\n%s:\n", g.Title)
		for _, f := range g.Flags {
			writeFlag(&b, f)
		}
	}
	return b.String()
}

// NewHelpCommand returns `help`, which prints the help of any command.
func NewHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range Commands(cmd.Root()) {
				if len(args) == 0 && strings.HasPrefix(c.Name(), typed) {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		Example: "  nodens help check",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return UnknownCommand(about, rest[0])
			}
			return about.Help()
		},
	}
}

// Description returns what cmd does, in full.
func Description(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return strings.TrimSpace(cmd.Long)
	}
	return cmd.Short
}

// UsageLines returns how cmd is called, one form in a line.
func UsageLines(cmd *cobra.Command) []string {
	lines := []string{cmd.UseLine()}
	if len(Commands(cmd)) > 0 {
		lines = append(lines, cmd.CommandPath()+" COMMAND [flags]")
	}
	return lines
}

// Commands returns the commands below cmd that are not hidden.
func Commands(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			list = append(list, c)
		}
	}
	return list
}

// Spelling returns how f is written, such as "-o, --output text|json".
func Spelling(f *pflag.Flag) string {
	text := "--" + f.Name
	if f.Shorthand != "" {
		text = "-" + f.Shorthand + ", " + text
	}
	if v := ValueName(f); v != "" {
		text += " " + v
	}
	return text
}

// writeFlag writes the lines of one flag.
func writeFlag(b *strings.Builder, f *pflag.Flag) {
	text := Usage(f)
	if d := Default(f); d != "" {
		text += " (default " + d + ")"
	}
	name, indent := Spelling(f), strings.Repeat(" ", helpColumns+4)
	if len(name) > helpColumns {
		fmt.Fprintf(b, "  %s\n%s", name, indent)
	} else {
		fmt.Fprintf(b, "  %-*s  ", helpColumns, name)
	}
	b.WriteString(strings.Join(wrap(text, helpWidth-len(indent)), "\n"+indent))
	b.WriteByte('\n')
}

// wrap breaks text into lines of at most width columns, if its words are no longer.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
