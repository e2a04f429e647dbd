package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nodens-dns/nodens/test/prometheus"
)

// demo returns the checks of the part demo, the last of which tells what to try.
func demo() []check {
	t := &releaseTest{digests: make(map[string]string)}
	began := time.Now()
	p := &scrapeTest{name: "prometheus"}
	return append(t.installChecks(), check{"Prometheus has both agents as targets", p.showPrometheus},
		check{"ready to try", func(ctx context.Context, s *suite) (string, error) {
			pods := installation{runner: t.runner}
			if err := pods.startPods(ctx, s); err != nil {
				return "", err
			}
			plugin := filepath.Join(t.dir(s, released[0]), "kubectl-nodens_"+released[0]+"_linux_"+runtime.GOARCH+".tar.gz")
			unpack := "tar -xzf " + plugin + " -C " + t.runner.programs + " kubectl-nodens"
			if _, err := t.runner.runShell(ctx, s, unpack+" && kubectl nodens status"); err != nil {
				return "", err
			}
			programs := "env KUBECONFIG=" + s.cluster.Kubeconfig() + " PATH=" + t.runner.programs + ":$PATH "
			fmt.Printf(demoText, s.cluster.Command(ctx, programs).String(), pods.pods[0], t.chart(released[1]),
				p.server.URL, filepath.Join(s.root, "daemonset/monitoring/dashboard.json"))
			return fmt.Sprintf("%.0f s after the start", time.Since(began).Seconds()), nil
		}})
}

// showPrometheus starts Prometheus, serves it on this machine's loopback interface until ctx ends, and asks
// it there.
func (p *scrapeTest) showPrometheus(ctx context.Context, s *suite) (string, error) {
	seen, err := p.checkPodMonitor(ctx, s)
	if err != nil {
		return "", err
	}
	target, err := url.Parse(p.server.URL)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: p.server.Client.Transport,
	}}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go server.Serve(listener) //nolint:errcheck // it ends with ctx
	p.server = prometheus.Prometheus{URL: "http://" + listener.Addr().String()}
	_, err = p.server.QueryData(ctx, "up")
	return seen, err
}

const demoText = `
A cluster of two nodes runs nodens. It has a network of its own, into which this leads; in another
terminal, as root:

    alias in-demo='%[1]s'

  a pod's shell      in-demo kubectl exec -it %[2]s -- sh
  flood from it      in-demo kubectl exec %[2]s -- sh -c 'while :; do nslookup x$RANDOM.outside.test; done' >/dev/null
  who asks what      in-demo kubectl nodens top
  the page           in-demo kubectl -n kube-system port-forward daemonset/node-local-dns 8353
                     in-demo curl http://127.0.0.1:8353
  Prometheus         %[4]s
  the dashboard      %[5]s; in Grafana: Dashboards, New, Import,
                     with a data source Prometheus at %[4]s
  kill the agents    in-demo kubectl -n kube-system delete pod -l k8s-app=node-local-dns --grace-period=0 --force
  upgrade            in-demo helm upgrade %[3]s
  rollback           in-demo helm rollback node-local-dns 1 --namespace kube-system

Names resolve throughout: ask in the pod's shell. Ctrl-C ends the cluster and removes everything.
`
