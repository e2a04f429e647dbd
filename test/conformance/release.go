package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// localDNS is the link-local address at which the agents of daemonset/base listen.
const localDNS = "169.254.20.10"

// form is one of the ways in which the tests run.
type form struct {
	// coreDNS says that the cluster's DNS runs; without, its Deployment is scaled to zero.
	coreDNS bool
	// kernelPath says that the agents answer repeated queries in the kernel.
	kernelPath bool
}

// forms are all of them, in an order in which each differs from the one before in one thing.
func forms() []form {
	return []form{{coreDNS: true}, {}, {kernelPath: true}, {coreDNS: true, kernelPath: true}}
}

func (f form) String() string {
	words := []string{"CoreDNS scaled to zero", "kernel path off"}
	if f.coreDNS {
		words[0] = "CoreDNS running"
	}
	if f.kernelPath {
		words[1] = "kernel path on"
	}
	return strings.Join(words, ", ")
}

// release is a release of Kubernetes, with its cluster.
type release struct {
	// name is the minor release, such as v1.36, and version the whole version.
	name, version string
	// tests and kubectl are programs.
	tests, kubectl string
	cluster        *cluster.Cluster
}

// runRelease runs all forms in one cluster. A failed test does not keep the other forms from
// running.
func (s *suite) runRelease(ctx context.Context, name string) (err error) {
	r := &release{name: name}
	if r.version, err = peer.ToolVersion(peer.InRelease("e2e.test", name)); err != nil {
		return err
	}
	for program, path := range map[string]*string{"e2e.test": &r.tests, "kubectl": &r.kubectl} {
		if *path, err = peer.Binary(ctx, peer.InRelease(program, name), s.dir); err != nil {
			return err
		}
	}
	if err := s.start(ctx, r); err != nil {
		return fmt.Errorf("with Kubernetes %s: %w", r.version, err)
	}
	var errs []error
	for _, f := range forms() {
		if !s.forms.MatchString(f.String()) {
			continue
		}
		if err := s.runForm(ctx, r, f); err != nil {
			errs = append(errs, fmt.Errorf("with Kubernetes %s, %s: %w", r.version, f, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(errs, r.cluster.Down())...)
}

// start starts the release's cluster with CoreDNS and without the agent. It leaves no cluster on
// error.
func (s *suite) start(ctx context.Context, r *release) error {
	images, err := os.MkdirTemp(s.dir, "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(images) // hundreds of megabytes, which the nodes have by then
	dir, err := os.MkdirTemp(s.dir, "cluster-")
	if err != nil {
		return err
	}
	r.cluster, err = cluster.Up(ctx, cluster.Options{
		Dir: dir, Nodes: 2, Proxy: "iptables", ClusterDNS: []string{localDNS}, Release: r.name,
		Images: func(ctx context.Context) ([]string, error) { return s.writeImages(ctx, r, images) },
	})
	if err != nil {
		return err
	}
	if err := s.installCoreDNS(ctx, r); err != nil {
		return errors.Join(err, r.cluster.Down())
	}
	return nil
}

// installCoreDNS installs CoreDNS as the cluster's DNS.
func (s *suite) installCoreDNS(ctx context.Context, r *release) error {
	text, err := os.ReadFile(filepath.Join(s.root, "test/e2e/testdata/coredns.yaml"))
	if err != nil {
		return err
	}
	words := strings.NewReplacer("CLUSTER_IPS", cluster.DNS, "CLUSTER_IP", cluster.DNS, "FAMILIES", "SingleStack", "DOMAIN", cluster.Domain)
	_, err = r.cluster.Kubectl(ctx, words.Replace(string(text)), "apply", "--filename=-")
	return err
}
