package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/nodens-dns/nodens/test/peer"
)

// Image is a container image for the nodes, made of the files in a directory.
type Image struct {
	// Name is the reference, with a tag.
	Name string
	// Root is the directory with the files.
	Root string
	// Entrypoint, Command and Env (NAME=value) are the container's. None of the words
	// may contain a space.
	Entrypoint, Command, Env []string
}

// Write writes the image to a file that containerd can import. It runs the command
// daemonset/release, which belongs to another Go module.
func (i Image) Write(ctx context.Context, file string) error {
	top, err := peer.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(top, "daemonset/release"), "run", ".", "pack",
		"-name", i.Name, "-root", i.Root, "-out", file, "-entrypoint", strings.Join(i.Entrypoint, " "),
		"-command", strings.Join(i.Command, " "), "-env", strings.Join(i.Env, " "))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("making image %s: %w\n%s", i.Name, err, out)
	}
	return nil
}

// Registry is the address of StartRegistry's registry, from which nodes pull without TLS.
const Registry = controlAddr4 + ":5000"

// registryHosts has containerd pull from it without TLS.
const registryHosts = "[host.\"http://" + Registry + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n"

// registriesDir is the folder, below that of a node, with containerd's settings of registries.
const registriesDir = "certs.d"

// StartRegistry starts an empty registry, with a program of daemonset/release. It ends with the
// cluster.
func (c *Cluster) StartRegistry(ctx context.Context, program string) error {
	p, err := c.Spawn("registry", program, "serve", "-listen", Registry)
	if err != nil {
		return err
	}
	return p.Await(ctx, "the registry", c.httpProbe("http://"+Registry+"/v2/"))
}

// CopyFile copies a program or library of this machine to the path `to` below root, and
// makes it executable.
func CopyFile(root, to, from string) error {
	body, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	file := filepath.Join(root, to)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, body, 0o755)
}

// WriteAgentImage writes the image that users install to a file, for this machine's processor only.
func WriteAgentImage(ctx context.Context, file string) error {
	top, err := peer.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(top, "daemonset/release"), "run", ".", "image", "-arch", runtime.GOARCH, "-out", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("making the agent's image: %w\n%s", err, out)
	}
	return nil
}
