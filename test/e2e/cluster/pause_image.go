package cluster

import (
	"context"
	"os"
	"os/exec"
)

// pauseImage keeps the namespaces of every pod open.
const (
	pauseImage = "docker.io/library/pause:e2e"
	pauseFile  = "pause.tar"
)

// writePauseImage writes that image: busybox, which sleeps.
func (c *Cluster) writePauseImage(ctx context.Context) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "nodens-pause-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if err := CopyFile(root, "busybox", busybox); err != nil {
		return err
	}
	return Image{Name: pauseImage, Root: root, Entrypoint: []string{"/busybox", "sleep", "infinity"}}.Write(ctx, c.path(pauseFile))
}
