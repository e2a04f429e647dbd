package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/test/ca"
	"github.com/nodens-dns/nodens/test/peer"
)

// The address ranges that ClusterIPs are taken from.
const (
	ServiceRange4 = "10.96.0.0/16"
	ServiceRange6 = "fd00:10:96::/112"
)

// Server is an API server and its etcd. Its methods may not be called
// concurrently, except for Config and Kubeconfig.
type Server struct {
	dir string
	url string
	// apiPath and etcdPath are the programs.
	apiPath, etcdPath         string
	port, etcdPort, peersPort uint16
	ca                        *ca.CA
	etcd, api                 *peer.Process
	options                   []string // of the API server, beside its own
}

// Start starts a server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	if testing.Short() {
		tb.Skip("building an API server takes minutes: skipped under -short")
	}
	releases := peer.Releases()
	return StartRelease(tb, releases[len(releases)-1])
}

// StartRelease is Start for a release in [peer.Releases].
func StartRelease(tb testing.TB, release string) *Server {
	tb.Helper()
	if testing.Short() {
		tb.Skip("building an API server takes minutes: skipped under -short")
	}
	s, err := openRelease(tb.Context(), tb.TempDir(), release)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Open is Start for callers without a test, such as TestMain; the caller
// calls Close. All files are written to dir, which the caller owns. The API server
// gets the options, beside those that it needs.
func Open(ctx context.Context, dir string, options ...string) (*Server, error) {
	releases := peer.Releases()
	return openRelease(ctx, dir, releases[len(releases)-1], options...)
}

func openRelease(ctx context.Context, dir, release string, options ...string) (*Server, error) {
	s := &Server{dir: dir, options: options}
	if err := s.open(ctx, release); err != nil {
		s.Close()
		return nil, fmt.Errorf("starting an API server: %w", err)
	}
	return s, nil
}

func (s *Server) open(ctx context.Context, release string) error {
	var err error
	if s.etcdPath, err = peer.Binary(ctx, peer.InRelease("etcd", release), s.dir); err != nil {
		return err
	}
	if s.apiPath, err = peer.Binary(ctx, peer.InRelease("kube-apiserver", release), s.dir); err != nil {
		return err
	}
	for _, port := range []*uint16{&s.port, &s.etcdPort, &s.peersPort} {
		if *port, err = peer.Port(); err != nil {
			return err
		}
	}
	s.url = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.port)))
	if s.ca, err = ca.New(); err != nil {
		return err
	}
	if err := s.writeFiles(); err != nil {
		return err
	}
	if err := s.startEtcd(ctx); err != nil {
		return err
	}
	if err := s.startAPI(ctx); err != nil {
		return err
	}
	return s.grant(ctx)
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// startEtcd starts etcd and waits until it serves.
func (s *Server) startEtcd(ctx context.Context) error {
	clientURL := fmt.Sprintf("http://127.0.0.1:%d", s.etcdPort)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", s.peersPort)
	var err error
	s.etcd, err = peer.Spawn(peer.Command{
		Name: "etcd", Path: s.etcdPath, Dir: s.dir,
		Args: []string{
			"--name=test",
			"--data-dir=" + s.path("etcd"),
			"--listen-client-urls=" + clientURL,
			"--advertise-client-urls=" + clientURL,
			"--listen-peer-urls=" + peerURL,
			"--initial-advertise-peer-urls=" + peerURL,
			"--initial-cluster=test=" + peerURL,
			// The data is thrown away with the test.
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	})
	if err != nil {
		return err
	}
	return s.etcd.Await(ctx, "etcd", peer.Get(nil, clientURL+"/health", http.StatusOK))
}

// startAPI starts the API server and waits until it is ready.
func (s *Server) startAPI(ctx context.Context) error {
	var err error
	s.api, err = peer.Spawn(peer.Command{
		Name: "kube-apiserver", Path: s.apiPath, Dir: s.dir,
		Args: append([]string{
			fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", s.etcdPort),
			"--bind-address=127.0.0.1",
			"--advertise-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", s.port),
			"--tls-cert-file=" + s.path("server.crt"),
			"--tls-private-key-file=" + s.path("server.key"),
			"--token-auth-file=" + s.path("tokens.csv"),
			"--authorization-mode=RBAC",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + s.path("account.crt"),
			"--service-account-signing-key-file=" + s.path("account.key"),
			"--service-cluster-ip-range=" + ServiceRange4 + "," + ServiceRange6,
			// There is no endpoint to reconcile on a single loopback server,
			// and no controller that makes the accounts pods would need.
			"--endpoint-reconciler-type=none",
			"--disable-admission-plugins=ServiceAccount",
			// Tests write hundreds of objects at once from one client.
			"--enable-priority-and-fairness=false",
			// As kubeadm sets it; older manifests of NodeLocal DNSCache have privileged containers.
			"--allow-privileged=true",
			// Requests under way end at once when a test stops the server.
			"--shutdown-delay-duration=0s",
		}, s.options...),
	})
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.ca.Pool()}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	if err := s.api.Await(ctx, "the API server", peer.Get(client, s.url+"/readyz", http.StatusOK)); err != nil {
		return err
	}
	return s.awaitNamespace(ctx)
}

// awaitNamespace waits for the namespace of the agent's objects. A controller of the API server
// makes it, and readiness does not wait for that controller.
func (s *Server) awaitNamespace(ctx context.Context) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	return s.api.Await(ctx, "the namespace "+metav1.NamespaceSystem, func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err
	})
}

// Join starts another API server on the data of s, with the same users and certificates. It ends with the test.
func (s *Server) Join(tb testing.TB) *Server {
	tb.Helper()
	other := *s
	other.etcd, other.api = nil, nil
	var err error
	if other.port, err = peer.Port(); err == nil {
		other.url = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(other.port)))
		err = other.startAPI(tb.Context())
	}
	tb.Cleanup(other.Close)
	if err != nil {
		tb.Fatal(err)
	}
	return &other
}

// Stop ends the API server; etcd goes on. Restart brings it back.
func (s *Server) Stop() { s.api.Stop() }

// Kill is Stop without a word to the API server: watches break off.
func (s *Server) Kill() { s.api.Kill() }

// Restart starts the API server again, on the same port and the same data,
// after stopping it if it runs. It returns when the server is ready.
func (s *Server) Restart(ctx context.Context) error {
	s.api.Stop()
	return s.startAPI(ctx)
}

// Close ends everything. The objects are lost when the caller removes the
// folder.
func (s *Server) Close() {
	if s.api != nil {
		s.api.Kill()
	}
	if s.etcd != nil {
		s.etcd.Kill()
	}
}

// Pids returns the ids of the API server's process and of etcd's, for meters.
func (s *Server) Pids() (api, etcd int) { return s.api.PID(), s.etcd.PID() }

// Addr returns the API server's address as host and port.
func (s *Server) Addr() string { return strings.TrimPrefix(s.url, "https://") }

// URL returns the API server's address, for a Corefile's endpoint.
func (s *Server) URL() string { return s.url }

// Config returns a client configuration for the user. Its rate limit is off:
// tests write hundreds of objects and wait for none of them.
func (s *Server) Config(u User) *rest.Config {
	return &rest.Config{
		Host:            s.url,
		BearerToken:     string(u),
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.path("ca.crt")},
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{},
	}
}

// Client returns a clientset for the administrator.
func (s *Server) Client() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(s.Config(Admin))
}

// Kubeconfig returns the path of a kubeconfig file for the user.
func (s *Server) Kubeconfig(u User) string { return s.path(string(u) + ".kubeconfig") }

// writeFiles writes the certificates, the keys, the users and their kubeconfig files.
func (s *Server) writeFiles() error {
	if err := os.WriteFile(s.path("ca.crt"), s.ca.PEM(), 0o600); err != nil {
		return err
	}
	server, err := s.ca.Server("localhost", "127.0.0.1", "::1")
	if err != nil {
		return err
	}
	if err := ca.WriteFiles(server, s.path("server.crt"), s.path("server.key")); err != nil {
		return err
	}
	// It signs the tokens of service accounts.
	account, err := s.ca.Client("service accounts")
	if err != nil {
		return err
	}
	if err := ca.WriteFiles(account, s.path("account.crt"), s.path("account.key")); err != nil {
		return err
	}
	tokens := ""
	for _, u := range []User{Admin, Agent} {
		tokens += fmt.Sprintf("%s,%s,%s,%q\n", u, u, u, u.group())
		if err := s.writeKubeconfig(u); err != nil {
			return err
		}
	}
	return os.WriteFile(s.path("tokens.csv"), []byte(tokens), 0o600)
}
