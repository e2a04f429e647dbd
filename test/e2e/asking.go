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

// question is one of resolve/resolve.c's, with what every resolver has to answer, or with
// what some of them do instead, by their names: musl, glibc, go.
type question struct {
	ask, want string
	but       map[string]string
}

// q makes a question that all resolvers answer alike: with the words, each once.
func q(ask string, answers ...string) question {
	return question{ask: ask, want: "= " + words(answers...)}
}

// none makes one about a name that is not there.
func none(ask string) question { return question{ask: ask, want: "! none"} }

// and adds what one resolver does instead.
func (q question) and(resolver, want string) question {
	but := map[string]string{resolver: want}
	for r, w := range q.but {
		but[r] = w
	}
	q.but = but
	return q
}

// or adds what one resolver may do as well.
func (q question) or(resolver, want string) question {
	return q.and(resolver, q.want+" or "+want)
}

// words are those of all texts, each once, sorted.
func words(texts ...string) string {
	list := strings.Fields(strings.Join(texts, " "))
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// each runs f for every name at once and joins the errors, which get the name.
func each(names []string, f func(name string) error) error {
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
func (w *world) exec(ctx context.Context, s *suite, pod, input string, argv ...string) (string, error) {
	return s.cluster.Kubectl(ctx, input, append([]string{"exec", "-i", "-n", namesNS, pod, "--"}, argv...)...)
}

// ask asks all questions of all resolvers in each of the pods, once, and counts the
// answers.
func (w *world) ask(ctx context.Context, s *suite, pods []string, list []question) (seen string, err error) {
	if w.client == nil {
		return "", errNotMade
	}
	var input strings.Builder
	for _, q := range list {
		fmt.Fprintln(&input, q.ask)
	}
	err = each(pods, func(pod string) error {
		out, err := w.exec(ctx, s, pod, input.String(), "probe", "every")
		if err != nil {
			return err
		}
		return judge(out, list)
	})
	return fmt.Sprintf("%d answers in %d pods", len(list)*len(resolvers())*len(pods), len(pods)), err
}

func resolvers() []string { return []string{"musl", "glibc", "go"} }

// judge compares what `probe every` writes with what is wanted.
func judge(out string, list []question) error {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(list)*len(resolvers()) {
		return fmt.Errorf("%d answers to %d questions of %d resolvers:\n%s", len(lines), len(list), len(resolvers()), out)
	}
	var errs []error
	for i, resolver := range resolvers() {
		for j, q := range list {
			want := q.want
			if w, ok := q.but[resolver]; ok {
				want = w
			}
			got, ok := strings.CutPrefix(lines[i*len(list)+j], resolver+" "+q.ask+" ")
			if !ok || !fits(got, want) {
				errs = append(errs, fmt.Errorf("%s, want %s", lines[i*len(list)+j], want))
			}
		}
	}
	return errors.Join(errs...)
}

// fits compares an answer with the wanted one, or those with " or " between them. One that
// begins with < may lack some of its words, not all of them.
func fits(got, want string) bool {
	for one := range strings.SplitSeq(want, " or ") {
		all, some := strings.CutPrefix(one, "< ")
		if got == one || some && within(strings.TrimPrefix(got, "= "), all) {
			return true
		}
	}
	return false
}

// within says that there are words and that all of them are among the others.
func within(some, all string) bool {
	list := strings.Fields(all)
	for word := range strings.FieldsSeq(some) {
		if !slices.Contains(list, word) {
			return false
		}
	}
	return strings.TrimSpace(some) != ""
}

// following is a pod that asks for a name again and again until the answer is another.
type following struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	lines  *bufio.Scanner
	errors strings.Builder
	name   string
	first  string
}

// change is what a following has seen.
type change struct {
	// first is the answer at the start, others are those between it and the wanted
	// one, of which there should be none.
	first  string
	others []string
	// at is when the wanted one came.
	at    time.Time
	asked int
}

// patience is how long a pod asks for an answer that doesn't come: longer than any event
// takes through an API server, on a machine that does other things, and shorter than the
// 30 s for which anybody who caches cluster names may keep the old answer.
const patience = 20 * time.Second

// follow starts one, which has had its first answer when follow returns. end ends it.
func (w *world) follow(ctx context.Context, s *suite, pod, name, want string) (*following, error) {
	return w.followFor(ctx, s, patience, pod, name, want)
}

func (w *world) followFor(ctx context.Context, s *suite, limit time.Duration, pod, name, want string) (*following, error) {
	kubectl, err := peer.Binary(ctx, "kubectl", s.dir)
	if err != nil {
		return nil, err
	}
	// The probe gives up first, and says what the answer was.
	ctx, cancel := context.WithTimeout(ctx, limit+patience)
	f := &following{name: name, cancel: cancel}
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
	_, err = f.end()
	return nil, errors.Join(io.ErrUnexpectedEOF, err)
}

// end waits for the wanted answer.
func (f *following) end() (change, error) {
	defer f.cancel()
	lines := []string{f.first}
	for f.lines.Scan() {
		lines = append(lines, f.lines.Text())
	}
	if err := f.cmd.Wait(); err != nil {
		return change{}, fmt.Errorf("%s: %w: %s\n%s", f.name, err, &f.errors, strings.Join(lines, "\n"))
	}
	var c change
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
