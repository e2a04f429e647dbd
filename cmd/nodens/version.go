package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/cli"
)

// version and revision are set by the linker in released binaries.
var version, revision = "dev", ""

func newVersionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  nodens version\n  nodens version -o json",
		Args:    cli.NoArgs,
	}
	output := cli.AddOutput(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		build := buildInfo()
		result := versionResult{build.Version, build.Commit, build.GoVersion, runtime.GOOS + "/" + runtime.GOARCH}
		return output.Print(cmd.OutOrStdout(), result, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, build)
			return err
		})
	}
	return cmd
}

// versionResult is the result of `nodens version -o json`.
type versionResult struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// buildInfo describes this binary. The commit is the one the linker was given, else the
// one that the go tool recorded.
func buildInfo() options.Build {
	commit := revision
	if info, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return options.Build{Version: version, Commit: cmp.Or(commit, "unknown"), GoVersion: runtime.Version()}
}
