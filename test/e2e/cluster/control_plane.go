package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// programs are those of Kubernetes that a cluster is made of, and coredns is the world
// outside.
var programs = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns",
}

// Spawn starts a program in the control plane's network. It ends with the cluster.
func (c *Cluster) Spawn(name, path string, args ...string) (*peer.Process, error) {
	return c.process(name, c.control.nsenterArgs([]string{"net"}, path, args...))
}

// process starts a program that ends with the cluster.
func (c *Cluster) process(name string, argv []string) (*peer.Process, error) {
	p, err := peer.Spawn(peer.Command{Name: name, Path: argv[0], Args: argv[1:], Dir: c.path("logs")})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes = append(c.processes, p)
	return p, nil
}

// httpProbe looks whether a URL in the control plane's network answers with success.
func (c *Cluster) httpProbe(url string) peer.Probe {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.ca)
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:       c.Dial,
			TLSClientConfig:   &tls.Config{RootCAs: pool},
			DisableKeepAlives: true,
		},
		// Two starts of a program are longer than this; its next look is then the one.
		Timeout: 5 * time.Second,
	}
	return peer.Get(client, url, http.StatusOK)
}

// startEtcd starts the API server's memory.
func (c *Cluster) startEtcd(ctx context.Context) error {
	const url = "http://127.0.0.1:2379"
	p, err := c.Spawn("etcd", c.binaries["etcd"],
		"--name=e2e", "--data-dir="+c.path("etcd"),
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=e2e=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // the data goes with the cluster
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	return p.Await(ctx, "etcd", c.httpProbe(url+"/health"))
}

// StartAPI undoes StopAPI.
func (c *Cluster) StartAPI(ctx context.Context) error {
	services := ServiceRange4
	if c.options.DualStack {
		services += "," + ServiceRange6
	}
	var err error
	c.api, err = c.Spawn("kube-apiserver", c.binaries["kube-apiserver"],
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+controlAddr4,
		"--tls-cert-file="+c.path("server.crt"), "--tls-private-key-file="+c.path("server.key"),
		"--token-auth-file="+c.path("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("account.crt"), "--service-account-signing-key-file="+c.path("account.key"),
		"--service-cluster-ip-range="+services,
		"--kubelet-client-certificate="+c.path("kubelet-client.crt"), "--kubelet-client-key="+c.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		// One that is stopped drops its requests at once.
		"--shutdown-delay-duration=0s",
	)
	if err != nil {
		return err
	}
	return c.api.Await(ctx, "the API server", c.httpProbe(apiURL+"/readyz"))
}

// StopAPI kills the API server. The nodes go on without it, until StartAPI.
func (c *Cluster) StopAPI() error {
	c.api.Kill()
	return nil
}

// startControllers starts what works through the API server.
func (c *Cluster) startControllers() error {
	_, err := c.Spawn("kube-controller-manager", c.binaries["kube-controller-manager"],
		"--kubeconfig="+c.kubeconfig(controller), "--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.path("account.key"), "--root-ca-file="+c.path("ca.crt"),
		"--flex-volume-plugin-dir="+c.path("flex-volumes"),
	)
	if err != nil {
		return err
	}
	_, err = c.Spawn("kube-scheduler", c.binaries["kube-scheduler"],
		"--kubeconfig="+c.kubeconfig(scheduler), "--leader-elect=false")
	return err
}
