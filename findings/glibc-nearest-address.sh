#!/usr/bin/env bash
# glibc puts the address that is most like the own one first, so that a headless Service's pods get no equal share.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command look_up looks a name up 200 times with Go's own resolver, and prints the first address each time.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
)

func main() {
	for range 200 {
		addresses, err := net.LookupHost(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(addresses[0])
	}
}
GO
build look_up golang.org/x/net 0.48.0
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from collections import Counter

from loopback import *

NAME = "pods.shop.svc.cluster.local"
PODS = ["10.244.1.4", "10.244.1.77", "10.244.1.130", "10.244.2.6"]


def answer(name, qtype, q, tcp):
    """Answers with the pods in random order, like CoreDNS with loadbalance."""
    r = reply(q)
    head, record = r[: question(q)[2]], r[question(q)[2] : -4]
    pods = random.sample(PODS, len(PODS)) if qtype == A else []
    return head[:6] + struct.pack("!H", len(pods)) + head[8:] + b"".join(record + socket.inet_aton(p) for p in pods), 0


Upstream(answer, port=53)


def ip(*words):
    if subprocess.run(["ip", *words]).returncode:
        sys.exit(2)


ip("link", "add", "eth0", "type", "veth", "peer", "name", "other")
ip("link", "set", "eth0", "up")
ip("link", "set", "other", "up")


def first(prefix):
    """Returns how often each pod comes first for a program whose own address has a prefix of this length."""
    ip("address", "flush", "dev", "eth0")
    ip("address", "add", f"10.244.1.5/{prefix}", "dev", "eth0")
    ip("route", "replace", "default", "dev", "eth0")
    go = Counter(subprocess.run(["look_up", NAME], stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    return Counter(socket.getaddrinfo(NAME, 80, type=socket.SOCK_STREAM)[0][4][0] for _ in range(200)), go


def show(counts):
    return ", ".join(f"{p} {counts[p]}" for p in PODS)


(subnet, go), (host, _) = first(24), first(32)
conclude("of 200 connections to a headless Service with four pods each gets about 50, as the name server shuffles the addresses",
         f"glibc {os.confstr('CS_GNU_LIBC_VERSION').split()[1]}, getaddrinfo; Go's own resolver",
         f"first addresses for a pod with 10.244.1.5/24: {show(subnet)}; with 10.244.1.5/32: {show(host)}; in Go, with /24: {show(go)}",
         subnet == {PODS[0]: 200} and all(20 < c[p] < 90 for c in (host, go) for p in PODS))
PYTHON
