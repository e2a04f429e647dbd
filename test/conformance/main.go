// Command conformance runs Kubernetes' own end-to-end tests of DNS, unchanged, in a cluster
// of two nodes with nodens: with each release of Kubernetes in peer.Releases, with CoreDNS running
// and scaled to zero, and with nodens' kernel path off and on. `make conformance` runs it; it
// needs root, on Debian, and leaves nothing behind.
//
//	go run ./test/conformance [-only RELEASE,…] [-forms REGEXP] [-dir DIR] [-out FILE]
//
// The tests are built from the module k8s.io/kubernetes, and so is the image agnhost that they
// start. A failed test, a test that does not run for an unknown reason, or an agent in another
// state than the form says makes the command fail. Only a successful run of all forms writes the
// document; with -only, the other releases' rows stay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// suite is one run of the command.
type suite struct {
	// root is the repository, and dir the folder for files and logs.
	root, dir string
	// agentImage is the file with nodens' image, and coreDNS the program.
	agentImage, coreDNS string
	// manifests is a copy of the folder daemonset, without a comparison after a hand-over.
	manifests string
	// forms matches the forms to run.
	forms   *regexp.Regexp
	results []result
}

// result is what one form has shown.
type result struct {
	// version is Kubernetes' version, such as v1.36.3.
	version string
	form    form
	report  report
	// agentQueries and kernelQueries are the queries during the tests that the agents and
	// the kernel answered.
	agentQueries, kernelQueries float64
	took                        time.Duration
}

// options are the command's options.
type options struct {
	releases []string
	forms    *regexp.Regexp
	dir, out string
}

// parseOptions reads the command's arguments.
func parseOptions(args []string) (o options, err error) {
	flags := flag.NewFlagSet("conformance", flag.ExitOnError)
	only := flags.String("only", "", "the minor releases of Kubernetes to run, such as v1.36, separated by commas; all if it is empty")
	forms := flags.String("forms", "", "a regular expression for the forms to run, such as 'scaled to zero, kernel path on'")
	flags.StringVar(&o.dir, "dir", "", "the folder for files and logs; a temporary one if it is empty")
	flags.StringVar(&o.out, "out", "", "the document whose rows are replaced; none if it is empty")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.out != "" && *forms != "" {
		return o, errors.New("-out: the document has all forms of a release; remove -forms")
	}
	if o.forms, err = regexp.Compile(*forms); err != nil {
		return o, fmt.Errorf("-forms: %w", err)
	}
	o.releases, err = parseReleases(*only)
	return o, err
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) > 0 && args[0] == cluster.PauseArg {
		return cluster.Pause(os.Stdin, os.Stdout, args[1:])
	}
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	s := suite{dir: o.dir, forms: o.forms}
	dir, remove, err := cluster.WorkDir(s.dir, "nodens-conformance-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	s.dir = dir
	if err := s.prepare(ctx); err != nil {
		return err
	}
	for _, release := range o.releases {
		if err := s.runRelease(ctx, release); err != nil {
			return err
		}
	}
	if err := writeTables(os.Stdout, s.results, tables{}); err != nil || o.out == "" {
		return err
	}
	return writeDocument(o.out, s.results)
}

// parseReleases returns the releases in a list with commas, or all.
func parseReleases(list string) ([]string, error) {
	all := peer.Releases()
	releases := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
	for _, r := range releases {
		if !slices.Contains(all, r) {
			return nil, fmt.Errorf("-only: unknown release %q; use %s", r, strings.Join(all, ", "))
		}
	}
	if len(releases) == 0 {
		return all, nil
	}
	return releases, nil
}

// prepare makes what all releases share.
func (s *suite) prepare(ctx context.Context) (err error) {
	if s.root, err = peer.Root(); err != nil {
		return err
	}
	if s.coreDNS, err = peer.Binary(ctx, "coredns", s.dir); err != nil {
		return err
	}
	if err := s.copyManifests(); err != nil {
		return err
	}
	s.agentImage = filepath.Join(s.dir, "nodens.tar")
	return cluster.WriteAgentImage(ctx, s.agentImage)
}

// copyManifests writes s.manifests.
func (s *suite) copyManifests() error {
	const name = "daemonset"
	tree, err := os.MkdirTemp(s.dir, "manifests-")
	if err != nil {
		return err
	}
	s.manifests = filepath.Join(tree, name)
	if err := os.CopyFS(s.manifests, os.DirFS(filepath.Join(s.root, name))); err != nil {
		return err
	}
	return cluster.SetComparison(tree, 0)
}
