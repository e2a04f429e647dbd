package cluster

import (
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

// pauseImage holds the namespaces of every pod open.
const (
	pauseImage = "docker.io/library/pause:e2e"
	pauseFile  = "pause.tar"
)

// pause writes that image.
func (c *Cluster) pause() error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	body, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	out, err := os.Create(c.path(pauseFile))
	if err != nil {
		return err
	}
	defer out.Close()
	return oci.Write(out, pauseImage, time.Unix(0, 0), oci.Image{
		Architecture: runtime.GOARCH,
		Layers:       []oci.Layer{{{Path: "busybox", Mode: 0o755, Body: body}}},
		Entrypoint:   []string{"/busybox", "sleep", "infinity"},
		Plain:        true,
	})
}
