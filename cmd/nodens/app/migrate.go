package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodens-dns/nodens/cmd/nodens/migrate"
	"github.com/nodens-dns/nodens/daemonset"
	"github.com/nodens-dns/nodens/internal/config"
)

const migrateUsage = `  nodens migrate -image IMAGE [-f FILE|DIR|-]… [-n NAMESPACE] [-kubeconfig FILE]
                         print what to apply in place of NodeLocal DNSCache, made of its
                         DaemonSet and ConfigMap, and on standard error what changes
`

// usualNamespace is where NodeLocal DNSCache is.
const usualNamespace = "kube-system"

// migrateFlags are those of `nodens migrate`.
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
	fs.Func("f", "a `file` of objects, a folder of such files, or - for standard input; may be given more than once. Without it the API server is asked", func(path string) error {
		f.files = append(f.files, path)
		return nil
	})
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says where the API server is (default $KUBECONFIG, ~/.kube/config, or a pod's service account)")
	fs.StringVar(&f.context, "context", "", "the `name` of a context in it")
	fs.StringVar(&f.namespace, "n", "", "the DaemonSet's `namespace` (default kube-system at an API server, any in files)")
	fs.StringVar(&f.name, "daemonset", "", "the DaemonSet's `name`, where several run NodeLocal DNSCache")
	fs.StringVar(&f.image, "image", "", "nodens' `image`, in a registry that the nodes pull from")
	fs.StringVar(&f.domain, "domain", "", "the cluster's `domain` (default that of the Corefile)")
	fs.BoolVar(&f.minimal, "minimal", false, "replace the image and nothing else")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, "nodens migrates a cluster from NodeLocal DNSCache: nodens migrate … | kubectl apply -f -\n\n"+migrateUsage+"\n")
			fs.SetOutput(stderr)
			fs.PrintDefaults()
			return nil, err
		}
		return nil, fmt.Errorf("%w; nodens migrate -help lists the flags", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; files are given with -f", fs.Arg(0))
	}
	if len(f.files) > 0 && f.kubeconfig+f.context != "" {
		return nil, errors.New("-f and -kubeconfig exclude each other: objects are read from files or from the API server")
	}
	return f, nil
}

// objects reads what there is.
func (f *migrateFlags) objects(ctx context.Context, stdin io.Reader) (*migrate.Objects, error) {
	objects := new(migrate.Objects)
	if len(f.files) > 0 {
		return objects, objects.Files(f.files, stdin)
	}
	if f.namespace == "" {
		f.namespace = usualNamespace
	}
	return objects, objects.Fetch(ctx, migrate.Access{Kubeconfig: f.kubeconfig, Context: f.context, Namespace: f.namespace})
}

// migrateTo prints the manifest on stdout and the notes on stderr.
func migrateTo(ctx context.Context, f *migrateFlags, stdin io.Reader, stdout, stderr io.Writer) error {
	objects, err := f.objects(ctx, stdin)
	if err != nil {
		return err
	}
	result, err := migrate.Make(migrate.Request{
		Objects: objects, Namespace: f.namespace, Name: f.name, Image: f.image, Domain: f.domain, Minimal: f.minimal,
		Manifest: daemonset.Manifest, Flags: agentFlags, Known: knownFlag,
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

// agentFlags reads the agent's arguments.
func agentFlags(args []string) (*migrate.Flags, error) {
	o, err := parseFlags(args, io.Discard)
	if err != nil {
		return nil, err
	}
	return &migrate.Flags{
		Conf: o.conf, Base: o.baseConf, BaseGiven: o.given["basecorefile"], KubeDNS: o.kubeDNSDir, HandoverDir: o.handoverDir,
		Config: config.Options{
			Port: o.dnsPort, LocalIPs: append([]netip.Addr(nil), o.localIPs...),
			UpstreamService: o.upstreamSvc, PrometheusAddr: o.prometheusAddr,
		},
	}, nil
}

// knownFlag reports whether the agent has a flag, and whether that takes a value.
func knownFlag(name string) (known, value bool) {
	fs := flag.NewFlagSet("nodens", flag.ContinueOnError)
	(&options{}).register(fs)
	f := fs.Lookup(name)
	if f == nil {
		return false, false
	}
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return true, !ok || !b.IsBoolFlag()
}

// runMigrate is `nodens migrate`, with its exit codes: those of [run].
func runMigrate(args []string, stdout, stderr io.Writer) int {
	f, err := parseMigrate(args, stderr)
	if err != nil {
		return unread(err, stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := migrateTo(ctx, f, os.Stdin, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "nodens:", err)
		return 1
	}
	return 0
}
