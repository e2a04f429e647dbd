#!/usr/bin/env bash
# The kubelet takes no search domain from a node's resolv.conf that has a domain line.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir -p "$work/src"
cat >"$work/src/main.go" <<'GO'
// Prints the search line of a pod whose policy is the second argument, on a node whose resolv.conf is the first.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
)

func main() {
	c := dns.NewConfigurer(record.NewFakeRecorder(1), nil, nil, []net.IP{net.IPv4(10, 96, 0, 10)}, "cluster.local", os.Args[1])
	config, err := c.GetPodDNS(context.Background(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
		Spec:       v1.PodSpec{DNSPolicy: v1.DNSPolicy(os.Args[2])},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(config.Searches, " "))
}
GO
# The parts of Kubernetes that its go.mod has no versions of.
replaced=()
for part in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap code-generator component-base component-helpers \
	controller-manager cri-api cri-client cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
	kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver streaming; do
	replaced+=("k8s.io/$part => k8s.io/$part v0.37.2")
done
build kubelet-dns k8s.io/kubernetes 1.37.2 "${replaced[@]}"
look_ups 'nameserver 127.0.0.1
domain corp.example
options timeout:1 attempts:1' <<'PYTHON'
from loopback import *


def search(line, policy):
    """Returns the search domains of a pod on a node with that line in its resolv.conf."""
    r = subprocess.run(["kubelet-dns", write("node", f"nameserver 192.0.2.53\n{line} corp.example\n"), policy], stdout=subprocess.PIPE, text=True, check=True)
    return r.stdout.split()


server = Upstream(lambda name, qtype, q, tcp: (reply(q), 0), port=53)
subprocess.run([sys.executable, "-c", "import socket; socket.gethostbyname('intranet')"], stderr=subprocess.DEVNULL)
node = "intranet.corp.example." in [name for _, name, _, _ in server.queries]
domain, searched = [["corp.example" in search(line, policy) for policy in ("Default", "ClusterFirst")] for line in ("domain", "search")]
conclude("pods have the search domain of the node's resolv.conf, which it names with domain corp.example (resolv.conf(5))",
         "Kubernetes 1.37.2, kubelet; glibc 2.36 on the node",
         f"programs on the node look for intranet in corp.example: {node}. Pods with the policies Default and ClusterFirst have corp.example in their search path: {domain}; "
         f"if the line is search corp.example: {searched}",
         node and domain == [False, False] and searched == [True, True])
PYTHON
