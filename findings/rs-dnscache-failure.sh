#!/usr/bin/env bash
# rs/dnscache keeps a failed look-up until all names are refreshed.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command resolve reads lines. For refresh and persist it refreshes its cache; each other line is a name, which it looks up
// with the cache, and prints whether it is found.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"

	"github.com/rs/dnscache"
)

func main() {
	r := &dnscache.Resolver{Resolver: &net.Resolver{PreferGo: true}}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "refresh":
			r.Refresh(true)
			fmt.Println("done")
		case "persist":
			r.RefreshWithOptions(dnscache.ResolverRefreshOptions{PersistOnFailure: true})
			fmt.Println("done")
		default:
			_, err := r.LookupHost(context.Background(), lines.Text())
			fmt.Println(err == nil)
		}
	}
}
GO
build resolve github.com/rs/dnscache 0.0.0-20230804202142-fc85eb664529
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
from loopback import *

code = [NOERROR]
Upstream(lambda name, qtype, q, tcp: (reply(q, code[0]), 0), port=53)
p = subprocess.Popen(["resolve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
atexit.register(end, p)


def do(line):
    p.stdin.write(line + "\n")
    p.stdin.flush()
    return p.stdout.readline().strip()


def found(name):
    """Returns how many of 20 look-ups in 20 s find a name."""
    count = 0
    for _ in range(20):
        count += do(name) == "true"
        time.sleep(1)
    return count


def refresh(how):
    """Refreshes the names while the name server fails."""
    code[0] = SERVFAIL
    do(how)
    code[0] = NOERROR


if do("known.example.") != "true":
    sys.exit(2)
code[0] = SERVFAIL
do("new.example.")
code[0] = NOERROR
new = found("new.example.")
do("refresh")
again = do("new.example.")
refresh("persist")
persisted = found("known.example.")
do("refresh")
do("known.example.")
refresh("refresh")
known = found("known.example.")
conclude("a look-up that gets SERVFAIL is repeated the next time, and a name that has been found is known further if it gets SERVFAIL in a refresh",
         "rs/dnscache v0.0.0-20230804202142-fc85eb664529",
         f"after a first look-up with SERVFAIL, {new} of 20 look-ups in the next 20 s find the name, and after a refresh the name is found: {again}. "
         f"After a refresh with SERVFAIL, {known} of 20 look-ups find a name that was known, and {persisted} with PersistOnFailure",
         new == 0 and again == "true" and known == 0 and persisted == 20)
PYTHON
