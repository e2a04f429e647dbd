#!/usr/bin/env bash
# CoreDNS answers the queries of a TCP connection one after the other: a slow name delays all behind it.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind forward
python3 - <<'PYTHON'
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q), 1.5 if name.startswith("slow") else 0))
port = free_port()
conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    forward . 127.0.0.1:{upstream.port}
}}
""")
start("coredns", "-conf", conf, ready=answers(port))
with socket.create_connection(("127.0.0.1", port), 10) as s:
    begin, names, took = time.monotonic(), ["slow.example."] + [f"quick{i}.example." for i in range(5)], {}
    for name in names:
        s.sendall(framed(query(name)))
    for _ in names:
        took[question(receive(s))[0]] = time.monotonic() - begin
quick = max(took[n] for n in names[1:])
order = list(took) == names
conclude("quick names are answered at once, although a slow one was asked first on the same connection (RFC 7766, 6.2.1.1)",
         "CoreDNS 1.15.0",
         f"5 quick names behind one of 1.5 s take {quick:.1f} s; replies come in the order of the queries: {order}",
         quick > 1.4 and order)
PYTHON
