#!/usr/bin/env bash
# adns finds no address of a name that is an alias of an alias.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian adns-tools=1.6.0-2 libadns1=1.6.0-2
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

CNAME, TARGETS = 5, {"one.example.": "web.example.", "two.example.": "one.example."}


def wire(name):
    return b"".join(bytes([len(l)]) + l.encode() for l in name.rstrip(".").split(".")) + b"\0"


def handle(name, qtype, q, tcp):
    """Answers with the whole chain of aliases, as a resolver does."""
    records = []
    while name in TARGETS:
        target = wire(TARGETS[name])
        records.append(wire(name) + struct.pack("!2HLH", CNAME, 1, 300, len(target)) + target)
        name = TARGETS[name]
    if qtype == A:
        records.append(wire(name) + struct.pack("!2HLH", A, 1, 300, 4) + bytes([192, 0, 2, 1]))
    return q[:2] + struct.pack("!5H", 0x8580, 1, len(records), 0, 0) + q[12 : question(q)[2]] + b"".join(records), 0


Upstream(handle, port=53)


def adns(name):
    """Returns whether adns finds the address of a name, and what it prints."""
    p = subprocess.run(["adnshost", "-t", "a", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return "192.0.2.1" in p.stdout, " / ".join(p.stdout.split("\n")).strip(" /")


def libc(name):
    return socket.gethostbyname(name) == "192.0.2.1"


one, two = adns("one.example"), adns("two.example")
others = libc("one.example"), libc("two.example")
conclude("a name that is an alias of an alias is found, as resolvers answer with the whole chain, and chains should be followed (RFC 1034, 3.6.2)",
         "adns 1.6.0 (Debian 1.6.0-2), adnshost",
         f"with one alias it finds the address: {one[0]}, and with two: {two[0]} ({two[1]}); glibc finds {sum(others)} of 2",
         one[0] and not two[0] and all(others))
PYTHON
