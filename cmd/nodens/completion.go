package main

import (
	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

// shells are the shells with completion.
var shells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script of a shell",
		Long: `Print the script that completes commands, flags and their values in a shell: bash, zsh, fish or
powershell. Load it in the shell's start-up file.`,
		Example: `  source <(nodens completion bash)
  nodens completion zsh > "${fpath[1]}/_nodens"
  nodens completion fish > ~/.config/fish/completions/nodens.fish
  nodens completion powershell | Out-String | Invoke-Expression`,
		ValidArgs: shells,
		Args:      cli.OneArg("one shell: bash, zsh, fish or powershell"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(out)
			}
			return cli.Usagef("no completion for %q; give bash, zsh, fish or powershell", args[0])
		},
	}
}
