#!/usr/bin/env bash
# kuberesolver uses the endpoints of one EndpointSlice alone, the one of the last event.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command call serves health checks at each address, and calls the Service web.shop. For each line of standard input it
// makes 2000 calls and prints the addresses that the last 1000 went to.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sercand/kuberesolver/v6"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	listener, err := net.Listen("tcp", ":50051")
	check(err)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go server.Serve(listener)
	resolver.Register(kuberesolver.NewBuilder(kuberesolver.NewInsecureK8sClient("http://127.0.0.1:8001"), "kubernetes"))
	conn, err := grpc.NewClient("kubernetes:///web.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	check(err)
	client := grpc_health_v1.NewHealthClient(conn)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		used := map[string]bool{}
		for i := range 2000 {
			var p peer.Peer
			_, err := client.Check(context.Background(), new(grpc_health_v1.HealthCheckRequest), grpc.WaitForReady(true), grpc.Peer(&p))
			check(err)
			if i >= 1000 {
				used[p.Addr.(*net.TCPAddr).IP.String()] = true
			}
			time.Sleep(time.Millisecond)
		}
		for address := range used {
			fmt.Print(address, " ")
		}
		fmt.Println()
	}
}
GO
build call github.com/sercand/kuberesolver/v6 6.0.1
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import http.server
import json
import queue
from loopback import *

events = queue.Queue()


class API(http.server.BaseHTTPRequestHandler):
    """Sends the events to a watch."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        while True:
            self.wfile.write(json.dumps(events.get()).encode() + b"\n")


def after(kind, number, size):
    """Sends the event of a slice. Returns the addresses that calls then go to, once they stay the same."""
    endpoints = [{"addresses": [f"127.0.{number}.{i}"], "conditions": {"ready": True}} for i in range(1, size + 1)]
    events.put({"type": kind, "object": {
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": f"web-{number}", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "grpc", "port": 50051, "protocol": "TCP"}]}})
    before, now = None, []
    while not now or now != before:
        p.stdin.write("\n")
        p.stdin.flush()
        before, now = now, sorted(p.stdout.readline().split()) or sys.exit(2)
    return now


threading.Thread(target=http.server.ThreadingHTTPServer(("127.0.0.1", 8001), API).serve_forever, daemon=True).start()
p = subprocess.Popen(["call"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
atexit.register(end, p)
one = after("ADDED", 1, 100)
after("ADDED", 2, 100)
three = after("ADDED", 3, 50)
deleted = after("DELETED", 1, 100)
gone = [a for a in deleted if a.startswith("127.0.1.")]
conclude("a client of a Service with 250 endpoints, in three EndpointSlices, calls all of them, and those of a slice no more when it is deleted",
         "kuberesolver v6.0.1, with gRPC-Go 1.71.0 and round_robin",
         f"it calls {len(one)} while there is one slice of 100, and {len(three)} of the 250, the ones of the slice that came last; "
         f"after the first slice is deleted, it calls {len(gone)} endpoints of that one, and {len(deleted) - len(gone)} of the 150 that are left",
         len(one) == 100 and len(three) == 50 and len(gone) == len(deleted) == 100)
PYTHON
