#!/usr/bin/env bash
# nslookup of BusyBox fails for the short name of a Service that it finds.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian busybox-static=1:1.35.0-4+deb12u1+b1
look_ups $'nameserver 127.0.0.1\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5' <<'PYTHON'
from loopback import *

NAMES = "web.shop.svc.cluster.local.", "pods.shop.svc.cluster.local."


def handle(name, qtype, q, tcp):
    """Has a Service, and a headless one whose answer does not fit into a datagram."""
    if name not in NAMES:
        return reply(q, NXDOMAIN), 0
    return reply(q, tc=name == NAMES[1] and qtype == A and not tcp), 0


Upstream(handle, port=53)


def nslookup(name):
    """Returns whether BusyBox prints the address of a name, and its exit status."""
    p = subprocess.run([os.environ["work"] + "/root/bin/busybox", "nslookup", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return "192.0.2.1" in p.stdout, p.returncode


def libc(name):
    return [a[4][0] for a in socket.getaddrinfo(name, 80, proto=socket.IPPROTO_TCP)] == ["192.0.2.1"]


if not (libc("web") and libc("web.shop") and libc(NAMES[1])):
    sys.exit(2)
full, short, namespace, truncated = (nslookup(n) for n in (NAMES[0], "web", "web.shop", NAMES[1]))
conclude("nslookup succeeds for the names that programs find, as init containers wait with `until nslookup web`",
         "BusyBox 1.35.0 (Debian 1:1.35.0-4+deb12u1+b1)",
         "; ".join(f"{label}: the address is {'' if found else 'not '}printed, and the exit status is {status}" for label, (found, status) in
                   {"the full name": full, "web": short, "web.shop": namespace, "the full name of a Service whose answer has TC": truncated}.items()) + "; glibc finds all",
         (full, short, namespace, truncated) == ((True, 0), (True, 1), (False, 1), (False, 0)))
PYTHON
