package cluster

import (
	"bufio"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// forwarding is what kubectl says when it listens.
var forwarding = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:[0-9]+) `)

// PortForward makes kubectl forward a port in the control plane's network to a port on a pod's loopback
// interface. It returns the address to dial with [Cluster.Dial], and a function that ends kubectl.
func (c *Cluster) PortForward(ctx context.Context, namespace, pod string, port int) (address string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := c.KubectlCommand(ctx, "port-forward", "--namespace="+namespace, "pod/"+pod, ":"+strconv.Itoa(port))
	wrong := new(strings.Builder)
	cmd.Stderr = wrong
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	stop = func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := forwarding.FindStringSubmatch(lines.Text()); m != nil {
			return m[1], stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("kubectl port-forward to pod %s has ended: %s", pod, strings.TrimSpace(wrong.String()))
}
