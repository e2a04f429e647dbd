#!/usr/bin/env bash
# Go says "no such host" of a short name that exists, when the cluster's DNS answers SERVFAIL or nothing.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
cd "$work"
printf 'module finding\n\ngo 1.26.0\n\ntoolchain go1.26.8\n' >go.mod
cat >main.go <<'GO'
// Command finding looks a name up at a server, and prints what kind of error it gets.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	resolver := &net.Resolver{PreferGo: true, StrictErrors: os.Args[3] == "strict", Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, os.Args[1])
	}}
	_, err := resolver.LookupHost(context.Background(), os.Args[2])
	var failure *net.DNSError
	switch {
	case !errors.As(err, &failure):
		fmt.Println("other", err)
	case failure.IsNotFound:
		fmt.Println("not found")
	case failure.IsTemporary:
		fmt.Println("temporary")
	}
}
GO
CGO_ENABLED=0 GOFLAGS=-mod=mod GOWORK=off go build -trimpath -o finding . || exit 2
python3 - <<'PYTHON'
from loopback import *

FAILING = {"servfail.shop.svc.cluster.local.": SERVFAIL, "silent.shop.svc.cluster.local.": None}


def answer(name, qtype, q, tcp):
    code = FAILING.get(name, NXDOMAIN)
    return None if code is None else reply(q, code), 0


upstream = Upstream(answer)
conf = write("resolv.conf", """nameserver 127.0.0.1
search shop.svc.cluster.local svc.cluster.local cluster.local
options ndots:5 timeout:2 attempts:1
""")


def error(name, mode=""):
    r = subprocess.run(["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$work/finding" "$@"',
                        conf, f"127.0.0.1:{upstream.port}", name, mode], capture_output=True, text=True)
    if r.returncode:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return r.stdout.strip()


servfail, silent = error("servfail"), error("silent")
full, strict = error("servfail.shop.svc.cluster.local."), error("servfail", "strict")
missing = error("missing")
conclude("if the name with the first search suffix gets SERVFAIL or no reply, and the others NXDOMAIN, the error is temporary",
         "Go 1.26.8, net.Resolver with PreferGo",
         f"SERVFAIL: {servfail}; no reply: {silent}, the same as for a name that does not exist: {missing}. "
         f"For the full name: {full}; with StrictErrors: {strict}",
         [servfail, silent, missing, full, strict] == ["not found"] * 3 + ["temporary"] * 2)
PYTHON
