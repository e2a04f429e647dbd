package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/migrate"
	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/config"
)

// migrateFlags are the flags of `nodens migrate`.
type migrateFlags struct {
	files               []string
	kubeconfig          string
	context             string
	namespace           string
	name, image, domain string
	minimal             bool
	helmValues, diff    bool
	read                []migrate.SourceFile // with diff
}

const migrateLong = `Print the manifest that replaces NodeLocal DNSCache, made from its DaemonSet and ConfigMap, and on
standard error what changes, and what nodens check warns of. The objects come from files or from the
API server. --diff prints the changes to the files instead, for their repository, and --helm-values
values for nodens' chart.`

func newMigrateCommand() *cobra.Command {
	f := new(migrateFlags)
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Print the manifest that replaces NodeLocal DNSCache",
		Long:  migrateLong,
		Example: `  nodens migrate --image registry.example/nodens:1 | kubectl apply -f -
  nodens migrate --image registry.example/nodens:1 -f nodelocaldns.yaml
  nodens migrate --image registry.example/nodens:1 -f nodelocaldns.yaml --diff | patch -p0`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q; files are given with -f", args[0])
			}
			return nil
		},
		RunE: interruptible(func(cmd *cobra.Command, _ []string) error {
			return runMigrate(cmd.Context(), f, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	f.register(cmd.Flags())
	return cmd
}

func (f *migrateFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "a `file` of objects, a directory of such files, or - for standard input; may be repeated. Without it the objects come from the API server")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that names the API server; without it $KUBECONFIG, ~/.kube/config, or a pod's service account")
	flags.StringVar(&f.context, "context", "", "`name` of a context in --kubeconfig")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "`namespace` of the DaemonSet; without it kube-system with an API server, any with files")
	flags.StringVar(&f.name, "daemonset", "", "`name` of the DaemonSet, if several run NodeLocal DNSCache")
	flags.StringVar(&f.image, "image", "", "`image` of nodens, in a registry that the nodes can pull from")
	flags.StringVar(&f.domain, "domain", "", "cluster `domain`; without it the Corefile's")
	flags.BoolVar(&f.minimal, "minimal", false, "replace only the image")
	flags.BoolVar(&f.diff, "diff", false, "print the changes to the files of -f as a unified diff, which keeps their order and comments, instead of the manifest")
	flags.BoolVar(&f.helmValues, "helm-values", false, "print values for nodens' chart instead of the manifest")
}

// objects reads the cluster's objects from files or from the API server.
func (f *migrateFlags) objects(ctx context.Context, stdin io.Reader) (*migrate.Objects, error) {
	objects := new(migrate.Objects)
	if len(f.files) > 0 {
		objects.OnRead = func(name string, text []byte) {
			f.read = append(f.read, migrate.SourceFile{Name: name, Text: string(text)})
		}
		return objects, objects.Files(f.files, stdin)
	}
	if f.namespace == "" {
		f.namespace = migrate.DefaultNamespace
	}
	return objects, objects.Fetch(ctx, migrate.Access{Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace})
}

// runMigrate prints the manifest on stdout and the notes on stderr.
func runMigrate(ctx context.Context, f *migrateFlags, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(f.files) > 0 && f.kubeconfig+f.context != "" {
		return cli.Usagef("-f and --kubeconfig exclude each other: objects are read from files or from the API server")
	}
	defer quiet()()
	if f.diff && (len(f.files) == 0 || f.helmValues) {
		return cli.Usagef("--diff changes files: name them with -f, without --helm-values")
	}
	objects, err := f.objects(ctx, stdin)
	if err != nil {
		return err
	}
	result, err := migrate.Run(migrate.Request{
		Objects: objects, Namespace: f.namespace, Name: f.name, Image: f.image, Domain: f.domain, Minimal: f.minimal, HelmValues: f.helmValues,
		Manifest: daemonset.Manifest, Flags: parseAgentArgs, Known: lookupFlag,
	})
	if err != nil {
		return err
	}
	for _, n := range result.Notes {
		fmt.Fprintln(stderr, n)
	}
	for _, text := range f.warnings(objects, result) {
		fmt.Fprintln(stderr, "warning: "+text)
	}
	return f.print(result, stdout)
}

// print writes the manifest, or what is asked for instead.
func (f *migrateFlags) print(result *migrate.Result, stdout io.Writer) (err error) {
	if f.diff {
		text, err := migrate.Diff(f.read, result.Manifest)
		if err == nil {
			_, err = stdout.Write(text)
		}
		return err
	}
	if f.helmValues {
		_, err = fmt.Fprintf(stdout, "# Values of nodens' chart in place of NodeLocal DNSCache, made by nodens migrate.\n%s", result.Values)
		return err
	}
	_, err = fmt.Fprintf(stdout, "# nodens in place of NodeLocal DNSCache, made by nodens migrate.\n%s", result.Manifest)
	return err
}

// warnings returns what `nodens check` warns of in the result, together with the objects that it does not change.
func (f *migrateFlags) warnings(objects *migrate.Objects, result *migrate.Result) (list []string) {
	all := objects.With(result.Manifest)
	check := &checkFlags{agentFlags: newAgentFlags(), set: pflag.NewFlagSet("check", pflag.ContinueOnError)}
	inputs, err := check.objectInputs(all, result.Namespace, result.Name)
	if err != nil {
		return nil // the migration itself has read the same
	}
	for _, in := range inputs {
		if in.cfg == nil {
			continue
		}
		for _, w := range suspicions(in) {
			if !slices.Contains(list, w.text) {
				list = append(list, w.text)
			}
		}
	}
	return list
}

// parseAgentArgs reads the arguments of an agent's container.
func parseAgentArgs(args []string) (*migrate.Flags, error) {
	f, err := parseFlags(args)
	if err != nil {
		return nil, err
	}
	return f.migrateFlags(), nil
}

// migrateFlags returns the flags that matter to a migration.
func (f *agentFlags) migrateFlags() *migrate.Flags {
	return &migrate.Flags{
		Conf: f.Conf, Base: f.BaseConf, BaseGiven: f.given["basecorefile"], KubeDNS: f.KubeDNSDir, HandoverDir: f.HandoverDir,
		Config: config.Options{
			Port: f.DNSPort, LocalIPs: slices.Clone(f.LocalIPs),
			UpstreamService: f.UpstreamService, PrometheusAddr: f.PrometheusAddr, Lacks: f.Lacks,
		},
	}
}

// lookupFlag reports whether the agent has a flag, and whether that flag takes a value.
func lookupFlag(name string) (known, value bool) {
	flags := pflag.NewFlagSet("nodens", pflag.ContinueOnError)
	newAgentFlags().register(flags)
	f := flags.Lookup(name)
	return f != nil, f != nil && f.NoOptDefVal == ""
}
