package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// badAgent is an agent with a fault that shows only after it has taken over.
type badAgent struct {
	// name is the fault, as in testdata/faults.
	name string
	// kind and reason are what the metric and the logs say.
	kind, reason string
	// late says that no query fails, because the answers are only late.
	late bool
}

// badAgents are all of them. They have the same program, which reads its fault from a file in
// the image.
var badAgents = []badAgent{
	{name: "servfail", kind: "servfail", reason: "servfail cluster.local."},
	{name: "slow", kind: "latency", reason: "latency cluster.local.", late: true},
	{name: "empty-view", kind: "view", reason: "view cluster.local."},
	{name: "hang", kind: "hang", reason: "did not respond"},
}

// usualBadAgents are the agents of a run without -bad.
const usualBadAgents = "servfail,empty-view"

// chooseBadAgents returns the agents with these names.
func chooseBadAgents(names []string) (list []badAgent, err error) {
	for _, name := range names {
		i := slices.IndexFunc(badAgents, func(b badAgent) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-bad: there is no bad agent %q", name)
		}
		list = append(list, badAgents[i])
	}
	return list, nil
}

// faultEdits make the faults, and faultFiles add what they call. Both change copies: the tree
// has no code for tests.
var (
	faultEdits = []edit{
		{"server/resolver/resolve.go", "\tinet := r.Query.Class", "\tif resolveFault(r) {\n\t\treturn r.fail(wire.ServFail)\n\t}\n\tinet := r.Query.Class"},
		// What is slow waits like a query to an upstream, so that the readers go on.
		{"server/resolver/resolve.go", "case rt.StartWaiting && r.direct", "case (rt.StartWaiting || fault == \"slow\") && r.direct"},
		{"kubernetes/view.go", "\tvisible := f(x)\n", "\tvisible := !noObjects && f(x)\n"},
		{"kubernetes/saved_view.go", "\tif errors.Is(err, fs.ErrNotExist) {\n", "\tif noObjects || errors.Is(err, fs.ErrNotExist) {\n"},
	}
	faultFiles = map[string]string{"server/resolver/fault.go": resolverFaults, "kubernetes/fault.go": viewFaults}
)

//go:embed testdata/faults/resolver.go.txt
var resolverFaults string

//go:embed testdata/faults/kubernetes.go.txt
var viewFaults string

// edit replaces a text that occurs once in a file of the tree.
type edit struct{ file, old, new string }

// writeOverlay writes the files of a tree with edits and additional files to dir, and the list
// of them for go build's -overlay. It fails if the text of an edit does not occur exactly once.
func writeOverlay(root, dir string, edits []edit, files map[string]string) (list string, err error) {
	texts := maps.Clone(files)
	for _, e := range edits {
		if _, ok := texts[e.file]; !ok {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return "", err
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.old); n != 1 {
			return "", fmt.Errorf("%q occurs %d times in %s, want once; adapt the edit of the bad agents", e.old, n, e.file)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
	}
	replace := make(map[string]string)
	for file, text := range texts {
		copied := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = copied
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, text, 0o644)
}

// buildBadAgent builds the program of the bad agents in dir.
func buildBadAgent(ctx context.Context, root, dir string) (program string, err error) {
	overlay, err := writeOverlay(root, dir, faultEdits, faultFiles)
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "nodens")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-overlay", overlay, "-o", program, "./cmd/nodens")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the bad agents: %w\n%s", err, out)
	}
	return program, nil
}

// image is the reference of the agent's image.
func (b badAgent) image() string { return "nodens:bad-" + b.name }

// earlierImage is the reference of the image with the earlier agent.
const earlierImage = "nodens:earlier"

// agentProgram is the agent's place in the image.
const agentProgram = "usr/local/bin/nodens"

// agentVariant is an image like the agent's with another program, and a fault.
type agentVariant struct{ image, program, fault string }

// importVariants gives the nodes the images.
func (s *suite) importVariants(ctx context.Context, list []agentVariant) error {
	root, file := filepath.Join(s.dir, "variants.d"), filepath.Join(s.dir, "variant.tar")
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(s.root, "daemonset/release"), "run", ".", "image", "-arch", runtime.GOARCH, "-root", root)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("writing the files of the agent's image: %w\n%s", err, out)
	}
	for _, v := range list {
		if err := cluster.CopyFile(root, agentProgram, v.program); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, "fault"), []byte(v.fault), 0o644); err != nil {
			return err
		}
		image := cluster.Image{
			Name: v.image, Root: root, Entrypoint: []string{"/" + agentProgram},
			Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin"},
		}
		if err := image.Write(ctx, file); err != nil {
			return err
		}
		for _, n := range s.cluster.Nodes() {
			if err := n.Import(ctx, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// earlierProgram builds the agent of the commit in test/compat/testdata/base, the last release.
func earlierProgram(ctx context.Context, root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "test/compat/testdata/base"))
	if err != nil {
		return "", err
	}
	return peer.EarlierBinary(ctx, strings.TrimSpace(string(text)))
}
