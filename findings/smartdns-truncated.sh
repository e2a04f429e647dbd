#!/usr/bin/env bash
# SmartDNS answers that a name has no address if its server's reply does not fit into UDP.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian smartdns=40+dfsg-1 libssl3
python3 - <<'PYTHON'
from loopback import *

COUNT = 60


def addresses(name, qtype, q, tcp):
    """Answers with 60 addresses, over UDP with those that fit into 512 bytes and TC."""
    if not name.startswith("pods") or qtype != A:
        return reply(q), 0
    _, _, end = question(q)
    n = COUNT if tcp else int(name.split("-")[1].split(".")[0])
    records = b"".join(struct.pack("!3HLH4B", 0xC00C, A, 1, 60, 4, 192, 0, 2, 1 + i) for i in range(n))
    return q[:2] + struct.pack("!5H", 0x8580 if tcp else 0x8780, 1, n, 0, 0) + q[12:end] + records, 0


def found(server):
    """Returns RCODE, TC and number of addresses that a client gets over UDP and TCP, for servers that put none and 20 into the truncated reply."""
    port, upstream, results = free_port(), Upstream(addresses), []
    conf = write("smartdns.conf", f"""bind 127.0.0.1:{port}
bind-tcp 127.0.0.1:{port}
{server} 127.0.0.1:{upstream.port}
speed-check-mode none
max-reply-ip-num 64
cache-persist no
log-file {os.environ["work"]}/smartdns.txt
""")
    p = start("smartdns", "-f", "-x", "-c", conf, "-p", "-", ready=answers(port))
    for name in ("pods-0.example.", "pods-20.example."):
        for tcp in (False, True):
            r, _ = ask(port, name, tcp=tcp)
            results.append((RCODES.get(rcode(r)), bool(r and r[2] & 2), struct.unpack("!H", r[6:8])[0] if r else 0))
    end(p)
    return results, sum(tcp for _, _, _, tcp in upstream.queries)


(over_udp, tcp), (over_tcp, _) = found("server"), found("server-tcp")
conclude("a reply with TC is retried over TCP, or its TC is passed on to the client (RFC 7766, 5)",
         "SmartDNS 40 (Debian 40+dfsg-1)",
         f"{tcp} queries over TCP; a client gets {over_udp[0][0]} with {over_udp[0][2]} addresses and {'TC' if over_udp[0][1] else 'no TC'}, "
         f"and {over_udp[1][2]} addresses if it asks over TCP; {over_udp[2][2]} and {over_udp[3][2]} if the truncated reply has 20; "
         f"with server-tcp, {over_tcp[0][2]}, {over_tcp[1][2]}, {over_tcp[2][2]}, {over_tcp[3][2]}",
         tcp == 0 and [r[2] for r in over_udp] == [0, 0, 20, 20] and not any(r[1] for r in over_udp) and over_tcp[1][2] == COUNT)
PYTHON
