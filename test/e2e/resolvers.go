package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// question is a question in the form of resolve/resolve.c and its expected answer. perResolver has
// different answers by resolver: musl, glibc, go.
type question struct {
	ask, want   string
	perResolver map[string]string
}

// q returns a question that all resolvers answer with the given words, each once.
func q(ask string, answers ...string) question {
	return question{ask: ask, want: "= " + uniqueWords(answers...)}
}

// none returns a question for a name that does not exist.
func none(ask string) question { return question{ask: ask, want: "! none"} }

// forResolver adds a different answer for one resolver.
func (q question) forResolver(resolver, want string) question {
	but := map[string]string{resolver: want}
	for r, w := range q.perResolver {
		but[r] = w
	}
	q.perResolver = but
	return q
}

// orForResolver adds an alternative answer for one resolver.
func (q question) orForResolver(resolver, want string) question {
	return q.forResolver(resolver, q.want+" or "+want)
}

// uniqueWords returns the words of all texts, each once, sorted.
func uniqueWords(texts ...string) string {
	list := strings.Fields(strings.Join(texts, " "))
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// forEach runs f for every name concurrently and joins the errors, prefixed by the name.
func forEach(names []string, f func(name string) error) error {
	errs := make([]error, len(names))
	var running sync.WaitGroup
	for i, name := range names {
		running.Go(func() {
			if err := f(name); err != nil {
				errs[i] = fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// exec runs a program in a pod with the input and returns its output.
func (w *namesFixture) exec(ctx context.Context, s *suite, pod, input string, argv ...string) (string, error) {
	return s.cluster.Kubectl(ctx, input, append([]string{"exec", "-i", "-n", namesNS, pod, "--"}, argv...)...)
}

// ask asks all questions of all resolvers in each of the pods, once, and counts the
// answers.
func (w *namesFixture) ask(ctx context.Context, s *suite, pods []string, list []question) (seen string, err error) {
	if w.client == nil {
		return "", errNoPods
	}
	var input strings.Builder
	for _, q := range list {
		fmt.Fprintln(&input, q.ask)
	}
	err = forEach(pods, func(pod string) error {
		out, err := w.exec(ctx, s, pod, input.String(), append([]string{"probe", "every"}, resolvers()...)...)
		if err != nil {
			return err
		}
		return checkAnswers(out, list, resolvers())
	})
	return fmt.Sprintf("%d answers in %d pods", len(list)*len(resolvers())*len(pods), len(pods)), err
}

func resolvers() []string { return []string{"musl", "glibc", "go"} }

// hostResolvers are those that know the questions host, and perhaps no others.
func hostResolvers() []string { return append(resolvers(), "c-ares") }

// checkAnswers compares the output of `probe every` with the expected answers of the resolvers.
func checkAnswers(out string, list []question, resolvers []string) error {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(list)*len(resolvers) {
		return fmt.Errorf("%d answers to %d questions of %d resolvers:\n%s", len(lines), len(list), len(resolvers), out)
	}
	var errs []error
	for i, resolver := range resolvers {
		for j, q := range list {
			want := q.want
			if w, ok := q.perResolver[resolver]; ok {
				want = w
			}
			got, ok := strings.CutPrefix(lines[i*len(list)+j], resolver+" "+q.ask+" ")
			if !ok || !matches(got, want) {
				errs = append(errs, fmt.Errorf("%s, want %s", lines[i*len(list)+j], want))
			}
		}
	}
	return errors.Join(errs...)
}

// matches compares an answer with the expected one. Alternatives are separated by " or ". With the
// prefix "< " a non-empty subset of the words is enough.
func matches(got, want string) bool {
	for one := range strings.SplitSeq(want, " or ") {
		all, some := strings.CutPrefix(one, "< ")
		if got == one || some && isSubset(strings.TrimPrefix(got, "= "), all) {
			return true
		}
	}
	return false
}

// isSubset reports whether some is not empty and all of its words are in all.
func isSubset(some, all string) bool {
	list := strings.Fields(all)
	for word := range strings.FieldsSeq(some) {
		if !slices.Contains(list, word) {
			return false
		}
	}
	return strings.TrimSpace(some) != ""
}

// nameWatch is a pod that queries a name repeatedly until the answer changes.
type nameWatch struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	lines  *bufio.Scanner
	errors strings.Builder
	name   string
	first  string
}

// nameChange is the result of a nameWatch.
type nameChange struct {
	// first is the answer at the start, others are the answers between it and the
	// expected one; there should be none.
	first  string
	others []string
	// at is the time of the expected answer.
	at    time.Time
	asked int
}

// changeTimeout bounds the wait for an expected answer. It is shorter than the 30 s for which a
// cache may keep the old answer.
const changeTimeout = 20 * time.Second

// watchName starts a nameWatch and returns after its first answer. The caller must call wait.
func (w *namesFixture) watchName(ctx context.Context, s *suite, pod, name, want string) (*nameWatch, error) {
	return w.watchNameFor(ctx, s, changeTimeout, pod, name, want)
}

func (w *namesFixture) watchNameFor(ctx context.Context, s *suite, limit time.Duration, pod, name, want string) (*nameWatch, error) {
	kubectl, err := peer.Binary(ctx, "kubectl", s.dir)
	if err != nil {
		return nil, err
	}
	// The probe's own limit ends first; its error has the last answer.
	ctx, cancel := context.WithTimeout(ctx, limit+changeTimeout)
	f := &nameWatch{name: name, cancel: cancel}
	f.cmd = s.cluster.Command(ctx, kubectl, "--kubeconfig", s.cluster.Kubeconfig(),
		"exec", "-n", namesNS, pod, "--", "probe", "until", limit.String(), name, want)
	f.cmd.Stderr = &f.errors
	out, err := f.cmd.StdoutPipe()
	if err == nil {
		err = f.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	f.lines = bufio.NewScanner(out)
	if f.lines.Scan() {
		f.first = f.lines.Text()
		return f, nil
	}
	_, err = f.wait()
	return nil, errors.Join(io.ErrUnexpectedEOF, err)
}

// wait waits for the expected answer.
func (f *nameWatch) wait() (nameChange, error) {
	defer f.cancel()
	lines := []string{f.first}
	for f.lines.Scan() {
		lines = append(lines, f.lines.Text())
	}
	if err := f.cmd.Wait(); err != nil {
		return nameChange{}, fmt.Errorf("%s: %w: %s\n%s", f.name, err, &f.errors, strings.Join(lines, "\n"))
	}
	var c nameChange
	for i, line := range lines {
		at, rest, _ := strings.Cut(line, " ")
		asked, answer, _ := strings.Cut(rest, " ")
		nanos, err := strconv.ParseInt(at, 10, 64)
		if err == nil {
			c.asked, err = strconv.Atoi(asked)
		}
		if err != nil {
			return c, fmt.Errorf("%s: the probe wrote %q", f.name, line)
		}
		c.at = time.Unix(0, nanos)
		switch {
		case i == 0:
			c.first = answer
		case i < len(lines)-1:
			c.others = append(c.others, answer)
		}
	}
	return c, nil
}
