package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/test/peer"
)

// readmeLines gives the lines of the README's sh blocks.
func readmeLines(t *testing.T, root string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "```sh":
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside && line != "":
			lines = append(lines, line)
		}
	}
	return lines
}

// TestReadme runs what the README tells a newcomer to run, as it stands there: every `sh`
// block, on this machine. `make run` serves, what it prints answers, and so does every other
// command of the README. `make test` is what runs this.
func TestReadme(t *testing.T) {
	if _, err := exec.LookPath("dig"); err != nil {
		t.Skip("dig is missing; `make test` installs it")
	}
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root)
	var digs, others []string
	seen := make(map[string]bool)
	for _, line := range readmeLines(t, root) {
		seen[line] = true
		switch {
		case strings.HasPrefix(line, "dig "):
			digs = append(digs, line)
		case line != "make run" && line != "make test":
			others = append(others, line)
		}
	}
	if !seen["make run"] || !seen["make test"] {
		t.Error("the README does not name make run and make test")
	}
	for _, line := range others {
		t.Run(line, func(t *testing.T) {
			if strings.HasPrefix(line, "make lint") || strings.HasPrefix(line, "make bench") {
				t.Skip("takes minutes, and CI runs it on its own or not at all")
			}
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	temporary := t.TempDir()
	p := peer.Start(t, peer.Command{Name: "make-run", Path: "make", Args: []string{"run"}, Env: []string{"TMPDIR=" + temporary}})
	p.Must(t, "make run to serve", func(context.Context) error {
		if !strings.Contains(p.Tail(), "dual.shop.svc") { // in the last line to try
			return errors.New("it does not say so yet")
		}
		return nil
	})
	printed := 0
	for line := range strings.Lines(p.Tail()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "dig ") {
			printed++
			digs = append(digs, line)
		}
	}
	if printed != 4 {
		t.Errorf("make run prints %d dig lines, want 4", printed)
	}
	for _, line := range digs {
		t.Run(line, func(t *testing.T) {
			if err := checkDig(t.Context(), line); err != nil {
				t.Error(err)
			}
		})
	}
	resp, err := exec.CommandContext(t.Context(), "curl", "-sf", "http://127.0.0.1:9253/metrics").Output()
	if err != nil || !strings.Contains(string(resp), `coredns_dns_requests_total{family="1",proto="udp",server="dns://127.0.0.1:1053",type="A",view="",zone="."}`) {
		t.Errorf("the metrics don't count the queries (%v):\n%.2000s", err, resp)
	}
	p.Stop()
	if left, _ := filepath.Glob(filepath.Join(temporary, "nodens-sample-*")); len(left) > 0 {
		t.Errorf("make run left %v behind", left)
	}
}

// checkDig runs a dig line and wants an address or a name in its answer.
func checkDig(ctx context.Context, line string) error {
	out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	for record := range strings.Lines(string(out)) {
		f := strings.Fields(record)
		if len(f) >= 5 && !strings.HasPrefix(record, ";") && f[2] == "IN" {
			return nil
		}
	}
	return fmt.Errorf("no answer:\n%s", out)
}
