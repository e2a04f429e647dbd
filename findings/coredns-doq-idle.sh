#!/usr/bin/env bash
# CoreDNS fails the first query over QUIC after its server's idle timeout.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
certificate
coredns 1.15.0 bind forward quic timeouts tls
python3 - <<'PYTHON'
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
server, port, work = free_port(), free_port(), os.environ["work"]
conf = write("Corefile", f"""quic://.:{server} {{
    bind 127.0.0.1
    tls {work}/cert.pem {work}/key.pem
    timeouts {{
        idle 1s
    }}
    forward . 127.0.0.1:{upstream.port}
}}
.:{port} {{
    bind 127.0.0.1
    forward . quic://127.0.0.1:{server} {{
        tls_servername localhost
        tls {work}/cert.pem {work}/key.pem {work}/cert.pem
    }}
}}
""")
start("coredns", "-conf", conf, ready=answers(port))
busy = [ask(port, f"busy-{i}.example.", timeout=8) for i in range(5)]
first = []
for i in range(4):
    time.sleep(2.5)
    first.append(ask(port, f"idle-{i}.example.", timeout=8))
    ask(port, f"next-{i}.example.", timeout=8)  # opens a connection
failed = sum(rcode(r) != NOERROR for r, _ in first)
conclude("a query after the server's idle timeout opens a connection and is answered",
         "CoreDNS 1.15.0, forward . quic://…, beside its own server with an idle timeout of 1 s",
         f"{failed} of 4 queries after 2.5 s without any fail, after {max(s for _, s in first):.1f} s; "
         f"{sum(rcode(r) != NOERROR for r, _ in busy)} of 5 without a pause",
         failed >= 3 and all(rcode(r) == NOERROR for r, _ in busy))
PYTHON
