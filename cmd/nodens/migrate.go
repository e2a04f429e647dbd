package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/nodens-dns/nodens/cmd/nodens/migrate"
	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/internal/config"
)

const migrateUsage = `  nodens migrate -image IMAGE [-f FILE|DIR|-]… [-n NAMESPACE] [-kubeconfig FILE]
                         print the manifest that replaces NodeLocal DNSCache, made from
                         its DaemonSet and ConfigMap, and on standard error what changes
`

// defaultNamespace is the namespace of NodeLocal DNSCache in its own manifest.
const defaultNamespace = "kube-system"

// migrateFlags are the flags of `nodens migrate`.
type migrateFlags struct {
	files               []string
	kubeconfig          string
	context             string
	namespace           string
	name, image, domain string
	minimal             bool
}

func parseMigrate(args []string, stderr io.Writer) (*migrateFlags, error) {
	f := new(migrateFlags)
	fs := flag.NewFlagSet("nodens migrate", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.Func("f", "a `file` of objects, a directory of such files, or - for standard input; may be repeated. Without it the objects come from the API server", func(path string) error {
		f.files = append(f.files, path)
		return nil
	})
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that names the API server (default $KUBECONFIG, ~/.kube/config, or a pod's service account)")
	fs.StringVar(&f.context, "context", "", "`name` of a context in -kubeconfig")
	fs.StringVar(&f.namespace, "n", "", "`namespace` of the DaemonSet (default kube-system with an API server, any with files)")
	fs.StringVar(&f.name, "daemonset", "", "`name` of the DaemonSet, if several run NodeLocal DNSCache")
	fs.StringVar(&f.image, "image", "", "`image` of nodens, in a registry that the nodes can pull from")
	fs.StringVar(&f.domain, "domain", "", "cluster `domain` (default: the Corefile's)")
	fs.BoolVar(&f.minimal, "minimal", false, "replace only the image")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, "nodens migrate prepares the move from NodeLocal DNSCache: nodens migrate … | kubectl apply -f -\n\n"+migrateUsage+"\n")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			return nil, err
		}
		return nil, &usageError{fmt.Errorf("%w; nodens migrate -help lists the flags", err)}
	}
	if fs.NArg() > 0 {
		return nil, &usageError{fmt.Errorf("unexpected argument %q; files are given with -f", fs.Arg(0))}
	}
	if len(f.files) > 0 && f.kubeconfig+f.context != "" {
		return nil, &usageError{errors.New("-f and -kubeconfig exclude each other: objects are read from files or from the API server")}
	}
	return f, nil
}

// objects reads the cluster's objects from files or from the API server.
func (f *migrateFlags) objects(ctx context.Context, stdin io.Reader) (*migrate.Objects, error) {
	objects := new(migrate.Objects)
	if len(f.files) > 0 {
		return objects, objects.Files(f.files, stdin)
	}
	if f.namespace == "" {
		f.namespace = defaultNamespace
	}
	return objects, objects.Fetch(ctx, migrate.Access{Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace})
}

// runMigrate prints the manifest on stdout and the notes on stderr.
func runMigrate(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f, err := parseMigrate(args, stderr)
	if err != nil {
		return err
	}
	objects, err := f.objects(ctx, os.Stdin)
	if err != nil {
		return err
	}
	result, err := migrate.Run(migrate.Request{
		Objects: objects, Namespace: f.namespace, Name: f.name, Image: f.image, Domain: f.domain, Minimal: f.minimal,
		Manifest: daemonset.Manifest, Flags: parseAgentArgs, Known: lookupFlag,
	})
	if err != nil {
		return err
	}
	for _, n := range result.Notes {
		fmt.Fprintln(stderr, n)
	}
	_, err = fmt.Fprintf(stdout, "# nodens in place of NodeLocal DNSCache, made by nodens migrate.\n%s", result.Manifest)
	return err
}

// parseAgentArgs reads the arguments of an agent's container.
func parseAgentArgs(args []string) (*migrate.Flags, error) {
	f, err := parseFlags(args, io.Discard)
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return nil, usage.error // in a file, not on this command's line
	}
	if err != nil {
		return nil, err
	}
	return &migrate.Flags{
		Conf: f.Conf, Base: f.BaseConf, BaseGiven: f.given["basecorefile"], KubeDNS: f.KubeDNSDir, HandoverDir: f.HandoverDir,
		Config: config.Options{
			Port: f.DNSPort, LocalIPs: slices.Clone(f.LocalIPs),
			UpstreamService: f.UpstreamService, PrometheusAddr: f.PrometheusAddr,
		},
	}, nil
}

// lookupFlag reports whether the agent has a flag, and whether that flag takes a value.
func lookupFlag(name string) (known, value bool) {
	fs := flag.NewFlagSet("nodens", flag.ContinueOnError)
	newAgentFlags().register(fs)
	f := fs.Lookup(name)
	if f == nil {
		return false, false
	}
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return true, !ok || !b.IsBoolFlag()
}
