#!/usr/bin/env bash
# The name server of gvisor-tap-vsock, as of `podman machine`, makes NXDOMAIN of SERVFAIL and of silence.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
gvproxy 0.8.9
look_ups $'nameserver 127.0.0.1\noptions timeout:1 attempts:1' <<'PYTHON'
from loopback import *

MX = 15


def handle(name, qtype, q, tcp):
    """Has an address for www, and for mx no record of the type MX."""
    failure = {"failing.example.": reply(q, SERVFAIL), "silent.example.": None, "missing.example.": reply(q, NXDOMAIN)}
    return failure.get(name, reply(q)), 0


Upstream(handle, port=53)
start("gvproxy", ready=answers(5300, "gateway.containers.internal."))


def code(name, qtype=A):
    return RCODES.get(rcode(ask(5300, name + ".example.", qtype)[0]))


if (code("www"), code("missing")) != ("NOERROR", "NXDOMAIN"):
    sys.exit(2)
failing, silent, mail = code("failing"), code("silent"), code("www", MX)
conclude("a name that gets SERVFAIL or no reply from the host's name server gets SERVFAIL, and one that has no record of the type gets NOERROR (RFC 2308)",
         "gvisor-tap-vsock 0.8.9 (Go module), pkg/services/dns",
         f"the rcode is {failing} if the host's name server answers SERVFAIL, {silent} if it is silent, and {mail} for the MX records of a name that has an address alone",
         failing == silent == mail == "NXDOMAIN")
PYTHON
