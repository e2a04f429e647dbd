#!/usr/bin/env bash
# nginx as a proxy for DNS over UDP drops queries beyond some 250 in 20 s, as it keeps a session for each.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nginx=1.22.1-9+deb12u11 libnginx-mod-stream=1.22.1-9+deb12u11 libpcre2-8-0 libssl3 zlib1g libcrypt1
python3 - <<'PYTHON'
import select
from loopback import *

COUNT = 500


def answered(label, extra=""):
    """Returns how many of COUNT queries, 50 a second and from other ports, are answered through nginx."""
    port, directory = free_port(), folder(label)
    p = start("nginx", "-c", write(label + ".conf", f"""daemon off;
load_module {os.environ["work"]}/root/usr/lib/nginx/modules/ngx_stream_module.so;
pid {directory}/pid;
error_log {directory}/errors;
events {{ }}
stream {{
    upstream dns {{
        server 127.0.0.1:{server.port};
    }}
    server {{
        listen 127.0.0.1:{port} udp reuseport;
        proxy_timeout 20s;
        proxy_pass dns;
        {extra}
    }}
}}
"""), "-p", directory, "-e", directory + "/errors", ready=answers(port))
    begin, clients = time.monotonic(), []
    for i in range(COUNT):
        time.sleep(max(0, begin + i / 50 - time.monotonic()))
        clients.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        clients[-1].connect(("127.0.0.1", port))
        clients[-1].send(query(f"n{i}.example."))
    time.sleep(1)
    replies = sum(bool(select.select([c], [], [], 0)[0]) for c in clients)
    end(p)
    return replies


server = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
default, cured = answered("default"), answered("cured", "proxy_responses 1;")
conclude("with `listen … udp reuseport`, `proxy_timeout 20s` and `proxy_pass`, as in the example of its documentation, nginx passes 50 queries a second to a name server",
         "nginx 1.22.1 (Debian 1.22.1-9+deb12u11), stream",
         f"{default} of {COUNT} queries in a row are answered: each keeps two of a worker's 512 connections for 20 s; {cured} with proxy_responses 1",
         200 < default < 300 and cured > COUNT * 0.95)
PYTHON
