package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Normalize returns args with each flag written as --name, whether it has one dash or two,
// a long name or one letter. NodeLocal DNSCache's flags are long and have one dash. A token is
// a value, and stays, if the flag before it takes one; so do "-" and all after "--". One
// letter that no flag has stays as it is, for the error message.
func Normalize(root *cobra.Command, args []string) []string {
	if completing(args) {
		last := len(args) - 1 // what is being typed
		if last == 0 {
			return args
		}
		return append(append([]string{args[0]}, Normalize(root, args[1:last])...), args[last])
	}
	cmd := root
	return normalize(args, func() *pflag.FlagSet { return cmd.Flags() }, func(arg string) {
		for _, c := range cmd.Commands() {
			if c.Name() == arg || c.HasAlias(arg) {
				cmd = c
				return
			}
		}
	})
}

// NormalizeFlags is [Normalize] for a set of flags without commands.
func NormalizeFlags(flags *pflag.FlagSet, args []string) []string {
	return normalize(args, func() *pflag.FlagSet { return flags }, func(string) {})
}

// normalize calls argument for each argument that is neither a flag nor its value.
func normalize(args []string, flags func() *pflag.FlagSet, argument func(string)) []string {
	out := make([]string, 0, len(args))
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return append(out, args...)
		}
		args = args[1:]
		if len(arg) < 2 || arg[0] != '-' {
			argument(arg)
			out = append(out, arg)
			continue
		}
		flag, takesNext := longFlag(flags(), arg)
		out = append(out, flag)
		if takesNext && len(args) > 0 {
			out, args = append(out, args[0]), args[1:]
		}
	}
	return out
}

// longFlag returns arg, which begins with a dash, as --name or --name=value, and whether the
// next argument is the flag's value. A letter that no flag has, and three dashes, stay.
func longFlag(flags *pflag.FlagSet, arg string) (flag string, takesNext bool) {
	name, text, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
	f := flags.Lookup(name)
	if f == nil && len(name) == 1 {
		f = flags.ShorthandLookup(name)
	}
	switch {
	case f != nil:
		name = f.Name
	case len(name) < 2 || name[0] == '-':
		return arg, false
	}
	if hasValue {
		return "--" + name + "=" + text, false
	}
	return "--" + name, f != nil && f.NoOptDefVal == ""
}
