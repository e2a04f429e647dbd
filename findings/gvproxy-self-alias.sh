#!/usr/bin/env bash
# The name server of gvisor-tap-vsock, as of `podman machine`, says that a name without an alias is an alias of itself, if it is asked for the CNAME record.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libnghttp2-14 libprotobuf-c1 libpython3.11 libssl3
gvproxy 0.8.9
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

CNAME = 5
Upstream(lambda name, qtype, q, tcp: (reply(q), 0), port=53)
start("gvproxy", ready=answers(5300, "gateway.containers.internal."))


def code(port, name, qtype=A):
    return RCODES.get(rcode(ask(port, name, qtype)[0]))


r, _ = ask(5300, "www.example.", CNAME)
# The record's type, and its data without compression.
record = struct.unpack("!H", r[6:8])[0] == 1 and r[question(r)[2] :]
itself = bool(record) and record.endswith(b"\3www\7example\0")
port = free_port()
start(*forwarding_unbound("unbound", port, {".": "127.0.0.1@5300"}, "cache-min-ttl: 60"), ready=answers(port))
if code(port, "www.example.", CNAME) != "NOERROR":
    sys.exit(2)
# Longer than unbound keeps the failure itself.
time.sleep(7)
other, asked = code(port, "web.example."), code(port, "www.example.")
conclude("a query for the CNAME record of a name that has an address gets NOERROR without a record",
         "gvisor-tap-vsock 0.8.9 (Go module), pkg/services/dns; unbound 1.17.1 (Debian 1.17.1-2+deb12u4), cache-min-ttl: 60",
         f"the answer is a CNAME record with the name itself as its target: {itself}; 7 s after a client has asked unbound, which forwards to it, for that record, unbound answers {asked} for the name's address, and {other} for another name's",
         itself and (other, asked) == ("NOERROR", "SERVFAIL"))
PYTHON
