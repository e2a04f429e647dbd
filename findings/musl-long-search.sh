#!/usr/bin/env bash
# A search line of more than 254 characters counts for nothing in musl: Services have no short names.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian tcc=0.9.27+git20200814.62c30a4a-1 musl=1.2.3-1 musl-dev=1.2.3-1
cat >"$work/lookup.c" <<'C'
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int count, char **arguments)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
	int error = getaddrinfo(arguments[1], "80", &hints, &found);
	puts(error ? gai_strerror(error) : "found");
	return 0;
}
C
musl=$work/root/usr/lib/x86_64-linux-musl
compiler=$work/root/usr/lib/x86_64-linux-gnu/tcc
tcc -B"$compiler" -nostdinc -I"$work/root/usr/include/x86_64-linux-musl" -I"$compiler/include" -nostdlib -static \
	-o "$work/lookup" "$musl/crt1.o" "$musl/crti.o" "$work/lookup.c" "$musl/libc.a" "$musl/crtn.o" || exit 2
touch "$work/resolv.conf"
unshare -rmn bash -c '
	mount --bind "$work/resolv.conf" /etc/resolv.conf || exit 2
	ip link set lo up || exit 2
	exec python3 -' <<'PYTHON'
from loopback import *

server = Upstream(lambda name, qtype, q, tcp: (reply(q, NOERROR if name == "web.shop.svc.cluster.local." else NXDOMAIN), 0), port=53)


def lookup(length):
    """Returns the result for web, and the names asked for, with a search path whose line has that length, as a pod gets it from a node."""
    line = "search shop.svc.cluster.local svc.cluster.local cluster.local"
    while length - len(line) > 60:
        line += " " + "department.example"
    line += " " + "d" * (length - len(line) - 9) + ".example"
    write("resolv.conf", f"nameserver 127.0.0.1\n{line}\noptions ndots:5\n")
    before = len(server.queries)
    r = subprocess.run([os.environ["work"] + "/lookup", "web"], capture_output=True, text=True)
    return r.stdout.strip(), [q[1] for q in server.queries[before:]]


short, long = lookup(254), lookup(255)
conclude("musl uses as much of a search path as fits, and the Service's own namespace comes first; Kubernetes allows 2,048 characters",
         "musl 1.2.3 (Debian 1.2.3-1), getaddrinfo",
         f"of a line with 254 characters, web is {short[0]}, asked as {' '.join(short[1])}; with 255 \"{long[0]}\", asked as {' '.join(long[1])}",
         short == ("found", ["web.shop.svc.cluster.local."]) and long == ("Name does not resolve", ["web."]))
PYTHON
