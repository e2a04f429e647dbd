package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
)

// checkedQuestion is what the agent would do with a question of --ask or --expect.
type checkedQuestion struct {
	Name string `json:"name"`
	Type string `json:"type"`
	From string `json:"from"`
	*report.Explanation
	// Unmet are the expectations of --expect that do not hold.
	Unmet []string `json:"unmet,omitempty"`

	want []string
	line int // in the file of --expect
}

// dryRun explains queries without serving any.
type dryRun interface {
	Explain(query url.Values) (*report.Explanation, error)
}

// unknownReplies says what a dry run does not know.
const unknownReplies = "not known without a cluster: what upstreams answer, hosts files of the node, and Services that are not in the files"

// questions returns the queries of --ask, and those in the file of --expect.
func (f *checkFlags) questions() ([]*checkedQuestion, error) {
	var list []*checkedQuestion
	for _, text := range f.asked {
		list = append(list, newQuestion(text, f.from))
	}
	if f.expect == "" {
		return list, nil
	}
	text, err := os.ReadFile(f.expect)
	if err != nil {
		return nil, err
	}
	f.hash(f.expect, text)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		code, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(code)
		if len(words) == 0 {
			continue
		}
		q := newQuestion(words[0], f.from)
		q.line = n
		for _, w := range words[1:] {
			key, value, ok := strings.Cut(w, "=")
			switch {
			case !ok || !slices.Contains(expectations, key):
				return nil, fmt.Errorf("%s:%d: %q is no expectation; write KEY=VALUE with a key of: %s", f.expect, n, w, strings.Join(expectations, ", "))
			case key == "from":
				q.From = value
			default:
				q.want = append(q.want, w)
			}
		}
		list = append(list, q)
	}
	return list, lines.Err()
}

// expectations are the keys of a line of --expect.
var expectations = []string{"from", "zone", "line", "by", "upstream", "rcode", "answer"}

// newQuestion reads NAME[/TYPE].
func newQuestion(text, from string) *checkedQuestion {
	name, kind, _ := strings.Cut(text, "/")
	return &checkedQuestion{Name: name, Type: cmp.Or(kind, "A"), From: from}
}

// askDryRun explains list with the configuration of in, and compares.
func askDryRun(in *checkInput, list []*checkedQuestion, manifests []string) error {
	dir, err := os.MkdirTemp("", "nodens-check-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pods, addrs := askingPods(list)
	file := filepath.Join(dir, "pods.yaml")
	if err := os.WriteFile(file, []byte(pods), 0o600); err != nil {
		return err
	}
	run, err := newDryRun(in.flags.Agent, in.cfg, append(manifests, file), !in.local)
	if err != nil {
		return fmt.Errorf("--ask: %w", err)
	}
	for _, q := range list {
		from := cmp.Or(addrs[q.From], q.From)
		e, err := run.Explain(url.Values{"name": {q.Name}, "type": {q.Type}, "from": {from}})
		if err != nil {
			return fmt.Errorf("%s: %w", q.Name, err)
		}
		q.Explanation = e
		q.compare(in)
	}
	return nil
}

// askingPods returns a manifest of the pods that ask, with addresses for documentation (RFC 5737), and their addresses.
func askingPods(list []*checkedQuestion) (text string, addrs map[string]string) {
	addrs = make(map[string]string)
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n")
	for _, q := range list {
		namespace, name, ok := strings.Cut(q.From, "/")
		if !ok || addrs[q.From] != "" || len(addrs) == 200 {
			continue
		}
		addrs[q.From] = fmt.Sprintf("198.51.100.%d", len(addrs)+1)
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %q}\n---\napiVersion: v1\nkind: Pod\nmetadata: {namespace: %q, name: %q}\n"+
			"spec: {nodeName: dry-run, containers: [{name: a, image: a}]}\nstatus: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}\n", namespace, namespace, name, addrs[q.From], addrs[q.From])
	}
	return b.String(), addrs
}

// compare notes the expectations that the last query of q does not meet.
func (q *checkedQuestion) compare(in *checkInput) {
	if len(q.Questions) == 0 {
		return
	}
	last := &q.Questions[len(q.Questions)-1]
	got := map[string][]string{"by": {cmp.Or(last.Source, "server")}, "rcode": {cmp.Or(last.Rcode, "unknown")}, "zone": {"none"}, "line": {"0"}}
	got["by"] = append(got["by"], last.Alternatives...)
	if z := last.Zone; z != nil {
		got["zone"], got["line"] = []string{z.Name, cmp.Or(strings.TrimSuffix(z.Name, "."), ".")}, []string{fmt.Sprint(z.Line)}
	}
	if f := last.Forward; f != nil {
		for _, u := range f.Upstreams {
			to := in.show.Replace(u.To)
			got["upstream"] = append(got["upstream"], to, strings.TrimSuffix(to, ":53"))
		}
	}
	for _, a := range last.Answers {
		if words := strings.Fields(a); len(words) > 0 {
			got["answer"] = append(got["answer"], words[len(words)-1])
		}
	}
	for _, w := range q.want {
		key, value, _ := strings.Cut(w, "=")
		if !slices.Contains(got[key], value) {
			q.Unmet = append(q.Unmet, fmt.Sprintf("%s is %s, expected %s", key, cmp.Or(strings.Join(slices.Compact(got[key]), " or "), "none"), value))
		}
	}
}

// runAsk prints what the agent would do with the questions. The error names the expectations that are not met.
func (f *checkFlags) runAsk(inputs []*checkInput, questions []*checkedQuestion, print func(*checkResult) error) error {
	if len(inputs) != 1 || inputs[0].cfg == nil {
		if len(inputs) == 1 {
			return inputs[0].error()
		}
		return fmt.Errorf("--ask takes one configuration, and there are %d; name the file of one", len(inputs))
	}
	in := inputs[0]
	if err := askDryRun(in, questions, f.manifests()); err != nil {
		return err
	}
	result := &checkResult{Configurations: []*checkedConfig{}, Files: f.read, Questions: questions}
	result.addFiles(in.filesRead()...)
	result.show = in.show
	if err := print(result); err != nil {
		return err
	}
	var unmet []error
	for _, q := range questions {
		if len(q.Unmet) > 0 {
			unmet = append(unmet, fmt.Errorf("%s:%d: %s %s: %s", f.expect, q.line, q.Name, q.Type, strings.Join(q.Unmet, "; ")))
		}
	}
	return errors.Join(unmet...)
}

// manifests returns the files and folders of objects on the command line.
func (f *checkFlags) manifests() (list []string) {
	for _, path := range f.files {
		if info, err := os.Stat(path); err == nil && (info.IsDir() || mayHaveObjects(path)) {
			list = append(list, path)
		}
	}
	return list
}

// printQuestions writes the questions: those with expectations in a line each, the others as `nodens explain` does.
func (r *checkResult) printQuestions(w io.Writer) error {
	expected, met := 0, 0
	for i, q := range r.Questions {
		if q.line > 0 {
			if expected++; len(q.Unmet) == 0 {
				met++
			}
			continue
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		var text bytes.Buffer
		if err := printExplanation(&text, q.Explanation, false); err != nil {
			return err
		}
		fmt.Fprint(w, r.show.Replace(text.String()))
	}
	if expected > 0 {
		fmt.Fprintf(w, "\n%d of %d expectations are met\n", met, expected)
	}
	fmt.Fprintf(w, "\n%s\n", unknownReplies)
	r.printFiles(w)
	return nil
}
