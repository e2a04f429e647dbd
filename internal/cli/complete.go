package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addCompletions tells root's completion what the values of flags may be: words to choose
// from, directories, files, or nothing that the shell knows.
func addCompletions(root *cobra.Command) error {
	var err error
	walk(root, func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if complete := completion(f); complete != nil && err == nil {
				err = cmd.RegisterFlagCompletionFunc(f.Name, complete)
			}
			f.Usage = Usage(f) // shells print it without quotes
		})
		if cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	})
	return err
}

// completion returns the completion of f's value, nil for files.
func completion(f *pflag.Flag) cobra.CompletionFunc {
	if v, ok := f.Value.(*value); ok && v.values != nil {
		return cobra.FixedCompletions(v.values, cobra.ShellCompDirectiveNoFileComp)
	}
	switch ValueName(f) {
	case "FILE", "PATH":
		return nil
	case "DIRECTORY":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	default:
		return cobra.NoFileCompletions
	}
}

// completing reports whether args are a shell's request for completions.
func completing(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) // or ShellCompNoDescRequestCmd
}
