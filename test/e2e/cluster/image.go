package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

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

// pullName is the image that Pull pulls, by its name on the node.
const pullName = "registry.test/pull:1"

// PushForPulls copies an image of the first node to the registry of StartRegistry, for Pull.
func (c *Cluster) PushForPulls(ctx context.Context, image string) error {
	_, err := runOutput(c.nodes[0].Command(ctx, "ctr", "--namespace=k8s.io", "images", "push", "--plain-http", Registry+"/pull:1", image))
	return err
}

// Pull has the node's containerd pull that image, as the kubelet asks for it, from the registry under the name
// host. containerd looks the name up each time, because each pull has connections of its own; the layers that
// the node has are not pulled again.
func (n *Node) Pull(ctx context.Context, host string) error {
	_, port, _ := strings.Cut(Registry, ":")
	dir := filepath.Join(n.path(registriesDir), "registry.test")
	hosts := fmt.Sprintf("server = \"http://%s:%s\"\n[host]\n", host, port)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o644)); err != nil {
		return err
	}
	socket := fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", n.sandbox.pid())
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	// On the wire, PullImageRequest with an ImageSpec of one name, and PullImageResponse, are these messages.
	spec, err := proto.Marshal(wrapperspb.String(pullName))
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, "/runtime.v1.ImageService/PullImage", wrapperspb.Bytes(spec), new(wrapperspb.StringValue))
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
