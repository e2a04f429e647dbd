#!/usr/bin/env bash
# A gRPC client in Go waits for DNS outside of the cluster before it connects to a Service next to it.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command rpc prints the seconds that the first call through a new connection takes.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:50051")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go server.Serve(listener)

	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if len(os.Args) > 2 {
		options = append(options, grpc.WithDisableServiceConfig())
	}
	conn, err := grpc.NewClient(os.Args[1]+":50051", options...)
	if err != nil {
		panic(err)
	}
	begin := time.Now()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), new(grpc_health_v1.HealthCheckRequest)); err != nil {
		panic(err)
	}
	fmt.Println(time.Since(begin).Seconds())
}
GO
build rpc google.golang.org/grpc 1.85.0
cat >"$work/resolv.conf" <<'CONF'
nameserver 127.0.0.1
search shop.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
CONF
unshare -rmn bash -c 'mount --bind "$work/resolv.conf" /etc/resolv.conf && ip link set lo up && exec python3 -' <<'PYTHON'
from loopback import *

SERVICE = "web.shop.svc.cluster.local."


def answer(name, qtype, q, tcp):
    """The cluster's DNS, whose forwarder is silent."""
    if not name.endswith(".cluster.local."):
        return None, 0
    if name != SERVICE:
        return reply(q, NXDOMAIN), 0
    return reply(q, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0


upstream = Upstream(answer, port=53)


def first_call(*args):
    """Returns the seconds that the first call takes, and the name that was asked for in vain."""
    begin = len(upstream.queries)
    r = subprocess.run(["rpc", *args], capture_output=True, text=True)
    if r.returncode:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return float(r.stdout), {name for _, name, _, _ in upstream.queries[begin:] if not name.endswith(".cluster.local.")}


(short, asked), (full, _), (without, _) = first_call("web"), first_call(SERVICE), first_call("web", "disable")
conclude("a client in the Service's namespace that dials web calls it within a second, whatever DNS outside of the cluster does",
         "gRPC-Go 1.85.0, grpc.NewClient",
         f"the first call takes {short:.1f} s while the cluster's forwarder is silent, as the client waits for the TXT records of {', '.join(asked)}; "
         f"{full:.1f} s for {SERVICE} with the dot at the end, and {without:.1f} s with WithDisableServiceConfig",
         short > 5 and full < 1 and without < 1 and asked == {"_grpc_config.web."})
PYTHON
