// Package cli has the conventions of the command line, on top of cobra: flags in groups, one
// dash or two before a long flag, errors that name the nearest command or flag, help on
// standard output, and results as text or JSON.
//
// A tree of commands goes through [Prepare] once; [Execute] runs it.
// Errors in the arguments are of type [UsageError], so that the program can tell them from
// failures of the command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/internal/spelling"
)

// UsageError is an error in the arguments: a command, a flag or its value.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a [UsageError] with the text of [fmt.Errorf].
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Execute runs the command of root that args name, and returns it. An error of type
// [UsageError] is one in args.
func Execute(ctx context.Context, root *cobra.Command, args []string) (*cobra.Command, error) {
	if completing(args) {
		if err := addCompletions(root); err != nil {
			return root, err
		}
	}
	root.SetArgs(Normalize(root, args))
	return root.ExecuteContextC(ctx)
}

// Prepare sets the conventions for root and all commands below it. Call it when the tree is
// complete. The caller prints errors.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { cmd.Print(Help(cmd)) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		cmd.Print(Help(cmd))
		return nil
	})
	root.SetFlagErrorFunc(flagError)
	walk(root, func(cmd *cobra.Command) {
		cmd.Flags().SortFlags = false
		cmd.InitDefaultHelpFlag()
		if f := cmd.Flags().Lookup("help"); f != nil {
			f.Usage = "print this help and exit"
			SetGroup(f, GroupGeneral)
		}
	})
}

// walk calls visit for cmd and all commands below it.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		walk(c, visit)
	}
}

// NoArgs is for commands without arguments. The error says what an argument may have been.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usagef("%w; %s", UnexpectedArgument(args[0]), seeHelp(cmd))
}

// UnexpectedArgument returns the error for an argument where only flags may be.
func UnexpectedArgument(arg string) error {
	return fmt.Errorf("unexpected argument %q; a flag starts with dashes and takes its value as --name=value", arg)
}

// OneArg is for commands with one argument; what describes it.
func OneArg(what string) cobra.PositionalArgs { return Args(1, 1, what) }

// Args is for commands with least to most arguments; what describes them.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		return Usagef("%s takes %s, but it got %d arguments; %s", cmd.Name(), what, len(args), seeHelp(cmd))
	}
}

// UnknownCommand returns the error for a command that parent does not have.
func UnknownCommand(parent *cobra.Command, name string) error {
	if _, err := strconv.ParseBool(name); err == nil { // as in "-setupinterface false"
		return Usagef("%w; %s", UnexpectedArgument(name), seeHelp(parent))
	}
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			names = append(names, c.Name())
		}
	}
	if nearest := spelling.Closest(name, names); nearest != "" {
		return Usagef("unknown command %q; did you mean %q?", name, nearest)
	}
	return Usagef("unknown command %q; the commands are %s", name, strings.Join(names, ", "))
}

func seeHelp(cmd *cobra.Command) string { return cmd.CommandPath() + " --help lists the flags" }

// flagError returns a [UsageError] for an error of [pflag.FlagSet.Parse].
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	err = FlagError(cmd.Flags(), err)
	if strings.HasSuffix(err.Error(), "?") { // it names the flag
		return &UsageError{err}
	}
	return &UsageError{fmt.Errorf("%w; %s", err, seeHelp(cmd))}
}

// FlagError returns an error of [pflag.FlagSet.Parse] in this program's words. For a flag
// that flags does not have, it names the nearest one.
func FlagError(flags *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			letter, _, _ := strings.Cut(letters, "=")
			return fmt.Errorf("unknown flag -%s", letter)
		}
		name := unknown.GetSpecifiedName()
		var names []string
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if nearest := spelling.Closest(name, names); nearest != "" {
			return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, nearest)
		}
		return fmt.Errorf("unknown flag --%s", name)
	case errors.As(err, &missing):
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &invalid):
		return fmt.Errorf("invalid value %q for --%s: %w", invalid.GetValue(), invalid.GetFlag().Name, invalid.Unwrap())
	}
	return err
}
