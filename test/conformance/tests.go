package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// focus and skip choose the tests by their full names, as the options of these names do.
const (
	focus = `\[sig-network\] DNS`
	skip  = `\[sig-network\] DNS configMap nameserver|` + offByDefault
)

// offByDefault is in the names of tests of a feature that the release does not have on.
const offByDefault = `\[Feature:OffByDefault\]`

// skipReason is why a test that skip matches doesn't run.
func skipReason(name string) string {
	if regexp.MustCompile(offByDefault).MatchString(name) {
		return "needs a feature that is off in this release unless a feature gate is set"
	}
	return "changes the Corefile of CoreDNS and expects pods to see the effect; with a node-local agent, " +
		"pods ask the agent, which has a Corefile of its own"
}

// runTests runs the tests in the network of the control plane, from which nodes and pods can be
// reached.
func (s *suite) runTests(ctx context.Context, r *release) (report, error) {
	dir, err := os.MkdirTemp(s.dir, "tests-")
	if err != nil {
		return report{}, err
	}
	file := filepath.Join(dir, "report.json")
	cmd := r.cluster.Command(ctx, r.tests,
		"-kubeconfig="+r.cluster.Kubeconfig(), "-kubectl-path="+r.kubectl, "-provider=skeleton",
		"-dns-domain="+cluster.Domain, fmt.Sprintf("-num-nodes=%d", len(r.cluster.Nodes())),
		"-ginkgo.focus="+focus, "-ginkgo.skip="+skip, "-ginkgo.no-color", "-ginkgo.json-report="+file,
	)
	// kubectl writes a cache to the home directory.
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	cmd.Dir = dir
	out, failed := cmd.CombinedOutput()
	if err := os.WriteFile(filepath.Join(dir, "output"), out, 0o644); err != nil {
		return report{}, err
	}
	text, err := os.ReadFile(file)
	if err == nil {
		var got report
		if got, err = parseReport(text); err == nil {
			if failed != nil && len(got.failures) == 0 {
				got.failures = append(got.failures, fmt.Sprintf("the test binary: %v\n%s", failed, tail(out)))
			}
			return got, nil
		}
	}
	return report{}, errors.Join(failed, err, errors.New(tail(out)))
}

// maxTail is how much of the tests' output an error has, in bytes.
const maxTail = 20_000

func tail(out []byte) string {
	if len(out) > maxTail {
		out = out[len(out)-maxTail:]
	}
	return string(out)
}

// report is the outcome of the tests in the focus.
type report struct {
	// passed is how many tests passed.
	passed int
	// failures are the names and messages of failed tests, and of failed preparations.
	failures []string
	// skipped are the tests that did not run.
	skipped []skipped
}

// skipped is a test that did not run.
type skipped struct{ name, reason string }

// total is the number of tests in the focus.
func (r report) total() int { return r.passed + len(r.failures) + len(r.skipped) }

// check returns an error if a test failed, or if none ran.
func (r report) check() error {
	if len(r.failures) > 0 {
		return fmt.Errorf("%d of %d tests failed:\n%s", len(r.failures), r.total()-len(r.skipped), strings.Join(r.failures, "\n"))
	}
	if r.passed == 0 {
		return errors.New("no test ran")
	}
	for _, t := range r.skipped {
		if t.reason == "" {
			return fmt.Errorf("%s did not run, for an unknown reason", t.name)
		}
	}
	return nil
}

// ginkgoReport is what this command reads of the report of Ginkgo, the framework of the tests.
type ginkgoReport struct{ SpecReports []ginkgoSpec }

// ginkgoSpec is a test, or a preparation of all tests.
type ginkgoSpec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

// name returns the full name of a test.
func (s ginkgoSpec) name() string {
	return strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
}

// parseReport reads a report in JSON. Tests outside of the focus don't count.
func parseReport(text []byte) (report, error) {
	var suites []ginkgoReport
	if err := json.Unmarshal(text, &suites); err != nil {
		return report{}, fmt.Errorf("reading the report of the tests: %w", err)
	}
	inFocus, excluded := regexp.MustCompile(focus), regexp.MustCompile(skip)
	var r report
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			switch test := spec.LeafNodeType == "It"; {
			case test && inFocus.MatchString(spec.name()):
				r.add(spec, excluded.MatchString(spec.name()))
			case !test && spec.State != "passed" && spec.State != "skipped":
				r.failures = append(r.failures, fmt.Sprintf("%s: %s: %s", spec.LeafNodeType, spec.State, spec.Failure.Message))
			}
		}
	}
	return r, nil
}

// add counts a test in the focus. excluded says that the option skip matches it.
func (r *report) add(spec ginkgoSpec, excluded bool) {
	switch {
	case spec.State == "passed":
		r.passed++
	case spec.State == "skipped" && excluded:
		r.skipped = append(r.skipped, skipped{spec.name(), skipReason(spec.name())})
	case spec.State == "skipped":
		r.skipped = append(r.skipped, skipped{spec.name(), spec.Failure.Message})
	default:
		r.failures = append(r.failures, fmt.Sprintf("%s: %s: %s", spec.name(), spec.State, spec.Failure.Message))
	}
}
