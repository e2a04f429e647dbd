#!/usr/bin/env bash
# socat and nghttpx try only the first address of a name.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian socat=1.7.4.4-2 nghttp2-proxy=1.52.0-1+deb12u3 libnghttp2-14 libc-ares2 libev4 libjemalloc2 libssl3 libwrap0 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 zlib1g
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import http.client
from loopback import *

UP, DOWN = "127.0.0.2", "127.0.0.3"
NAMES = {"up-first.example": (UP, DOWN), "down-first.example": (DOWN, UP)}


def handle(name, qtype, q, tcp):
    """Answers with two addresses, always in the same order."""
    if qtype != A or name.rstrip(".") not in NAMES:
        return reply(q), 0
    return q[:2] + struct.pack("!5H", 0x8580, 1, 2, 0, 0) + q[12 : question(q)[2]] + b"".join(
        struct.pack("!3HLH", 0xC00C, A, 1, 5, 4) + socket.inet_aton(a) for a in NAMES[name.rstrip(".")]), 0


dns, to = Upstream(handle, port=53), backend(UP)


def status(host, port):
    """Returns the status of a request, or None if there is no reply."""
    try:
        c = http.client.HTTPConnection(host, port, timeout=10)
        c.request("GET", "/")
        return c.getresponse().status
    except (OSError, http.client.HTTPException):
        return None


def socat(name):
    port = free_port()
    start("socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"TCP:{name}:{to}", ready=lambda: listening(port))
    return port


def nghttpx(name, dynamic=";;dns"):
    port = free_port()
    conf = write(f"nghttpx-{port}.conf", f"frontend=127.0.0.1,{port};no-tls\nbackend={name},{to}{dynamic}\nworkers=1\n")
    start("nghttpx", "--conf=" + conf, ready=lambda: listening(port))
    return port


def listening(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def succeed(host, port):
    return [status(host, port) for _ in range(10)].count(204)


seen = {label: [succeed(*where(name)) for name in NAMES] for label, where in (
    ("Python", lambda name: (name, to)), ("socat", lambda name: ("127.0.0.1", socat(name))),
    ("nghttpx", lambda name: ("127.0.0.1", nghttpx(name))), ("nghttpx without dns", lambda name: ("127.0.0.1", nghttpx(name, ""))))}
conclude("if the first of a name's two addresses refuses connections, the second one is tried",
         "socat 1.7.4.4 (Debian 1.7.4.4-2), nghttpx 1.52.0 (Debian 1.52.0-1+deb12u3), glibc",
         "; ".join(f"{label}: {down} of 10 requests succeed if the first one refuses, {up} if the second one does" for label, (up, down) in seen.items()),
         all(up == 10 for up, _ in seen.values()) and {label: down for label, (_, down) in seen.items()} ==
         {"Python": 10, "socat": 0, "nghttpx": 0, "nghttpx without dns": 0})
PYTHON
