package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	_ "embed"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// localDNS is the link-local address that agents listen at, and that kubelets write into
// the resolv.conf of pods; localDNS6 is the second one in a cluster of both families.
const (
	localDNS  = "169.254.20.10"
	localDNS6 = "fd00:169:254:20::10"
)

// imageWriters are what the nodes have: each writes its file to the suite's folder.
var imageWriters = []func(context.Context, *suite) (file string, err error){agentImage, coreDNSImage, probeImage, loadImage}

// prepare brings up what the part needs and is not there yet.
func (s *suite) prepare(ctx context.Context, p part) (string, error) {
	if err := s.ensureCluster(ctx, p); err != nil {
		return "", err
	}
	version, err := s.cluster.Kubectl(ctx, "", "get", "nodes", "--output=jsonpath={.items[0].status.nodeInfo.kubeletVersion}")
	if err != nil {
		return "", err
	}
	s.kubernetesVersion = version
	seen := fmt.Sprintf("Kubernetes %s, %d nodes, CoreDNS, kube-proxy %s, network %s",
		version, len(s.cluster.Nodes()), p.kind.proxy, p.kind.network)
	if p.kind.dualStack {
		seen += ", dual-stack"
	}
	if s.agent {
		seen += ", nodens"
	}
	return seen, nil
}

// ensureCluster has the part's kind of cluster up, with the agent if the part wants it.
func (s *suite) ensureCluster(ctx context.Context, p part) error {
	if s.cluster != nil && s.kind != p.kind {
		if err := s.stopCluster(); err != nil {
			return err
		}
	}
	if s.cluster == nil {
		if err := s.startCluster(ctx, p.kind); err != nil {
			fmt.Println(s.diagnose(ctx))
			return errors.Join(err, s.stopCluster())
		}
	}
	if p.agent && !s.agent {
		return s.installAgent(ctx)
	}
	return nil
}

// startCluster starts a cluster with its DNS.
func (s *suite) startCluster(ctx context.Context, kind clusterKind) error {
	go s.images.write(ctx, s) //nolint:errcheck // the cluster asks for them, too
	dir, err := os.MkdirTemp(s.dir, "cluster-")
	if err != nil {
		return err
	}
	servers := []string{localDNS}
	if kind.dualStack {
		servers = append(servers, localDNS6)
	}
	network, err := cluster.FindPodNetwork(kind.network)
	if err != nil {
		return err
	}
	joining := 0
	if kind.clusterDNS || network.OwnServices {
		servers, joining = []string{cluster.DNS}, 1
	}
	s.kind = kind
	s.cluster, err = cluster.Up(ctx, cluster.Options{
		Dir: dir, Nodes: 2, Joining: joining, Release: kind.release, Proxy: kind.proxy, DualStack: kind.dualStack, Network: network,
		ClusterDNS: servers,
		Images:     func(ctx context.Context) ([]string, error) { return s.images.write(ctx, s) },
	})
	if err != nil {
		return err
	}
	return s.installCoreDNS(ctx)
}

// imageFiles are the files of the nodes' images, which are written once in a run. The zero value has none
// yet. It is safe for concurrent use.
type imageFiles struct {
	mu    sync.Mutex
	files []string
}

// write writes the files with s's settings, unless an earlier call has, and returns their names.
func (f *imageFiles) write(ctx context.Context, s *suite) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files != nil {
		return f.files, nil
	}
	files := make([]string, len(imageWriters))
	errs := make(chan error, len(imageWriters))
	for i, write := range imageWriters {
		go func() {
			var err error
			files[i], err = write(ctx, s)
			errs <- err
		}()
	}
	var err error
	for range imageWriters {
		err = errors.Join(err, <-errs)
	}
	if err == nil {
		f.files = files
	}
	return f.files, err
}

// agentImage is the one that users install, for this machine alone.
func agentImage(ctx context.Context, s *suite) (string, error) {
	file := filepath.Join(s.dir, "nodens.tar")
	return file, cluster.WriteAgentImage(ctx, file)
}

// coreDNSImage is CoreDNS.
func coreDNSImage(ctx context.Context, s *suite) (string, error) {
	binary, err := peer.Binary(ctx, "coredns", s.dir)
	if err != nil {
		return "", err
	}
	root := filepath.Join(s.dir, "coredns.d")
	if err := cluster.CopyFile(root, "coredns", binary); err != nil {
		return "", err
	}
	return s.writeImage(ctx, cluster.Image{Name: "coredns:e2e", Root: root, Entrypoint: []string{"/coredns"}})
}

// writeImage writes an image for the nodes to a file in the suite's folder.
func (s *suite) writeImage(ctx context.Context, image cluster.Image) (string, error) {
	base, _, _ := strings.Cut(image.Name, ":")
	file := filepath.Join(s.dir, base+".tar")
	return file, image.Write(ctx, file)
}

//go:embed testdata/coredns.yaml
var coreDNSManifest string

// installCoreDNS installs CoreDNS as the cluster's DNS, and waits for it.
func (s *suite) installCoreDNS(ctx context.Context) error {
	addresses, policy := cluster.DNS, "SingleStack"
	if s.kind.dualStack {
		addresses, policy = cluster.DNS+", "+cluster.DNS6, "RequireDualStack"
	}
	text := strings.NewReplacer("CLUSTER_IPS", addresses, "CLUSTER_IP", cluster.DNS, "FAMILIES", policy, "DOMAIN", cluster.Domain).Replace(coreDNSManifest)
	if _, err := s.cluster.Kubectl(ctx, text, "apply", "--filename=-"); err != nil {
		return err
	}
	_, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=2m")
	return err
}

// installAgent installs nodens on every node.
func (s *suite) installAgent(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(s.root, "daemonset", "nodens.yaml"))
	if err != nil {
		return err
	}
	manifest, err := cluster.WithComparison(string(text), cluster.CompareSeconds)
	if err != nil {
		return err
	}
	if _, err := s.cluster.Kubectl(ctx, manifest, "apply", "--filename=-"); err != nil {
		return err
	}
	_, err = s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace=kube-system", "daemonset/node-local-dns", "--timeout=2m")
	s.agent = err == nil
	return err
}
