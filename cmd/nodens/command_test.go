package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelp: each command has an example and prints its help to standard output; the lines are
// not too long, and no command but the agent has all of its flags.
func TestHelp(t *testing.T) {
	root, plugin := newRootCommand(), newPluginCommand()
	root.InitDefaultHelpCmd()
	for _, c := range slices.Concat(allCommands(root), allCommands(plugin)) {
		args := strings.Fields(strings.TrimPrefix(c.CommandPath(), c.Root().CommandPath()) + " --help")
		var out, errors bytes.Buffer
		code := execute(t.Context(), c.Root(), args, &out, &errors)
		stdout, stderr := out.String(), errors.String()
		if code != 0 || stderr != "" {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
		hasTexts(t, stdout, "Usage:\n  "+c.CommandPath(), "Examples:\n  ", "-h, --help")
		for line := range strings.Lines(stdout) {
			if len(line) > 101 || strings.Contains(line, "`") {
				t.Errorf("%v: %q", args, line)
			}
		}
		if c != root && strings.Contains(stdout, "--readers") && strings.Contains(stdout, "--pidfile") {
			t.Errorf("%v lists the agent's flags:\n%s", args, stdout)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && strings.TrimSpace(f.Usage) == "" {
				t.Errorf("%s --%s has no text", c.CommandPath(), f.Name)
			}
		})
	}
	for _, name := range []string{"flush", "upstreams"} { // earlier names, for scripts
		if c, _, err := root.Find([]string{name}); err != nil || c == root || !c.Hidden {
			t.Errorf("%s: %v, hidden %v", name, err, c.Hidden)
		}
	}
}

// TestCompletion: every shell has a script, and values are completed.
func TestCompletion(t *testing.T) {
	for _, shell := range shells {
		if code, stdout, stderr := outcome(t, "completion", shell); code != 0 || !strings.Contains(stdout, "nodens") || stderr != "" {
			t.Errorf("%s: exit code %d, %q", shell, code, stderr)
		}
	}
	for _, tt := range []struct {
		args []string
		want []string // the words, then the shell's directive
	}{
		{[]string{"--netfilter", ""}, []string{"auto", "iptables", "nftables", "none", ":4"}},
		{[]string{"-netfilter", ""}, []string{"auto", "iptables", "nftables", "none", ":4"}},
		{[]string{"--log-level", ""}, []string{"debug", "info", "warn", "error", ":4"}},
		{[]string{"version", "-o", ""}, []string{"text", "json", ":4"}},
		{[]string{"check", "--conf", ""}, []string{":0"}},
		{[]string{"--kubednscm", ""}, []string{":16"}},
		{[]string{"--localip", ""}, []string{":4"}},
		{[]string{"completion", ""}, append(slices.Clone(shells), ":4")},
		{[]string{"flush", ""}, []string{":4"}},
		{[]string{"pla"}, []string{"plan", ":4"}},
		{[]string{"help", "pla"}, []string{"plan", ":4"}},
		{[]string{"--kernel-path-o"}, []string{"--kernel-path-order", ":4"}},
		{[]string{"check", "--pidf"}, []string{":4"}}, // accepted, but not the command's own
	} {
		code, stdout, _ := outcome(t, append([]string{cobra.ShellCompNoDescRequestCmd}, tt.args...)...)
		if got := strings.Fields(stdout); code != 0 || !slices.Equal(got, tt.want) {
			t.Errorf("%q: %d, %q, want %q", tt.args, code, got, tt.want)
		}
	}
}

// TestAgentFailure: an error that ends the agent is a line of its log. A user's mistake in the
// arguments is a line of text unless --log-format says otherwise.
func TestAgentFailure(t *testing.T) {
	for _, tt := range []struct {
		args, want string // want is the beginning; {"err" for JSON
		code       int
	}{
		{"-conf /nonexistent/C", "time=", 1},
		{"-conf /nonexistent/C -log-format text", "time=", 1},
		{"-conf /nonexistent/C -log-format coredns", "[ERROR] the agent failed err=", 1},
		{"-conf /nonexistent/C -log-format=json", "{", 1},
		{"--log-format json -nosuch", "{", 2},
		{"-nosuch --log-format=json", "{", 2},
		{"-nosuch --log-format coredns", "[ERROR] ", 2},
		{"-nosuch", "nodens: unknown flag", 2},
		{"-log-format xml", `nodens: invalid value "xml" for --log-format: give text, json or coredns`, 2},
		{"-log-level trace", `nodens: invalid value "trace" for --log-level: give debug, info, warn or error`, 2},
		{"check -conf /nonexistent/C", "nodens: ", 1},
	} {
		code, stdout, stderr := outcome(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.HasPrefix(stderr, tt.want) || stdout != "" {
			t.Errorf("%s: exit code %d, %q, %q; want %d, %q", tt.args, code, stdout, stderr, tt.code, tt.want)
		}
		if tt.want != "{" {
			continue
		}
		var line struct{ Level, Msg, Err string }
		if err := json.Unmarshal([]byte(stderr), &line); err != nil || line.Level != "ERROR" || line.Msg != "the agent failed" || line.Err == "" {
			t.Errorf("%s: %+v, %v", tt.args, line, err)
		}
	}
}
