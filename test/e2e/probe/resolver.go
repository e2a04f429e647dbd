package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// askGo asks Go's own resolver, which reads /etc/resolv.conf and /etc/hosts as the C
// libraries do.
func askGo(ctx context.Context, in io.Reader, out io.Writer) error {
	r := &net.Resolver{PreferGo: true}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		kind, what, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			return fmt.Errorf("%q is no question", lines.Text())
		}
		answers, err := lookup(ctx, r, kind, what)
		if errors.Is(err, errKind) {
			return err
		}
		text := "= " + strings.Join(uniqueSorted(answers), " ")
		if err != nil {
			text = "! " + errorWord(err)
		}
		fmt.Fprintln(out, kind, what, text)
	}
	return lines.Err()
}

var errKind = errors.New("a question is host, canon, name or srv")

func lookup(ctx context.Context, r *net.Resolver, kind, what string) ([]string, error) {
	switch kind {
	case "host":
		return r.LookupHost(ctx, what)
	case "canon":
		name, err := r.LookupCNAME(ctx, what)
		return []string{strings.TrimSuffix(name, ".")}, err
	case "name":
		names, err := r.LookupAddr(ctx, what)
		for i := range names {
			names[i] = strings.TrimSuffix(names[i], ".")
		}
		return names, err
	case "srv":
		_, list, err := r.LookupSRV(ctx, "", "", what)
		var answers []string
		for _, s := range list {
			answers = append(answers, fmt.Sprintf("%d:%d:%d:%s", s.Priority, s.Weight, s.Port, strings.TrimSuffix(s.Target, ".")))
		}
		return answers, err
	default:
		return nil, fmt.Errorf("%q: %w", kind, errKind)
	}
}

// uniqueSorted are the words, each once, sorted by bytes.
func uniqueSorted(words []string) []string {
	words = slices.Clone(words)
	slices.Sort(words)
	return slices.Compact(words)
}

// errorWord is resolve.c's word for the error. Go does not tell a name that is not there
// from one without such records.
func errorWord(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) && lookup.IsNotFound {
		return "none"
	}
	return "again"
}

// askAll runs the resolvers at once over the same questions. Each line begins with the
// resolver's name; the lines of each are in the order of the questions.
func askAll(ctx context.Context, resolvers []string, in io.Reader, out io.Writer) error {
	questions, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	programs := map[string][]string{"musl": {"resolve-musl"}, "glibc": {"resolve-glibc"}, "go": {self, "go"}, "c-ares": {"resolve-cares"}}
	outputs, errs := make([]bytes.Buffer, len(resolvers)), make([]error, len(resolvers))
	var running sync.WaitGroup
	for i, name := range resolvers {
		argv := programs[name]
		if argv == nil {
			return fmt.Errorf("there is no resolver %q", name)
		}
		running.Go(func() {
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(questions), &outputs[i], os.Stderr
			if err := cmd.Run(); err != nil {
				errs[i] = fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	running.Wait()
	for i, name := range resolvers {
		for line := range strings.Lines(outputs[i].String()) {
			fmt.Fprintf(out, "%s %s", name, line)
		}
	}
	return errors.Join(errs...)
}
