#!/usr/bin/env bash
# Go's resolver says that a name does not exist if only one of its two queries is answered, and the name ends in a dot.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir -p "$work/src" "$work/root/usr/bin"
cat >"$work/src/main.go" <<'GO'
// Command resolve NAME STRICT looks a name up and prints the error and whether it is said to be temporary, or that the name is not found.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	r := &net.Resolver{PreferGo: true, StrictErrors: os.Args[2] == "strict"}
	_, err := r.LookupHost(context.Background(), os.Args[1])
	var e *net.DNSError
	if !errors.As(err, &e) {
		fmt.Println("found")
		return
	}
	kind := "neither"
	if e.IsNotFound {
		kind = "IsNotFound"
	} else if e.IsTemporary {
		kind = "temporary"
	}
	fmt.Println(kind)
}
GO
echo 'module finding

go 1.26.0' >"$work/src/go.mod"
if ! (cd "$work/src" && GOTOOLCHAIN=go1.26.8 CGO_ENABLED=0 GOWORK=off go build -o "$work/root/usr/bin/resolve" .); then
	exit 2
fi
export PATH=$work/root/usr/bin:$PATH
look_ups $'nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5 timeout:1 attempts:2' <<'PYTHON'
from loopback import *

NAME = "web.shop.svc.cluster.local"
mode = ["well"]


def answer(name, qtype, q, tcp):
    if name != NAME + ".":
        return reply(q, NXDOMAIN), 0
    if qtype != A or mode[0] == "well":
        return reply(q), 0
    return None if mode[0] == "silence" else reply(q, SERVFAIL), 0.3


dns = Upstream(answer, port=53)


def errors(name, how="default"):
    """Returns how a look-up ends if the A query gets no reply, and if it gets SERVFAIL, three times each."""
    found = []
    for mode[0] in "silence", "SERVFAIL":
        found += [subprocess.run(["resolve", name, how], stdout=subprocess.PIPE, text=True, check=True).stdout.strip() for _ in range(3)]
    mode[0] = "well"
    if subprocess.run(["resolve", name, how], stdout=subprocess.PIPE, text=True).stdout != "found\n":
        sys.exit(2)
    return found


dot, without, strict = errors(NAME + "."), errors(NAME), errors(NAME + ".", "strict")
conclude("if the A query of a name without AAAA record gets no reply or SERVFAIL, the error is temporary",
         "Go 1.26.8, net.Resolver with PreferGo",
         f"{dot.count('IsNotFound')} of {len(dot)} look-ups of the full name with a dot at its end say that it does not exist (IsNotFound), "
         f"and {without.count('temporary')} of {len(without)} without the dot have a temporary error, as {strict.count('temporary')} of {len(strict)} with the dot and StrictErrors",
         set(dot) == {"IsNotFound"} and set(without) == set(strict) == {"temporary"})
PYTHON
