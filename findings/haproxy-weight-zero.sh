#!/usr/bin/env bash
# HAProxy sends nothing to the targets of SRV records whose weight is 0, even if they all have it.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian haproxy=2.6.12-1+deb12u4 liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0 libssl3
python3 - <<'PYTHON'
import http.client
import http.server
from loopback import *


class Backend(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def backend():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


BACKENDS = [backend(), backend()]
weight = 0


def records(name, qtype, q, tcp):
    """Answers SRV with both backends, and type A with 127.0.0.1."""
    if qtype != SRV:
        return reply(q, ttl=5, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0
    _, _, end = question(q)
    answer = b""
    for i, port in enumerate(BACKENDS):
        rdata = struct.pack("!3H", 0, weight, port) + b"\1" + b"ab"[i : i + 1] + b"\7example\0"
        answer += struct.pack("!3HLH", 0xC00C, SRV, 1, 5, len(rdata)) + rdata
    return q[:2] + struct.pack("!5H", 0x8580, 1, len(BACKENDS), 0, 0) + q[12:end] + answer, 0


upstream = Upstream(records)


def addressed(path):
    """Returns how many servers have an address."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(b"show servers state\n")
        return s.makefile().read().count(" 127.0.0.1 ")


def statuses(w, options=""):
    """Starts HAProxy while both records have weight w, waits until it knows them, and sends ten requests."""
    global weight
    weight, port, path = w, free_port(), os.path.join(os.environ["work"], "s")
    conf = write("haproxy.cfg", f"""global
    stats socket {path}
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
resolvers cluster
    nameserver dns 127.0.0.1:{upstream.port}
    hold valid 1s
    timeout retry 200ms
    timeout resolve 200ms
frontend f
    bind 127.0.0.1:{port}
    default_backend web
backend web
    server-template web 4 _http._tcp.web.example resolvers cluster {options} resolve-prefer ipv4 init-addr none
""")
    p = start("haproxy", "-f", conf, "-db", ready=lambda: os.path.exists(path))
    until, seen = time.monotonic() + 20, []
    while addressed(path) < len(BACKENDS) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(2)
    for _ in range(10):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/")
        seen.append(connection.getresponse().status)
        connection.close()
    found = addressed(path)
    end(p)
    os.remove(path)
    return found, seen


(found, zero), (_, one), (_, ignored) = statuses(0), statuses(1), statuses(0, "resolve-opts ignore-weight")
conclude("SRV records with weight 0 mean that there is nothing to choose (RFC 2782), and requests reach the targets",
         "HAProxy 2.6.12 (Debian 2.6.12-1+deb12u4), server-template with SRV records",
         f"{found} servers get an address, and {zero.count(503)} of 10 requests get 503; "
         f"with weight 1, {one.count(200)} of 10 get 200, with resolve-opts ignore-weight {ignored.count(200)}",
         found == 2 and zero == [503] * 10 and one == ignored == [200] * 10)
PYTHON
