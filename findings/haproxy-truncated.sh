#!/usr/bin/env bash
# HAProxy finds no server of a headless Service whose addresses exceed 512 bytes.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian haproxy=2.6.12-1+deb12u4 liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0 libssl3
python3 - <<'PYTHON'
from collections import Counter
from loopback import *


def addresses(name, qtype, q, tcp):
    """Answers with as many addresses as the name says, or with TC."""
    n = int(name.split("-")[0]) if qtype == A else 0
    _, _, end = question(q)
    size = max(512, struct.unpack("!H", q[end + 3 : end + 5])[0]) if q[11] else 512
    records = b"".join(struct.pack("!3HLH4B", 0xC00C, A, 1, 5, 4, 192, 0, 2, 1 + i) for i in range(n))
    head = q[:2] + struct.pack("!5H", 0x8580, 1, n, 0, 0)
    full = head + q[12:end] + records
    return (full if tcp or len(full) <= size else reply(q, tc=True)), 0


def servers(extra, nameserver=""):
    """Returns how many servers of each backend get an address, and how the name of 40 was asked."""
    upstream, port = Upstream(addresses), free_port()
    socket_path = os.path.join(os.environ["work"], "s")
    conf = write("haproxy.cfg", f"""global
    stats socket {socket_path}
defaults
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
resolvers cluster
    nameserver dns {nameserver}127.0.0.1:{upstream.port}
    hold valid 1s
    timeout retry 200ms
    timeout resolve 200ms
    {extra}
frontend f
    bind 127.0.0.1:{port}
    default_backend few
backend few
    server-template few 5 5-pods.svc.cluster.local:80 resolvers cluster resolve-prefer ipv4 init-addr none
backend many
    server-template many 5 40-pods.svc.cluster.local:80 resolvers cluster resolve-prefer ipv4 init-addr none
""")
    p = start("haproxy", "-f", conf)
    time.sleep(6)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(socket_path)
        s.sendall(b"show servers state\n")
        state = s.makefile().read()
    end(p)
    found = [sum(f" {b}{i} 192.0.2." in state for i in range(1, 6)) for b in ("few", "many")]
    return found, sum(tcp for _, name, _, tcp in upstream.queries if name.startswith("40"))


(few, many), over_tcp = servers("")
(few_tcp, many_tcp), _ = servers("", "tcp@")
(_, large), _ = servers("accepted_payload_size 8192")
conclude("a reply with TC is retried over TCP (RFC 7766, 5)",
         "HAProxy 2.6.12 (Debian 2.6.12-1+deb12u4)",
         f"a name with 5 addresses fills {few} of 5 servers, one with 40 addresses {many}; {over_tcp} queries over TCP; "
         f"{few_tcp} and {many_tcp} of 5 with nameserver tcp@…; the second {large} with accepted_payload_size 8192",
         few == 5 and many == 0 and over_tcp == 0 and large == 5)
PYTHON
