package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// registry replaces YOUR-REGISTRY in commands.
const registry = "registry.test"

// guideRunner runs the commands of the how-to guides in a copy of the tree, with its own kubectl and
// helm.
type guideRunner struct {
	// tree is the copy, and programs the folder of kubectl and helm.
	tree, programs string
	// ran and stoodIn count the commands that were run as they stand, and those that
	// something else was done for.
	ran, replaced int
}

// prepare copies the tree, and finds the programs.
func (r *guideRunner) prepare(ctx context.Context, s *suite) error {
	if r.tree != "" {
		return nil
	}
	dir, err := os.MkdirTemp(s.dir, "reader-")
	if err != nil {
		return err
	}
	r.programs = filepath.Join(dir, "bin")
	if err := os.Mkdir(r.programs, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kubectl", "helm"} {
		path, err := peer.Binary(ctx, name, dir)
		if err != nil {
			return err
		}
		if err := os.Symlink(path, filepath.Join(r.programs, name)); err != nil {
			return err
		}
	}
	tree := filepath.Join(dir, "tree")
	if err := copyTree(s.root, tree); err != nil {
		return fmt.Errorf("copying the tree: %w", err)
	}
	if err := cluster.SetComparison(tree, 0); err != nil {
		return err
	}
	r.tree = tree
	return nil
}

// copyTree copies the tree as it is now, without git's folder and what make has put
// into bin.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch target := filepath.Join(to, name); {
		case name == ".git" || name == "bin":
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		default:
			return copyEntry(path, target, entry.Type())
		}
	})
}

// copyEntry copies a file or a symbolic link.
func copyEntry(from, to string, kind fs.FileMode) error {
	if kind == fs.ModeSymlink {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

// consoleBlocks are the console fences of a section, each with its commands.
func consoleBlocks(text, section string) (list [][]string, err error) {
	_, text, ok := strings.Cut(text, "\n## "+section+"\n")
	if !ok {
		return nil, fmt.Errorf("there is no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for {
		var block string
		if _, text, ok = strings.Cut(text, "\n```console\n"); !ok {
			break
		}
		if block, text, ok = strings.Cut(text, "\n```"); !ok {
			return nil, fmt.Errorf("section %q: a fence is not closed", section)
		}
		var commands []string
		for line := range strings.SplitSeq(block, "\n") {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands = append(commands, command)
			}
		}
		list = append(list, commands)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("section %q has no commands", section)
	}
	return list, nil
}

// runSection runs the commands in that section of a guide, a file's name in docs/how-to.
func (r *guideRunner) runSection(ctx context.Context, s *suite, guide, section string) error {
	if err := r.prepare(ctx, s); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(r.tree, "docs", "how-to", guide))
	if err != nil {
		return err
	}
	list, err := consoleBlocks(string(text), section)
	if err != nil {
		return fmt.Errorf("%s: %w", guide, err)
	}
	for _, commands := range list {
		for _, command := range commands {
			if err := r.runCommand(ctx, s, command); err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
		}
	}
	return nil
}

// setSetting changes a setting of daemonset/settings in the copy of the tree, as a reader does
// with an editor.
func (r *guideRunner) setSetting(before, after string) error {
	file := filepath.Join(r.tree, "daemonset", "settings", "kustomization.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.Count(string(text), before+"\n") != 1 {
		return fmt.Errorf("%s does not have one line %q", file, before)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), before+"\n", after+"\n", 1)), 0o644)
}

// runCommand runs one as it stands, in the network from which the cluster can be reached.
// What needs a registry is done by hand: every node gets the image, under the name that
// it has there.
func (r *guideRunner) runCommand(ctx context.Context, s *suite, command string) error {
	program, _, _ := strings.Cut(command, " ")
	switch program {
	case "skopeo":
		r.replaced++
		return r.importImage(ctx, s)
	case "make":
		// Debian's packages come from the network that this process has.
		r.ran++
		return r.run(exec.CommandContext(ctx, "sh", "-c", command))
	default:
		r.ran++
		_, err := r.runShell(ctx, s, strings.ReplaceAll(command, "YOUR-REGISTRY", registry))
		return err
	}
}

// runShell runs a line of shell in the copy of the tree and returns its standard output.
func (r *guideRunner) runShell(ctx context.Context, s *suite, line string) (string, error) {
	cmd := s.cluster.Command(ctx, "sh", "-c", line)
	cmd.Env = append(os.Environ(), "PATH="+r.programs+":"+os.Getenv("PATH"), "KUBECONFIG="+s.cluster.Kubeconfig(),
		"HELM_CACHE_HOME="+r.programs, "HELM_CONFIG_HOME="+r.programs, "HELM_DATA_HOME="+r.programs)
	var out strings.Builder
	cmd.Stdout = &out
	err := r.run(cmd)
	return out.String(), err
}

// run runs the program in the copy of the tree. An error has what it wrote.
func (r *guideRunner) run(cmd *exec.Cmd) error {
	var wrote strings.Builder
	cmd.Dir, cmd.Stderr = r.tree, &wrote
	if cmd.Stdout == nil {
		cmd.Stdout = &wrote
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, strings.TrimSpace(wrote.String()))
	}
	return nil
}

// importImage gives every node the file that `make image` has written, as if it were pulled.
func (r *guideRunner) importImage(ctx context.Context, s *suite) error {
	for _, node := range s.cluster.Nodes() {
		if err := node.Import(ctx, filepath.Join(r.tree, "bin", "nodens-image.tar")); err != nil {
			return err
		}
		tag := node.Command(ctx, "ctr", "--namespace=k8s.io", "images", "tag", "--force",
			"docker.io/library/nodens:0.1.0", registry+"/nodens:0.1.0")
		if out, err := tag.CombinedOutput(); err != nil {
			return fmt.Errorf("naming the image on %s: %w\n%s", node.Name, err, out)
		}
	}
	return nil
}
