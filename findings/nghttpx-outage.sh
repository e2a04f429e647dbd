#!/usr/bin/env bash
# nghttpx gives a backend's address up when a look-up fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nghttp2-proxy=1.52.0-1+deb12u3 libnghttp2-14 libc-ares2 libev4 libjemalloc2 libssl3 zlib1g
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import urllib.error
import urllib.request
from loopback import *

service = backend()
code, silent = [NOERROR], threading.Event()
dns = Upstream(lambda name, qtype, q, tcp: (None if silent.is_set() else
                                            reply(q, code[0], ttl=5, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0), port=53)


def get(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return None


def nghttpx(label, extra=""):
    port = free_port()
    start("nghttpx", "--conf=" + write(label, f"""frontend=127.0.0.1,{port};no-tls
backend=web.shop.svc.cluster.local,{service};;dns
workers=1
{extra}
"""), ready=lambda: get(port) == 204)
    return port


def outage(label, way, extra=""):
    """Returns the first status of a request in an outage of at most 40 s that is not 204, when it came, the ones of the
    next five requests, and after how many seconds of DNS requests succeed again."""
    port = nghttpx(label, extra)
    if way == "silence":
        silent.set()
    else:
        code[0] = SERVFAIL
    begin = time.monotonic()
    while (first := get(port)) == 204 and time.monotonic() < begin + 40:
        time.sleep(0.5)
    took, rest = time.monotonic() - begin, [get(port) for _ in range(5)]
    silent.clear()
    code[0] = NOERROR
    back = time.monotonic()
    while get(port) != 204 and time.monotonic() < back + 60:
        time.sleep(0.5)
    return first, took, rest, time.monotonic() - back


def failed(o):
    return o[0] == 502 and o[1] < 35 and o[2] == [502] * 5


servfail, unanswered = outage("servfail", "SERVFAIL"), outage("silence", "silence")
kept = outage("kept", "SERVFAIL", "dns-cache-timeout=1h")
conclude("while DNS is out, requests go on to the address that is known and well",
         "nghttpx 1.52.0 (Debian 1.52.0-1+deb12u3), backend with dns",
         "; ".join(f"with {way} from the name server, requests get {o[0]} after {o[1]:.0f} s, and the next five {sorted(set(o[2]))}; "
                   f"they succeed {o[3]:.0f} s after the outage" for way, o in (("SERVFAIL", servfail), ("silence", unanswered))) +
         f"; with dns-cache-timeout=1h, requests get {kept[0]} for {kept[1]:.0f} s",
         failed(servfail) and failed(unanswered) and kept[0] == 204 and kept[2] == [204] * 5)
PYTHON
