package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// incidentCommand is a command whose output docs/how-to/incident.md shows.
type incidentCommand struct {
	name string
	// line is the command. Words in braces are replaced in each run.
	line string
	// owner: the user is an administrator, in place of the owner of the workload; else one of the group of
	// daemonset/kubectl-nodens.yaml.
	owner bool
	// most is the number of lines that the document shows; all if it is 0.
	most int
}

// incidentCommands are these commands, in the order of the checks.
var incidentCommands = []incidentCommand{
	{name: "status", line: "kubectl nodens status"},
	{name: "top", line: "kubectl nodens top --by workload --sort waste"},
	{name: "advise", line: "kubectl nodens advise"},
	{name: "explain", line: "kubectl nodens explain rates.exchange.example --from shop/{checkout}", most: 9},
	{name: "tail", line: "kubectl nodens tail --pod shop/{checkout}", most: 10},
	{name: "patch", line: "kubectl -n shop patch deployment checkout --patch {change}", owner: true},
	{name: "hanging", line: "kubectl nodens status --timeout 2s"},
	{name: "service", line: "kubectl nodens explain billing.shop.svc.cluster.local. --from shop/{checkout}"},
	{name: "top-after", line: "kubectl nodens top --by workload --sort waste --window 10s"},
	{name: "advise-after", line: "kubectl nodens advise --window 10s"},
	{name: "status-outage", line: "kubectl nodens status"},
	{name: "top-outage", line: "kubectl nodens top --by workload --sort servfail --window 10s"},
	{name: "failing", line: "kubectl nodens top --by name --topic failing --window 10s --rows 5"},
	{name: "upstreams", line: "kubectl nodens top --by upstream"},
	{name: "cached", line: "kubectl -n kube-system exec {agent} -- nodens cache get rates.exchange.example"},
	{name: "denial", line: "kubectl -n kube-system exec {agent} -- nodens cache get api.partner.test"},
	{name: "flush", line: "kubectl -n kube-system exec {agent} -- nodens cache flush api.partner.test"},
}

// installPlugin makes a folder with kubectl, and with nodens as its plugin.
func (t *incidentTest) installPlugin(ctx context.Context, s *suite) error {
	t.dir = filepath.Join(s.dir, "plugin")
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return err
	}
	kubectl, err := peer.Binary(ctx, "kubectl", t.dir)
	if err != nil {
		return err
	}
	if _, err := peer.Binary(ctx, "nodens", t.dir); err != nil {
		return err
	}
	return errors.Join(link(kubectl, filepath.Join(t.dir, "kubectl")), link("nodens", filepath.Join(t.dir, "kubectl-nodens")))
}

// link makes a symbolic link in place of an earlier one.
func link(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// command returns kubectl with the plugin in PATH, in the network of the control plane, as a user whose
// kubeconfig is the file.
func (t *incidentTest) command(ctx context.Context, s *suite, kubeconfig string, args ...string) *exec.Cmd {
	cmd := s.cluster.Command(ctx, filepath.Join(t.dir, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "PATH="+t.dir+string(filepath.ListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+t.dir)
	return cmd
}

// ask runs `kubectl nodens` with -o json as the operator, and decodes the reply. Like the plugin itself it takes
// the reply of a command that ends with 1.
func (t *incidentTest) ask(ctx context.Context, s *suite, reply any, args ...string) error {
	cmd := t.command(ctx, s, s.cluster.KubeconfigOf(cluster.Operator), append([]string{"nodens"}, append(args, "-o", "json")...)...)
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if len(out) == 0 {
		return fmt.Errorf("kubectl nodens %s: %w\n%s", strings.Join(args, " "), err, &wrong)
	}
	return json.Unmarshal(out, reply)
}

// argv returns a command's arguments without the program, with the words filled in.
func (c *incidentCommand) argv(words map[string]string) []string {
	list := strings.Fields(c.line)[1:]
	for i := range list {
		list[i] = fillIn(list[i], words)
	}
	return list
}

// braces is a word in braces.
var braces = regexp.MustCompile(`\{[a-z]+\}`)

func fillIn(text string, words map[string]string) string {
	return braces.ReplaceAllStringFunc(text, func(word string) string { return words[strings.Trim(word, "{}")] })
}

// shownLine returns the command as a shell reads it.
func (c *incidentCommand) shownLine(words map[string]string) string {
	list := append([]string{"kubectl"}, c.argv(words)...)
	for i, arg := range list {
		if strings.ContainsAny(arg, ` "'{}[]$`) {
			list[i] = "'" + arg + "'"
		}
	}
	return strings.Join(list, " ")
}

// find returns a command by its name.
func findCommand(name string) *incidentCommand {
	for i := range incidentCommands {
		if incidentCommands[i].name == name {
			return &incidentCommands[i]
		}
	}
	panic("no command is called " + name)
}

// show runs a command of incidentCommands, keeps its output, and returns it, with standard error.
func (t *incidentTest) show(ctx context.Context, s *suite, name string) (string, error) {
	c := findCommand(name)
	config := s.cluster.KubeconfigOf(cluster.Operator)
	if c.owner {
		config = s.cluster.Kubeconfig()
	}
	out, err := t.command(ctx, s, config, c.argv(t.words)...).CombinedOutput()
	t.keep(c, string(out))
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", c.shownLine(t.words), err, out)
	}
	return string(out), err
}

// showWith runs a command that changes nothing until it succeeds and its output has this text.
func (t *incidentTest) showWith(ctx context.Context, s *suite, name, want string) error {
	return peer.Await(ctx, "the output of "+name, func(ctx context.Context) error {
		out, err := t.show(ctx, s, name)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("%q is not in\n%s", want, out)
		}
		return err
	})
}

// keep keeps what a command has printed, as the document shows it.
func (t *incidentTest) keep(c *incidentCommand, output string) {
	lines := strings.SplitAfter(strings.TrimRight(output, "\n")+"\n", "\n")
	lines = lines[:len(lines)-1]
	if c.most > 0 && len(lines) > c.most {
		lines = append(lines[:c.most], "...\n")
	}
	t.outputs[c.name] = "$ " + c.shownLine(t.words) + "\n" + strings.Join(lines, "")
}

// recordedFence is a fence of the document whose content is the output of a command.
var recordedFence = regexp.MustCompile("(?m)^<!-- not run: needs a cluster; written by test/e2e: ([a-z-]+) -->\n```console\n((?:[^`].*\n|\n)*)```$")

// fillFences returns the document with the outputs in the fences of these names. A fence without an output stays.
func fillFences(document string, outputs map[string]string) string {
	return recordedFence.ReplaceAllStringFunc(document, func(fence string) string {
		name := recordedFence.FindStringSubmatch(fence)[1]
		if outputs[name] == "" {
			return fence
		}
		head, _, _ := strings.Cut(fence, "\n")
		return head + "\n```console\n" + outputs[name] + "```"
	})
}

// writeDocument writes the outputs to the document.
func (t *incidentTest) writeDocument(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return file.Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, fillFences(string(text), t.outputs))
		return err
	})
}
