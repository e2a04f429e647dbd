#!/usr/bin/env bash
# A gRPC client in Go asks for the new address of a Service once, and then waits for half a minute.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command rpc serves at an address ("serve ADDRESS"), or calls a name ten times a second and
// prints the second of each change between success and failure ("call NAME INTERVAL").
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
	"google.golang.org/grpc/resolver/dns"
)

func main() {
	if os.Args[1] == "serve" {
		listener, err := net.Listen("tcp", os.Args[2]+":50051")
		if err != nil {
			panic(err)
		}
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		panic(server.Serve(listener))
	}
	if interval, err := time.ParseDuration(os.Args[3]); err == nil {
		dns.SetMinResolutionInterval(interval)
	}
	conn, err := grpc.NewClient(os.Args[2]+":50051", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	client, well := grpc_health_v1.NewHealthClient(conn), false
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := client.Check(ctx, new(grpc_health_v1.HealthCheckRequest))
		cancel()
		if well != (err == nil) {
			well = err == nil
			fmt.Println(well)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
GO
build rpc google.golang.org/grpc 1.85.0
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

OLD, NEW = "127.0.0.2", "127.0.0.3"
address = [OLD]
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=5, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0), port=53)


def serve(at):
    def ready():
        try:
            socket.create_connection((at, 50051), 1).close()
            return True
        except OSError:
            return False

    return start("rpc", "serve", at, ready=ready)


def outage(interval):
    """Returns for how many seconds calls fail if the old pod ends, and its name has the new address 3 s later."""
    address[0], old = OLD, serve(OLD)
    client = subprocess.Popen(["rpc", "call", "dns:///web-0.web.shop.svc.cluster.local.", interval], stdout=subprocess.PIPE, text=True)
    if client.stdout.readline() != "true\n":
        sys.exit(2)
    time.sleep(35)  # a look-up is allowed again
    new = serve(NEW)
    end(old)
    client.stdout.readline()
    begin = time.monotonic()
    time.sleep(3)
    address[0] = NEW
    client.stdout.readline()
    seconds = time.monotonic() - begin
    for p in (client, new):
        end(p)
    return seconds


default, cured = outage("default"), outage("2s")
conclude("when a pod ends, and its name has another address 3 s later, a client calls the new pod within 10 s of the end",
         "gRPC-Go 1.85.0, grpc.NewClient",
         f"calls fail for {default:.0f} s, as the name is looked up at once, and the next time 30 s later; for {cured:.0f} s with dns.SetMinResolutionInterval of 2 s",
         25 < default < 45 and cured < 15)
PYTHON
